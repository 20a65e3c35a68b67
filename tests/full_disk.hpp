// A disk that is full, for the writes of this process.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>

namespace simplescale::test {

/// Until end() or destruction, this process can write no byte of a file at or behind position
/// `bytes`. It can still create, link and rename files.
struct FullDisk {
  explicit FullDisk(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit limit{bytes, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FullDisk() { end(); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  void end() { setrlimit(RLIMIT_FSIZE, &before); }
  rlimit before{};
};

}  // namespace simplescale::test
