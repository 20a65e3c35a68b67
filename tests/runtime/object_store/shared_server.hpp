// What the tests with an S3 server share.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "runtime/base/splitmix64.hpp"
#include "tests/runtime/object_store/server_fixture.hpp"

namespace simplescale::test {

/// The server of all tests of a program; null and a visible message without moto.
inline S3Server* shared_server() {
  static const std::unique_ptr<S3Server> server = S3Server::start();
  if (!server) MESSAGE("SKIPPED: no Python with moto; ./simplescale test installs it");
  if (server) server->clear_faults();
  return server.get();
}

inline std::string random_bytes(size_t count, uint64_t seed) {
  std::string out(count, 0);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<char>(splitmix64_at(seed, i));
  return out;
}

}  // namespace simplescale::test
