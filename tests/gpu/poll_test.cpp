// The poll() that NCCL's service threads call. That it ends them soon: the checklist's part `nccl`.
#include "transport/nccl/program/poll.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

using namespace simplescale;

TEST_SUITE("poll") {
  TEST_CASE(
      "poll: only NCCL waits more shortly than it asks for, and only where it looks for aborts") {
    CHECK(poll_timeout_ms(500, "/venv/nvidia/nccl/lib/libnccl.so.2") == 10);
    for (const int other : {-1, 0, 499, 60'000})
      CHECK(poll_timeout_ms(other, "/venv/nvidia/nccl/lib/libnccl.so.2") == other);
    CHECK(poll_timeout_ms(500, "/usr/lib/libucs.so.0") == 500);
    CHECK(poll_timeout_ms(500, "") == 500);
  }

  TEST_CASE("poll: the program's own does what the C library's does") {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    pollfd reads{.fd = ends[0], .events = POLLIN, .revents = 0};
    CHECK(poll(&reads, 1, 0) == 0);
    const auto begun = std::chrono::steady_clock::now();
    CHECK(poll(&reads, 1, 30) == 0);
    CHECK(std::chrono::steady_clock::now() - begun >= std::chrono::milliseconds(30));
    REQUIRE(write(ends[1], "x", 1) == 1);
    for (const int timeout_ms : {-1, 0, 500, 2'001}) {
      reads.revents = 0;
      CHECK(poll(&reads, 1, timeout_ms) == 1);
      CHECK(reads.revents == POLLIN);
    }
    pollfd* volatile nowhere = nullptr;  // the compiler would refuse it
    errno = 0;
    CHECK(poll(nowhere, 1, 0) == -1);
    CHECK(errno == EFAULT);
    close(ends[0]);
    close(ends[1]);
  }
}
