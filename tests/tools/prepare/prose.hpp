// Text for tests that prepare data.
#pragma once

#include <cstdint>
#include <string>

namespace simplescale::test {

/// Deterministic prose, enough for a small vocabulary.
inline std::string prose(int sentences, uint32_t seed = 1) {
  const char* words[] = {"the",   "river",    "carries", "small", "boats",  "past",
                         "quiet", "villages", "while",   "old",   "men",    "repair",
                         "nets",  "and",      "sing",    "about", "summer", "storms",
                         "1984",  "été",      "ships",   "under", "cold",   "bridges"};
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    for (int k = 0; k < 9; ++k) {
      seed = seed * 1664525 + 1013904223;
      text += std::string(k ? " " : "") + words[(seed >> 20) % 24];
    }
    text += i % 7 == 6 ? ".\n\n" : i % 3 == 2 ? ".\n" : ".  ";
  }
  return text;
}

}  // namespace simplescale::test
