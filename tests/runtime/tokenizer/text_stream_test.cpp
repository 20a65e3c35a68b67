#include <doctest/doctest.h>

#include "runtime/tokenizer/text_stream.hpp"

using namespace simplescale;

namespace {

/// Ids are bytes; what is not UTF-8 becomes U+FFFD, byte by byte. As SentencePiece, it drops a
/// space at the very beginning.
std::string decode(std::span<const int32_t> ids) {
  std::string out;
  for (size_t i = 0; i < ids.size();) {
    const auto lead = static_cast<unsigned char>(ids[i]);
    const size_t n = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
    bool whole = n > 0 && i + n <= ids.size();
    for (size_t k = 1; whole && k < n; ++k) whole = (ids[i + k] & 0xC0) == 0x80;
    if (!whole) {
      out += "\xEF\xBF\xBD";
      ++i;
      continue;
    }
    for (size_t k = 0; k < n; ++k) out += static_cast<char>(ids[i + k]);
    i += n;
  }
  return out.starts_with(' ') ? out.substr(1) : out;
}

/// The pieces that a stream shows for the bytes of `text`.
std::vector<std::string> pieces(const std::string& text, std::vector<std::string> stops = {},
                                std::vector<int32_t> prompt = {}) {
  TextStream stream(decode, std::move(prompt), std::move(stops));
  std::vector<std::string> shown;
  for (const char c : text) {
    if (stream.stopped()) break;
    shown.push_back(stream.add(static_cast<unsigned char>(c)));
  }
  shown.push_back(stream.finish());
  return shown;
}

std::string joined(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& one : all) text += one;
  return text;
}

using Pieces = std::vector<std::string>;

constexpr int32_t kSpecial = 1 << 24;

/// The bytes of ids that have up to three, the first one highest; of kSpecial none.
std::vector<int32_t> bytes_of(std::span<const int32_t> ids) {
  std::vector<int32_t> bytes;
  for (const int32_t id : ids)
    for (const int shift : {16, 8, 0})
      if (id != kSpecial && (id >> shift) > 0) bytes.push_back(id >> shift & 0xFF);
  return bytes;
}

/// As byte-level BPE.
std::string decode_bytes(std::span<const int32_t> ids) {
  return decode(bytes_of(ids));
}

/// As ByteFallback: of a run of bytes that is not UTF-8 as a whole, each byte becomes U+FFFD.
std::string decode_runs(std::span<const int32_t> ids) {
  const std::vector<int32_t> bytes = bytes_of(ids);
  std::string out;
  for (size_t i = 0, end = 0; i < bytes.size(); i = end) {
    for (end = i; end < bytes.size() && bytes[end] >= 0x80;) ++end;
    if (end == i) ++end;
    const std::string run = decode(std::span(bytes).subspan(i, end - i));
    if (run.find("\xEF\xBF\xBD") == run.npos)
      out += run;
    else
      for (size_t k = i; k < end; ++k) out += "\xEF\xBF\xBD";
  }
  return out;
}

std::string streamed(TextStream::Decode decoder, const std::vector<int32_t>& ids) {
  TextStream stream(std::move(decoder), {'>'}, {});
  std::string text;
  for (const int32_t id : ids) text += stream.add(id);
  return text + stream.finish();
}

}  // namespace

TEST_SUITE("tokenizer") {
  TEST_CASE("text stream: characters come whole, and as soon as they are") {
    CHECK(pieces("ab") == Pieces{"a", "b", ""});
    CHECK(pieces("a\xC3\xA9z") == Pieces{"a", "", "\xC3\xA9", "z", ""});
    CHECK(pieces("\xF0\x9F\x98\x80!") == Pieces{"", "", "", "\xF0\x9F\x98\x80", "!", ""});
    CHECK(pieces(" b", {}, {'a'}) == Pieces{" ", "b", ""});  // the space is not at the beginning
  }
  TEST_CASE("text stream: bytes that are no character do not stop it") {
    const std::string bad = "\xEF\xBF\xBD";
    CHECK(joined(pieces("a\xFF\xFF\xFF\xFF\xFF\xC3\xA9z")) ==
          "a" + bad + bad + bad + bad + bad + "\xC3\xA9z");
    CHECK(joined(pieces("\x80\xF0\x9F\x98\x80\xE2")) == bad + "\xF0\x9F\x98\x80" + bad);
    std::string text;  // longer than the context
    for (int i = 0; i < 50; ++i) text += "x\xC3\xA9 ";
    CHECK(joined(pieces(text)) == text);
  }
  TEST_CASE("text stream: an id may end one character and begin the next") {
    CHECK(streamed(decode_bytes, {0xC3, 0xB3C5, 0x82C4, 0x87C4, 0x99C5, 0x9B, '!'}) == "ółćęś!");
    CHECK(streamed(decode_bytes, {0xAA, 0xC3, 0xB3C5, 0x82}) == "\xEF\xBF\xBDół");
    std::vector<int32_t> many;
    for (int i = 0; i < 100; ++i) many.insert(many.end(), {0xD0, 0xBFD1, 0x80D0, 0xB8D0, 0xB2});
    std::string text;
    for (int i = 0; i < 100; ++i) text += "прив";
    CHECK(streamed(decode_bytes, many) == text);
  }
  TEST_CASE("text stream: bytes that follow each other may be decoded as a whole only") {
    const std::string text = "€こ万大漢가😀é";
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    CHECK(streamed(decode_runs, ids) == text);
    ids.insert(ids.end(), {0xFF, 'a', 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 'b', 0xE2, 0x82});
    const std::string bad = "\xEF\xBF\xBD";
    CHECK(streamed(decode_runs, ids) ==
          text + bad + "a" + bad + bad + bad + bad + bad + "b" + bad + bad);
  }
  TEST_CASE("text stream: a space behind an id without text stays") {
    std::vector<int32_t> ids = {'r'};
    ids.insert(ids.end(), 20, kSpecial);
    ids.insert(ids.end(), {' ', 'z'});
    CHECK(streamed(decode_bytes, ids) == "r z");
  }
  TEST_CASE("text stream: ends before a stop string, and shows no beginning of one") {
    CHECK(pieces("one\nUser: x", {"\nUser:", "###"}) ==
          Pieces{"o", "n", "e", "", "", "", "", "", "", ""});
    CHECK(joined(pieces("a##b###c", {"###"})) == "a##b");
    CHECK(joined(pieces("a##", {"###"})) == "a##");  // the text ends without a stop
    CHECK(joined(pieces("aab", {"ab"})) == "a");
    CHECK(joined(pieces("xyz", {""})) == "xyz");
  }
}
