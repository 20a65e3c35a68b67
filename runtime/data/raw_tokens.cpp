#include "runtime/data/raw_tokens.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <regex>
#include <span>
#include <vector>

#include "runtime/base/words.hpp"
#include "runtime/data/known_bytes.hpp"
#include "runtime/object_store/s3_url.hpp"

namespace simplescale {

namespace {

Result<std::string> beginning_of(const DataFile& file, uint64_t bytes) {
  std::string begin(std::min(bytes, file.bytes()), '\0');
  SS_RETURN_IF_ERROR(file.read(0, begin.data(), begin.size()));
  return begin;
}

/// The header of llm.c has 1008 bytes of zeros, of which a part may be cut off or damaged.
bool begins_as_damaged_llmc(std::string_view begin) {
  constexpr size_t kZeros = 256;
  static_assert(kKnownBytes == llmc::header_bytes);
  return begin.find(std::string(kZeros, '\0')) != begin.npos;
}

/// Bytes of the ids that a block shows, of which every second number is 0 (or as small as the upper
/// halves of ids below the vocabulary) and the others are not. 0: it shows none.
template <class Number>
int wider_ids(std::span<const Number> numbers, int64_t vocab) {
  constexpr int kBytes = sizeof(Number);
  const uint64_t upper = kBytes == 2 ? static_cast<uint64_t>(vocab - 1) >> 16 : 0;
  std::array<uint64_t, 4> most{};  // of the numbers at i modulo 4
  for (size_t i = 0; i < numbers.size(); ++i)
    most[i % 4] = std::max<uint64_t>(most[i % 4], numbers[i]);
  const uint64_t even = std::max(most[0], most[2]), odd = std::max(most[1], most[3]);
  if ((odd <= upper) == (even <= upper)) return 0;
  const bool one_of_four = std::ranges::count(most, uint64_t{0}) == 3;
  return kBytes == 2 && one_of_four ? 8 : 2 * kBytes;
}

/// bad_data: blocks all over the file show ids of more bytes than `Number` has, or nothing but 0.
template <class Number>
Status check_width(const DataFile& file, int64_t vocab) {
  constexpr uint64_t kBlock = 4096, kBlocks = 16, kOfObject = 256 << 10;
  constexpr size_t kEnough = 16;  // ids
  const uint64_t end = is_s3_url(file.path()) ? std::min(kOfObject, file.bytes()) : file.bytes();
  const uint64_t step = std::max(kBlock, end / kBlocks / kBlock * kBlock);
  std::vector<Number> numbers(kBlock / sizeof(Number));
  uint64_t most = 0;
  for (uint64_t at = 0; at < end; at += step) {
    const auto block =
        std::span(numbers).first(std::min(kBlock, file.bytes() - at) / sizeof(Number));
    SS_RETURN_IF_ERROR(file.read(at, block.data(), block.size_bytes()));
    for (const Number number : block) most = std::max<uint64_t>(most, number);
    const int wider = block.size() < kEnough ? 0 : wider_ids(std::span<const Number>(block), vocab);
    if (wider == 0) continue;
    const std::string what = "every second id is 0 if ids have " + std::to_string(sizeof(Number)) +
                             " bytes: they have " + std::to_string(wider) + "; ";
    if (wider == 4) return bad_byte(file.path(), at, what + "set data.token_bytes = 4");
    return bad_byte(file.path(), at,
                    what +
                        "convert them: python3 -c 'import numpy; numpy.fromfile(\"OLD\", "
                        "\"<i8\").astype(\"<u4\").tofile(\"NEW\")', and set data.token_bytes = 4");
  }
  if (most == 0 && file.bytes() >= kEnough * sizeof(Number))
    return bad_byte(file.path(), 0, "its ids are all 0; is it complete?");
  return {};
}

}  // namespace

Result<TokenLayout> rest_of(const DataFile& file, uint64_t offset, int token_bytes) {
  const uint64_t bytes = file.bytes() - std::min(offset, file.bytes());
  if (bytes % static_cast<uint64_t>(token_bytes) != 0)
    return bad_byte(file.path(), file.bytes() - 1,
                    token_bytes == 2 ? "odd length of " + std::to_string(file.bytes()) +
                                           " bytes: u16 tokens take two bytes each"
                                     : "the length of " + std::to_string(file.bytes()) +
                                           " bytes is no multiple of the tokens' " +
                                           (token_bytes == 4 ? "four" : "eight") + " bytes");
  if (bytes == 0) return bad_byte(file.path(), offset, "the file holds no tokens");
  return TokenLayout{.offset = offset,
                     .count = bytes / static_cast<uint64_t>(token_bytes),
                     .token_bytes = token_bytes};
}

Result<TokenLayout> raw_layout(const DataFile& file, const TokenKind& kind, int64_t vocab) {
  const std::string& path = file.path();
  SS_ASSIGN(const std::string begin, beginning_of(file, kKnownBytes));
  std::string_view is = kind_of_bytes(begin);
  if (is.empty() && begins_as_text(begin))
    is = "a text, such as a web page or a pointer of Git LFS";
  if (is == "a .npy file")
    return bad_byte(path, 0, "this is a .npy file: give its name that ending");
  if (!is.empty())
    return bad_byte(path, 0, "these are no tokens: by its first bytes this is " + std::string(is));
  if (has_ending(path, ".npy")) return bad_byte(path, 0, "wrong magic for a .npy file");
  if (kind.token_bytes == 0 && begins_as_damaged_llmc(begin))
    return bad_byte(
        path, 0,
        "this looks like llm.c tokens with a damaged header: restore the file; if it has no "
        "header, set data.token_bytes");
  if (kind.token_bytes == 0 && vocab > int64_t{1} << 16)
    return Status(Code::bad_data,
                  path +
                      " has no header, and ids of two bytes are below 65,536, but the vocabulary "
                      "has " +
                      std::to_string(vocab) +
                      " tokens: set data.token_bytes = 4, or 2 if that is right");
  const int token_bytes = kind.token_bytes == 0 ? 2 : kind.token_bytes;
  SS_ASSIGN(TokenLayout layout, rest_of(file, 0, token_bytes));
  SS_RETURN_IF_ERROR(token_bytes == 2 ? check_width<uint16_t>(file, vocab)
                                      : check_width<uint32_t>(file, vocab));
  layout.format = "nanogpt";
  layout.guessed = kind.token_bytes == 0 && kind.format == "auto";
  return layout;
}

Result<TokenLayout> npy_layout(const DataFile& file) {
  const std::string& path = file.path();
  constexpr uint64_t kHeaderMax = 64 << 10, kFixed = 12;  // magic, version, length
  SS_ASSIGN(const std::string begin, beginning_of(file, kHeaderMax));
  if (begin.size() < kFixed) return bad_byte(path, begin.size(), "the file ends within its header");
  const int version = begin[6];
  uint32_t length = 0;
  std::memcpy(&length, begin.data() + 8, version == 1 ? 2 : 4);
  const uint64_t text = version == 1 ? 10 : 12, offset = text + length;
  if (version < 1 || version > 3)
    return bad_byte(path, 6, "version " + std::to_string(version) + ", but 1 to 3 are known");
  if (offset > begin.size()) return bad_byte(path, 8, "the file ends within its header");
  const std::string header = begin.substr(text, length);
  // {'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }
  static const std::regex kDescr("'descr':\\s*'([^']*)'"), kShape("'shape':\\s*\\((\\d+),\\)");
  std::smatch descr, shape;
  if (!std::regex_search(header, descr, kDescr))
    return bad_byte(path, text, "its header names no single type of its numbers");
  const std::string type = descr[1];
  if (type != "<u2" && type != "<u4" && type != "<i4" && type != "<i8" && type != "<u8")
    return bad_byte(path, text,
                    "its numbers have the type '" + type +
                        "'; ids are read of <u2, <u4, <i4, <u8 and <i8: save a.astype(\"<u4\")");
  if (!std::regex_search(header, shape, kShape))
    return bad_byte(path, text, "its numbers have not one dimension: save a.reshape(-1)");
  SS_ASSIGN(TokenLayout layout, rest_of(file, offset, type[2] - '0'));
  if (shape[1] != std::to_string(layout.count))
    return bad_byte(path, text,
                    "its header says " + shape[1].str() + " ids, but " +
                        std::to_string(layout.count) + " follow it");
  layout.format = "npy";
  return layout;
}

}  // namespace simplescale
