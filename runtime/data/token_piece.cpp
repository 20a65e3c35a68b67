#include "runtime/data/token_piece.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "runtime/base/files.hpp"

namespace simplescale {

namespace {

constexpr uint64_t kMagic = 0x3145434549505353;  // "SSPIECE1"
constexpr uint32_t kBegins = uint32_t{1} << 31;
static_assert(std::is_trivially_copyable_v<PieceFacts> && sizeof(PieceFacts) == 72);

std::string_view bytes_of(const auto& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

Status bad(const std::string& path) {
  return Status(Code::bad_data, path + ": this piece is damaged; remove it, and prepare again");
}

}  // namespace

PieceWriter::PieceWriter(const std::string& path, int token_bytes)
    : path_(path), narrow_(token_bytes) {
  out_.open(path + ".part", std::ios::binary | std::ios::trunc);
  out_ << bytes_of(PieceFacts{});
}

Status PieceWriter::write(std::span<const int32_t> ids, bool begins_document) {
  SS_ASSERT(ids.size() < kBegins);
  const auto count = static_cast<uint32_t>(ids.size()) | (begins_document ? kBegins : 0);
  const std::string_view tokens = narrow_.of(ids);
  out_ << bytes_of(count) << tokens;
  bytes_ += sizeof count + tokens.size();
  return out_ ? Status() : system_error("cannot write", path_ + ".part", errno);
}

Status PieceWriter::finish(PieceFacts facts) {
  facts.magic = kMagic;
  facts.bytes = bytes_;
  out_.seekp(0);
  out_ << bytes_of(facts);
  out_.close();
  if (!out_) return system_error("cannot write", path_ + ".part", errno);
  return publish_file(path_ + ".part", path_);
}

Result<PieceReader> PieceReader::open(const std::string& path, int token_bytes) {
  SS_ASSIGN(InputFile file, InputFile::open(path));
  PieceFacts facts;
  if (file.bytes() < sizeof facts) return bad(path);
  SS_RETURN_IF_ERROR(file.read(0, &facts, sizeof facts));
  if (facts.magic != kMagic || facts.bytes != file.bytes() - sizeof facts) return bad(path);
  return PieceReader(std::move(file), facts, token_bytes);
}

Status PieceReader::read_record(uint64_t& at, bool& begins) {
  uint32_t count = 0;
  if (file_.bytes() - at < sizeof count) return bad(file_.path());
  SS_RETURN_IF_ERROR(file_.read(at, &count, sizeof count));
  at += sizeof count;
  begins = (count & kBegins) != 0;
  count &= ~kBegins;
  if (count > (file_.bytes() - at) / token_bytes_) return bad(file_.path());
  buffer_.resize(count * token_bytes_);
  SS_RETURN_IF_ERROR(file_.read(at, buffer_.data(), buffer_.size()));
  at += buffer_.size();
  ids_.assign(count, 0);
  for (size_t i = 0; i < count; ++i)
    std::memcpy(&ids_[i], buffer_.data() + i * token_bytes_, token_bytes_);
  return {};
}

}  // namespace simplescale
