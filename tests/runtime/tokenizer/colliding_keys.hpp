// Texts and numbers with equal hashes, as an attacker would choose them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace simplescale::test {

/// 2^bits texts that hash alike under libstdc++'s std::hash, whatever its seed. It is
/// MurmurHash64A: h = (h ^ f(block)) * m for each eight bytes. The f's of these two blocks differ in
/// the highest bit only, so h does so too behind one of them, and not any more behind a second one.
inline std::vector<std::string> texts_of_one_hash(int bits) {
  const std::string one = "5t+thy\xD9\xBF", other =
                                                "5tnZ\xCD\x93"
                                                "11";
  std::vector<std::string> texts = {""};
  for (int bit = 0; bit < bits; ++bit) {
    std::vector<std::string> longer;
    for (const std::string& text : texts) {
      longer.push_back(text + one + one);
      longer.push_back(text + other + other);
    }
    texts = std::move(longer);
  }
  return texts;
}

/// So many numbers whose product with 2^64 divided by the golden ratio has low bits of zero, also when
/// its upper half is added to them.
inline std::vector<uint64_t> numbers_of_one_product(uint64_t count) {
  constexpr uint64_t factor = 0x9E3779B97F4A7C15u;
  uint64_t inverse = factor;  // modulo 2^64, by Newton's method
  for (int i = 0; i < 6; ++i) inverse *= 2 - factor * inverse;
  std::vector<uint64_t> numbers;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t hash = i << 20;
    numbers.push_back((hash ^ hash >> 32) * inverse);
  }
  return numbers;
}

}  // namespace simplescale::test
