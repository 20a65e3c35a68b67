// Writes SentencePiece models by hand, valid and hostile ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace simplescale::test {

inline std::string varint(uint64_t value) {
  std::string out;
  for (; value > 127; value >>= 7) out += static_cast<char>(value | 128);
  return out + static_cast<char>(value);
}
inline std::string field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}
inline std::string field(int number, uint64_t value) {
  return varint(static_cast<uint64_t>(number) << 3) + varint(value);
}
enum { normal_piece = 1, unknown_piece = 2, user_piece = 4, byte_piece = 6 };
inline std::string piece(const std::string& text, int type = normal_piece, float score = 0) {
  std::string bits(4, '\0');
  std::memcpy(bits.data(), &score, 4);
  return field(1,
               field(1, text) + varint(2 << 3 | 5) + bits + field(3, static_cast<uint64_t>(type)));
}
enum { unigram_model = 1, bpe_model = 2 };

/// A normalizer's table: a double array of `units` units, the first of which is `root`, and texts.
inline std::string charsmap(uint32_t units, uint32_t root, const std::string& texts) {
  const uint32_t bytes = units * 4;
  std::string out(4 + size_t{bytes}, '\0');
  std::memcpy(out.data(), &bytes, 4);
  if (units > 0) std::memcpy(out.data() + 4, &root, 4);
  return out + texts + '\0';
}

/// Pieces a, b and ab. map: of the normalizer; "": none.
inline std::string small_model(uint64_t type, const std::string& map = "") {
  std::string out = piece("<unk>", unknown_piece) + piece("\xE2\x96\x81") + piece("a") +
                    piece("b") + piece("ab", normal_piece, -1) + field(2, field(3, type));
  if (!map.empty()) out += field(3, field(2, map));
  return out;
}

}  // namespace simplescale::test
