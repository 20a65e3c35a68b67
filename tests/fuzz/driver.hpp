// What a fuzz target has: libFuzzer's entry, and inputs to begin with. Built with clang and
// -fsanitize=fuzzer the target is libFuzzer's; else driver.cpp mutates the seeds by itself, the
// same inputs every time, so that it can stand among the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Must not crash, hang, or take memory without bound, whatever it gets.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

/// Good inputs.
std::vector<std::string> fuzz_seeds();
