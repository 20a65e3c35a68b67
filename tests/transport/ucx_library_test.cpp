// UCX is no part of the program: it is loaded where a configuration trusts a network.
#include "transport/ucx/library.hpp"

#include <doctest/doctest.h>
#include <ucp/api/ucp.h>

#include "transport/ucx/ucx.hpp"

using namespace simplescale;

TEST_CASE("ucx: a host name that libucs cannot hold is refused before it is loaded") {
  CHECK(ucx::check_host_name(std::string(63, 'x')).ok());
  const Status refused = ucx::check_host_name(std::string(64, 'x'));
  CHECK(refused.code() == Code::bad_config);
  CHECK(refused.message().find("whose name has 64 characters, xxxxx") != std::string::npos);
  CHECK(refused.message().find("at most 63") != std::string::npos);
}

TEST_CASE("ucx: the library is loaded on demand, and our calls reach it") {
  REQUIRE(ucx::load().ok());
  CHECK(std::string(ucs_status_string(UCS_ERR_NO_MEMORY)) == "Out of memory");
  auto context = ucx::Context::create(UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, "self");
  INFO(context.status().message());
  REQUIRE(context.ok());
  auto worker = ucx::Worker::create(**context);
  REQUIRE(worker.ok());
  CHECK_FALSE((*worker)->address().empty());
}
