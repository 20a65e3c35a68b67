// The decoder of tokenizer.json: joins the texts of tokens to the text they stand for. The steps are
// plain data; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/tokenizer/normalize.hpp"

namespace simplescale {

struct ByteLevelDecoder {};     // characters of the byte alphabet become bytes
struct ByteFallbackDecoder {};  // <0x0A> becomes a byte
struct FuseDecoder {};          // all tokens become one
struct StripDecoder {           // removes up to so many `mark` at both ends of each token
  std::string mark;
  size_t start = 0, stop = 0;
};
struct MetaspaceDecoder {  // `mark` becomes a space, but not in the first token
  std::string mark;
  bool strip_first = true;
};
using DecoderStep = std::variant<ByteLevelDecoder, ByteFallbackDecoder, FuseDecoder, StripDecoder,
                                 ReplaceText, MetaspaceDecoder>;

/// The text of tokens. Bytes that are no UTF-8 become U+FFFD.
std::string decode_tokens(const std::vector<DecoderStep>& steps, std::vector<std::string> tokens,
                          PatternScratch& scratch);

/// The alphabet of GPT-2: the character that stands for each byte.
const std::array<char32_t, 256>& byte_alphabet();
/// Appends the bytes that the text's characters stand for. False: one stands for no byte.
bool append_alphabet_bytes(std::string_view text, std::string& bytes);
/// The byte of "<0x0A>", or -1.
int byte_of_token(std::string_view token);

}  // namespace simplescale
