// A fuzz target: what takes an input, and the inputs to begin with. The program `fuzz` has them all.
// Built with clang and -fsanitize=fuzzer, libFuzzer runs the one that FUZZ_TARGET names. Otherwise
// driver.cpp mutates the seeds: the same inputs in every run, so each target can be one of the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

/// Registers itself; lives as long as the program.
struct FuzzTarget {
  /// Must not crash, hang, or allocate without bound for any input.
  using Run = void (*)(const uint8_t* data, size_t bytes);
  /// Returns valid inputs.
  using Seeds = std::vector<std::string> (*)();

  FuzzTarget(const char* name, Run run, Seeds seeds);
  const char* name;
  Run run;
  Seeds seeds;
};

inline void require(bool holds) {
  if (!holds) abort();
}
