// UCX is no part of the program: it is loaded where a configuration trusts a network.
// Which devices UCX may use on trusted interfaces.
#include <doctest/doctest.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/must.hpp"
#include "tests/temp_folder.hpp"
#include "transport/ucx/library.hpp"
#include "transport/ucx/ucx.hpp"

using namespace simplescale;

TEST_CASE("ucx: a host name that libucs cannot hold is refused before it is loaded") {
  CHECK(ucx::check_host_name(std::string(63, 'x')).ok());
  const Status refused = ucx::check_host_name(std::string(64, 'x'));
  CHECK(says(refused, Code::bad_config, "whose name has 64 characters, xxxxx"));
  CHECK(refused.message().find("at most 63") != std::string::npos);
}

TEST_CASE("ucx: the library is loaded on demand, and our calls reach it") {
  REQUIRE(ucx::load().ok());
  CHECK(std::string(ucs_status_string(UCS_ERR_NO_MEMORY)) == "Out of memory");
  auto context = must(ucx::Context::create(UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, "self"));
  auto worker = must(ucx::Worker::create(**context));
  CHECK_FALSE((*worker)->address().empty());
}

TEST_CASE("ucx: devices of trusted interfaces, with InfiniBand's ports and one partition") {
  const test::TempFolder sys;
  sys.write("eth0/dev_port", "0\n");
  sys.write("ib0/dev_port", "1\n");
  sys.write("ib0/pkey", "0x8001\n");
  std::filesystem::create_directories(sys / "ib0/device/infiniband/mlx5_0");
  sys.write("ib1/pkey", "0x8002\n");
  const std::string before = std::getenv("UCX_NET_DEVICES") ? std::getenv("UCX_NET_DEVICES") : "";
  unsetenv("UCX_NET_DEVICES");
  const auto found = must(ucx::devices_of({"eth0", "ib0"}, sys.path));
  CHECK(found->names == "eth0,ib0,mlx5_0:2");
  CHECK(found->partition == "0x8001");
  CHECK(ucx::devices_of({"ib0", "ib1"}, sys.path).status().code() == Code::bad_config);
  setenv("UCX_NET_DEVICES", "mlx5_0:2,eth7", 1);  // leaves out, but adds nothing
  CHECK(ucx::devices_of({"eth0", "ib0"}, sys.path)->names == "mlx5_0:2");
  CHECK(ucx::devices_of({"eth0"}, sys.path).status().code() == Code::bad_config);
  setenv("UCX_NET_DEVICES", "all", 1);
  CHECK(ucx::devices_of({"eth0"}, sys.path)->names == "eth0");
  if (before.empty())
    unsetenv("UCX_NET_DEVICES");
  else
    setenv("UCX_NET_DEVICES", before.c_str(), 1);
}
