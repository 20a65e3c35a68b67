#include "runtime/tokenizer/decode.hpp"

#include <charconv>
#include <utility>

#include "runtime/base/utf8.hpp"

namespace simplescale {

namespace {

using Tokens = std::vector<std::string>;
constexpr const char* replacement = "\xEF\xBF\xBD";

std::string joined(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

Tokens decode_bytes(const Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const size_t before = bytes.size();
    if (append_alphabet_bytes(token, bytes)) continue;
    bytes.resize(before);
    bytes += token;
  }
  return {replace_invalid_utf8(bytes)};
}

/// A run of byte tokens that is no UTF-8 becomes one U+FFFD a byte.
Tokens decode_byte_fallback(const Tokens& tokens) {
  Tokens out;
  std::string bytes;
  const auto flush = [&] {
    if (first_invalid_utf8(bytes) == bytes.size()) {
      if (!bytes.empty()) out.push_back(bytes);
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) out.emplace_back(replacement);
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const int byte = byte_of_token(token); byte >= 0) {
      bytes += static_cast<char>(byte);
      continue;
    }
    flush();
    out.push_back(token);
  }
  flush();
  return out;
}

std::string strip(const std::string& token, const StripDecoder& step) {
  std::string_view text = token;
  for (size_t i = 0; i < step.start && text.starts_with(step.mark); ++i)
    text.remove_prefix(step.mark.size());
  for (size_t i = 0; i < step.stop && text.ends_with(step.mark); ++i)
    text.remove_suffix(step.mark.size());
  return std::string(text);
}

Tokens apply(const DecoderStep& step, Tokens tokens, PatternScratch& scratch) {
  if (std::holds_alternative<ByteLevelDecoder>(step)) return decode_bytes(tokens);
  if (std::holds_alternative<ByteFallbackDecoder>(step)) return decode_byte_fallback(tokens);
  if (std::holds_alternative<FuseDecoder>(step)) return {joined(tokens)};
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string& token = tokens[i];
    if (const auto* ends = std::get_if<StripDecoder>(&step)) token = strip(token, *ends);
    if (const auto* replace = std::get_if<ReplaceText>(&step))
      token = replace_all(token, replace->pattern, replace->by, scratch);
    if (const auto* spaces = std::get_if<MetaspaceDecoder>(&step))
      token =
          replace_all(token, {spaces->mark, {}}, i == 0 && spaces->strip_first ? "" : " ", scratch);
  }
  return tokens;
}

}  // namespace

std::string decode_tokens(const std::vector<DecoderStep>& steps, Tokens tokens,
                          PatternScratch& scratch) {
  for (const DecoderStep& step : steps) tokens = apply(step, std::move(tokens), scratch);
  return replace_invalid_utf8(joined(tokens));
}

const std::array<char32_t, 256>& byte_alphabet() {
  static const auto alphabet = [] {
    std::array<char32_t, 256> out{};
    char32_t next = 0x100;  // for bytes that are no visible character of Latin-1
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool visible = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      out[byte] = visible ? byte : next++;
    }
    return out;
  }();
  return alphabet;
}

bool append_alphabet_bytes(std::string_view text, std::string& bytes) {
  static const auto bytes_of = [] {
    std::array<int, 0x144> out{};
    out.fill(-1);
    for (int byte = 0; byte < 256; ++byte) out[byte_alphabet()[static_cast<size_t>(byte)]] = byte;
    return out;
  }();
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.value >= bytes_of.size() || bytes_of[c.value] < 0) return false;
    bytes += static_cast<char>(bytes_of[c.value]);
    at += c.bytes;
  }
  return true;
}

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = -1;
  const auto read = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return read.ec == std::errc() && read.ptr == token.data() + 5 && byte >= 0 ? byte : -1;
}

}  // namespace simplescale
