// The two functions of a fuzz target: libFuzzer's entry and the inputs to begin with. Built with
// clang and -fsanitize=fuzzer, libFuzzer runs the target. Otherwise driver.cpp mutates the seeds:
// the same inputs in every run, so the target can be one of the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Must not crash, hang, or allocate without bound for any input.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

/// Valid inputs.
std::vector<std::string> fuzz_seeds();
