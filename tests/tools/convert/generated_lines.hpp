// Text for tests that train a SentencePiece model.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace simplescale::test {

/// Lines of random words of eight letters, with a number and capitals; the same for the same count.
inline std::string generated_lines(int count) {
  std::mt19937 random(1);
  std::string text;
  for (int line = 0; line < count; ++line) {
    for (int word = 0; word < 12; ++word) {
      for (uint32_t n = 1 + random() % 6; n > 0; --n) text += static_cast<char>('a' + random() % 8);
      text += word == 5 ? ", " : " ";
    }
    text += "The 42 quick foxes.\n";
  }
  return text;
}

}  // namespace simplescale::test
