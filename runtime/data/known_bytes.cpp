#include "runtime/data/known_bytes.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/base/utf8.hpp"

namespace simplescale {

namespace {

using namespace std::string_view_literals;

// Long enough that neither a text nor tokens begin so by chance.
constexpr std::pair<std::string_view, std::string_view> known[] = {
    {"\x28\xB5\x2F\xFD"sv, "a .zst file"},
    {"\xFD\x37zXZ\0"sv, "an .xz file"},
    {"\x04\x22\x4D\x18"sv, "an .lz4 file"},
    {"PAR1\x15"sv, "a .parquet file"},
    {"\x93NUMPY"sv, "a .npy file"},
    {"PK\x03\x04"sv, "a zip archive, as PyTorch, NumPy (.npz) and zip write them"},
    {"7z\xBC\xAF\x27\x1C"sv, "a 7z archive"},
    {"Rar!\x1A\x07"sv, "a rar archive"},
    {"ARROW1\0\0"sv, "an Arrow file"},
    {"Obj\x01"sv, "an Avro file"},
    {"\x89HDF\r\n\x1A\n"sv, "an HDF5 file"},
    {"GGUF"sv, "a GGUF file"},
    {"SQLite format 3\0"sv, "an SQLite database"},
    {"\x7F"
     "ELF"sv,
     "a program"},
    {"%PDF-"sv, "a PDF file"},
    {"\x89PNG\r\n\x1A\n"sv, "a PNG image"},
    {"\x80\x02\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19"sv, "a file of torch.save()"},
    {"MMIDIDX\0\0"sv, "a Megatron index"},
    {"TNTIDX\0\0"sv, "an index of fairseq"},
    {"LITPKDS"sv, "a file of lit-gpt's packed tokens"},
    {"\x88\xD8\x34\x01"sv, "a file of llm.c's u16 tokens"},  // token_format.hpp
    {"\xA1\xD9\x34\x01"sv, "a file of llm.c's u32 tokens"},
};

/// Little-endian; 0 beyond the end.
uint64_t number_at(std::string_view bytes, size_t at) {
  uint64_t number = 0;
  if (at + sizeof number <= bytes.size()) std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

}  // namespace

std::string_view kind_of_bytes(std::string_view bytes) {
  for (const auto& [begin, kind] : known)
    if (bytes.starts_with(begin)) return kind;
  const auto byte = [&](size_t at) {
    return at < bytes.size() ? static_cast<unsigned char>(bytes[at]) : 0xFF;
  };
  // RFC 1952: method 8, five flags, one of three levels.
  if (bytes.starts_with("\x1F\x8B\x08"sv) && byte(3) < 0x20 && (byte(8) & ~6u) == 0)
    return "a .gz file";
  if (bytes.starts_with("BZh") &&
      bytes.substr(std::min<size_t>(4, bytes.size())).starts_with("1AY&SY"))
    return "a .bz2 file";
  if ((byte(0) & 0xF0u) == 0x50 && bytes.substr(1).starts_with("\x2A\x4D\x18"sv))
    return "a .zst file";  // begins with a frame to skip
  if (byte(0) == 0x80 && (byte(1) == 4 || byte(1) == 5) && byte(2) == 0x95 &&
      number_at(bytes, 3) > 0 && number_at(bytes, 3) < uint64_t{1} << 40)
    return "a Python pickle";
  if (number_at(bytes, 0) > 2 && number_at(bytes, 0) < uint64_t{1} << 30 && byte(8) == '{' &&
      byte(9) == '"')
    return "a safetensors file";
  if (bytes.size() > 262 && bytes.substr(257).starts_with("ustar")) return "a tar archive";
  return "";
}

namespace {
bool has_control_character(std::string_view bytes) {
  return std::ranges::any_of(
      bytes, [](unsigned char c) { return (c < 0x20 && (c < '\t' || c > '\r')) || c == 0x7F; });
}
}  // namespace

bool is_binary(std::string_view bytes) {
  constexpr size_t kLastCharacter = 3;
  return has_control_character(bytes) || first_invalid_utf8(bytes) + kLastCharacter < bytes.size();
}

bool begins_as_text(std::string_view bytes) {
  constexpr size_t kEnough = 16, kEnoughOfAny = 64;  // of UTF-8; of Latin-1 and the like
  return (bytes.size() >= kEnough && !is_binary(bytes)) ||
         (bytes.size() >= kEnoughOfAny && !has_control_character(bytes));
}

}  // namespace simplescale
