#include "tools/prepare/token_piece.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/base/files.hpp"
#include "runtime/base/own_links.hpp"
#include "runtime/base/sync_path.hpp"

namespace simplescale {

namespace {

// Another number, too, if a text is cut into other records than before: resume() counts them.
constexpr uint64_t kMagic = 0x3445434549505353;  // "SSPIECE4"
constexpr uint32_t kBegins = uint32_t{1} << 31, kMasked = uint32_t{1} << 30;
struct StoredRange {
  uint32_t begin = 0, end = 0;
};
static_assert(std::is_trivially_copyable_v<PieceFacts> && sizeof(PieceFacts) == 96);

std::string_view bytes_of(const auto& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

Status bad(const std::string& path) {
  return Status(Code::bad_data, path + ": this piece is damaged; remove it, and prepare again");
}

/// What the writer of `part` has kept; nothing if that is damaged.
PieceFacts kept_facts(const std::string& part) {
  PieceFacts facts;
  const auto file = InputFile::open(part);
  const bool good = file.ok() && file->bytes() >= sizeof facts &&
                    file->read(0, &facts, sizeof facts).ok() && facts.magic == kMagic &&
                    facts.bytes <= file->bytes() - sizeof facts;
  return good ? facts : PieceFacts{};
}

}  // namespace

PieceWriter::PieceWriter(const std::string& path, int token_bytes,
                         std::optional<uint64_t> keep_bytes)
    : path_(path),
      part_(
          fmt::format("{}.{:08x}.{}", path, std::random_device()(), keep_bytes ? "part" : "alone")),
      keep_bytes_(keep_bytes),
      narrow_(token_bytes),
      out_(part_, Output::replace) {
  out_ << bytes_of(PieceFacts{});
}

PieceWriter::~PieceWriter() {
  std::error_code ignored;
  if (kept_ == 0 || !keep_bytes_) std::filesystem::remove(part_, ignored);
}

Result<uint64_t> PieceWriter::resume() {
  SS_ASSERT(keep_bytes_.has_value());
  namespace fs = std::filesystem;
  const std::string name = fs::path(path_).filename().string() + ".";
  std::vector<std::string> left;
  std::error_code error;
  for (auto entry = fs::directory_iterator(fs::path(path_).parent_path(), error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path& path = entry->path();
    if (path.extension() == ".part" && path.filename().string().starts_with(name) && path != part_)
      left.push_back(path.string());
  }
  PieceFacts most;
  std::string from;
  for (const std::string& part : left)
    if (const PieceFacts facts = kept_facts(part); facts.bytes > most.bytes)
      most = facts, from = part;
  if (!from.empty()) {
    out_.close();
    fs::rename(from, part_, error);
    if (error) return Status(Code::io, "cannot go on with " + from + ": " + error.message());
    const Descriptor file(open_output(part_, Output::keep));
    if (file.fd < 0 || ftruncate(file.fd, static_cast<off_t>(sizeof most + most.bytes)) != 0)
      return output_error(part_, errno).in("cannot go on with " + from);
    out_.open(part_, Output::keep);
    bytes_ = kept_ = most.bytes;
    records_ = most.records;
  }
  for (const std::string& part : left) fs::remove(part, error);
  return records_;
}

Status PieceWriter::put_facts(PieceFacts facts) {
  facts.magic = kMagic;
  facts.bytes = bytes_;
  facts.records = records_;
  out_.seekp(0);
  out_ << bytes_of(facts);
  out_.seekp(0, std::ios::end);
  out_.flush();
  return out_.status();
}

/// The facts count only bytes that no crash of the machine takes away.
Status PieceWriter::keep() {
  out_.flush();
  SS_RETURN_IF_ERROR(out_.status());
  SS_RETURN_IF_ERROR(sync_path(part_));
  kept_ = bytes_;
  return put_facts({});
}

void PieceWriter::put(std::string_view bytes) {
  out_ << bytes;
  stored_.update(bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

Status PieceWriter::write(const TokenRecord& record) {
  SS_ASSERT(record.ids.size() < kMasked);
  const auto count = static_cast<uint32_t>(record.ids.size()) |
                     (record.begins_document ? kBegins : 0) | (record.masked.empty() ? 0 : kMasked);
  put(bytes_of(count));
  if (!record.masked.empty()) {
    put(bytes_of(static_cast<uint32_t>(record.masked.size())));
    for (const IndexRange& range : record.masked)
      put(bytes_of(
          StoredRange{static_cast<uint32_t>(range.begin), static_cast<uint32_t>(range.end)}));
  }
  put(narrow_.of(record.ids));
  ++records_;
  SS_RETURN_IF_ERROR(out_.status());
  return keep_bytes_ && bytes_ - kept_ >= *keep_bytes_ ? keep() : Status();
}

Status PieceWriter::finish(PieceFacts facts) {
  const bool synced = kept_ > 0;
  if (synced) SS_RETURN_IF_ERROR(keep());
  if (!synced) facts.stored = stored_.digest();
  SS_RETURN_IF_ERROR(put_facts(facts));
  out_.close();
  SS_RETURN_IF_ERROR(out_.status());
  if (synced) return publish_file(part_, path_);
  if (std::rename(part_.c_str(), path_.c_str()) == 0) return {};
  return system_error("cannot write", path_, errno);
}

Result<PieceReader> PieceReader::open(const std::string& path, int token_bytes) {
  SS_ASSIGN(InputFile file, InputFile::open(path));
  PieceFacts facts;
  if (file.bytes() < sizeof facts) return bad(path);
  SS_RETURN_IF_ERROR(file.read(0, &facts, sizeof facts));
  if (facts.magic != kMagic || facts.bytes != file.bytes() - sizeof facts) return bad(path);
  return PieceReader(std::move(file), facts, token_bytes);
}

Status PieceReader::check() const {
  if (facts_.stored == Hash128{}) return {};
  std::vector<char> piece(1 << 20);
  Hasher stored;
  for (uint64_t at = sizeof facts_; at < file_.bytes(); at += piece.size()) {
    const size_t count = std::min<uint64_t>(piece.size(), file_.bytes() - at);
    SS_RETURN_IF_ERROR(file_.read(at, piece.data(), count));
    stored.update(piece.data(), count);
  }
  return stored.digest() == facts_.stored ? Status() : bad(file_.path());
}

Status PieceReader::read_record(uint64_t& at) {
  const auto next = [&](auto& value) {
    if (file_.bytes() - at < sizeof value) return bad(file_.path());
    at += sizeof value;
    return file_.read(at - sizeof value, &value, sizeof value);
  };
  uint32_t count = 0, ranges = 0;
  SS_RETURN_IF_ERROR(next(count));
  record_.begins_document = (count & kBegins) != 0;
  if ((count & kMasked) != 0) SS_RETURN_IF_ERROR(next(ranges));
  count &= ~(kBegins | kMasked);
  record_.masked.clear();
  for (uint64_t end = 0; ranges > 0; --ranges) {
    StoredRange range;
    SS_RETURN_IF_ERROR(next(range));
    if (range.begin < end || range.begin >= range.end || range.end > count)
      return bad(file_.path());
    end = range.end;
    record_.masked.push_back({range.begin, range.end});
  }
  if (count > (file_.bytes() - at) / token_bytes_) return bad(file_.path());
  buffer_.resize(count * token_bytes_);
  SS_RETURN_IF_ERROR(file_.read(at, buffer_.data(), buffer_.size()));
  at += buffer_.size();
  record_.ids.assign(count, 0);
  for (size_t i = 0; i < count; ++i)
    std::memcpy(&record_.ids[i], buffer_.data() + i * token_bytes_, token_bytes_);
  return {};
}

}  // namespace simplescale
