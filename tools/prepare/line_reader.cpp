#include "tools/prepare/line_reader.hpp"

#include <archive.h>
#include <archive_entry.h>

#include <zlib.h>
#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/words.hpp"
#include "runtime/data/known_bytes.hpp"
#include "runtime/data/text_names.hpp"
#include "runtime/object_store/s3_url.hpp"

namespace simplescale {

namespace {

// Unpacks gzip. libarchive does it, too, but does not compare the checksums. One thread.

class Gunzip {
 public:
  /// next: gives packed bytes, valid until it is called again; none: the file has ended.
  explicit Gunzip(std::function<Result<std::span<char>>()> next);
  ~Gunzip();
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;

  /// Fills `out` with the next bytes of all members of the file; fewer: it has ended. Zeros behind
  /// a member are skipped. bad_data: it is no gzip, damaged or cut off; otherwise errors of next().
  Result<size_t> read(std::span<char> out);

 private:
  const std::function<Result<std::span<char>>()> next_;
  z_stream stream_{};
  bool inside_ = false;  // a member has begun and has not ended
  bool begun_ = false;   // a member has begun
};

Gunzip::Gunzip(std::function<Result<std::span<char>>()> next) : next_(std::move(next)) {
  constexpr int kGzip = 16;
  SS_ASSERT(inflateInit2(&stream_, MAX_WBITS + kGzip) == Z_OK);
}

Gunzip::~Gunzip() {
  inflateEnd(&stream_);
}

Result<size_t> Gunzip::read(std::span<char> out) {
  stream_.next_out = reinterpret_cast<Bytef*>(out.data());
  stream_.avail_out = static_cast<uInt>(out.size());
  while (stream_.avail_out > 0) {
    if (stream_.avail_in == 0) {
      SS_ASSIGN(const std::span<char> packed, next_());
      if (packed.empty() && inside_) return Status(Code::bad_data, "it is cut off");
      if (packed.empty()) break;
      stream_.next_in = reinterpret_cast<Bytef*>(packed.data());
      stream_.avail_in = static_cast<uInt>(packed.size());
    }
    if (!inside_ && begun_ && *stream_.next_in == 0) {
      ++stream_.next_in, --stream_.avail_in;
      continue;
    }
    if (!std::exchange(inside_, true) && begun_) inflateReset(&stream_);
    begun_ = true;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    inside_ = result != Z_STREAM_END;
    const bool no_header = stream_.total_in <= 2;
    if (inside_ && result != Z_OK)
      return Status(Code::bad_data, no_header     ? "by its name it is gzip, but it is not"
                                    : stream_.msg ? stream_.msg
                                                  : "zlib cannot unpack it");
  }
  return out.size() - stream_.avail_out;
}

constexpr size_t kReadBytes = 256 << 10;

constexpr uint64_t kAheadBytes = 32 << 20;
constexpr size_t kLongLine = 2 << 20;

std::string reason(archive* a, const std::string& path) {
  const char* error = archive_error_string(a);
  const std::string text = error ? error : "unknown error";
  if (text.find("requires too much memory") == text.npos) return text;
  return "its window is larger than 128 MiB (zstd --long=28 or more); compress it again: zstd -dc "
         "--long=31 " +
         path + " | zstd -o NEW";
}

/// The ending of files that begin with these bytes; "": it may be text.
std::string ending_of_bytes(std::string_view bytes) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, const char*> known[] = {{"\x1F\x8B\x08"sv, ".gz"},
                                                                {"\x28\xB5\x2F\xFD"sv, ".zst"},
                                                                {"\xFD\x37zXZ\0"sv, ".xz"},
                                                                {"PAR1\x15"sv, ".parquet"}};
  for (const auto& [begin, ending] : known)
    if (bytes.starts_with(begin)) return ending;
  return bytes.starts_with("BZh") && bytes.size() > 4 && bytes.substr(4).starts_with("1AY&SY")
             ? ".bz2"
             : "";
}

}  // namespace

/// What libarchive reads from front to back: the bytes of a file or an object, those of a .gz
/// unpacked.
struct LineReader::Input {
  std::shared_ptr<const DataFile> file;
  uint64_t at = 0, announced = 0;  // bytes of the file
  std::vector<char> piece = std::vector<char>(kReadBytes), unpacked;
  std::optional<Gunzip> gunzip;
  Status error;  // of the file

  Result<std::span<char>> next_piece() {
    const auto bytes = std::min<uint64_t>(piece.size(), file->bytes() - at);
    if (announced < at + kAheadBytes / 2 &&
        file->read_ahead(at, std::min(kAheadBytes, file->bytes() - at)))
      announced = at + kAheadBytes;
    error = file->read(at, piece.data(), bytes);
    SS_RETURN_IF_ERROR(error);
    at += bytes;
    return std::span(piece).first(bytes);
  }

  void unpack() {
    unpacked.resize(kReadBytes);
    gunzip.emplace([this] { return next_piece(); });
  }

  Result<std::span<char>> next() {
    if (!gunzip) return next_piece();
    SS_ASSIGN(const size_t bytes, gunzip->read(unpacked));
    return std::span(unpacked).first(bytes);
  }

  static la_ssize_t read(archive* a, void* self, const void** data) {
    const auto bytes = static_cast<Input*>(self)->next();
    if (!bytes.ok()) {
      archive_set_error(a, EIO, "%s", bytes.status().message().c_str());
      return -1;
    }
    *data = bytes->data();
    return static_cast<la_ssize_t>(bytes->size());
  }
};

void LineReader::forget_long_line() {
  if (!permit_ || ++lines_since_ < 2) return;
  buffer_.erase(0, begin_);
  buffer_.shrink_to_fit();
  end_ -= std::exchange(begin_, 0);
  permit_.reset();
}

void LineReader::Close::operator()(archive* a) const {
  archive_read_free(a);
}

Result<LineReader> LineReader::open(const std::string& path, size_t line_bytes_max,
                                    const DataFiles& files, const std::string& folder) {
  LineReader reader;
  reader.path_ = path;
  reader.line_bytes_max_ = line_bytes_max;
  reader.archive_.reset(archive_read_new());
  archive* a = reader.archive_.get();
  archive_read_support_format_raw(a);
  archive_read_support_format_empty(a);
  // By name only: plain text may begin like a compressed file.
  if (has_ending(path, ".zst")) archive_read_support_filter_zstd(a);
  if (has_ending(path, ".xz")) archive_read_support_filter_xz(a);
  if (has_ending(path, ".bz2")) archive_read_support_filter_bzip2(a);
  auto file = files.open(path, folder);
  if (!file.ok())
    return is_s3_url(path) ? file.status() : Status(Code::bad_data, file.status().message());
  reader.input_ = std::make_shared<Input>();
  reader.input_->file = file.take();
  if (without_compression(path) != path && reader.input_->file->bytes() == 0)
    return bad_data(path, "it is compressed by its name, and has 0 bytes: it was cut off");
  if (has_ending(path, ".gz")) reader.input_->unpack();
  archive_entry* entry = nullptr;
  const int opened = archive_read_open(a, reader.input_.get(), nullptr, Input::read, nullptr);
  const int header = opened == ARCHIVE_OK ? archive_read_next_header(a, &entry) : opened;
  if (header != ARCHIVE_OK && header != ARCHIVE_EOF) return reader.failed("cannot read it");
  if (header == ARCHIVE_OK && without_compression(path) != path && !has_ending(path, ".gz") &&
      archive_filter_count(a) < 2)
    return bad_data(path, "its name says that it is compressed, but it is not");
  reader.ended_ = header == ARCHIVE_EOF;  // an empty file
  if (reader.ended_) SS_RETURN_IF_ERROR(reader.check_end());
  return reader;
}

Status LineReader::failed(const std::string& what) const {
  if (!input_->error.ok()) return input_->error;
  return bad_data(path_, what + ": " + reason(archive_.get(), path_));
}

uint64_t LineReader::file_bytes_read() const {
  return input_->at;
}

Status LineReader::fill() {
  buffer_.erase(0, begin_);
  begin_ = end_ = 0;
  const size_t before = buffer_.size();
  buffer_.resize(before + kReadBytes);
  const ssize_t got = archive_read_data(archive_.get(), buffer_.data() + before, kReadBytes);
  buffer_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0) return failed("behind line " + std::to_string(number_) + ": cannot read on");
  ended_ = got == 0;
  return ended_ ? check_end() : Status();
}

/// libarchive, as bzip2 does, ends without a word where no further stream begins. Zeros may fill the
/// block of a tape.
Status LineReader::check_end() {
  if (!has_ending(path_, ".bz2")) return {};
  const auto end = static_cast<uint64_t>(archive_filter_bytes(archive_.get(), -1));
  const DataFile& file = *input_->file;
  std::vector<char> rest(kReadBytes);
  for (uint64_t at = end; at < file.bytes(); at += rest.size()) {
    rest.resize(std::min<uint64_t>(rest.size(), file.bytes() - at));
    SS_RETURN_IF_ERROR(file.read(at, rest.data(), rest.size()));
    if (std::ranges::any_of(rest, [](char c) { return c != 0; }))
      return bad_data(path_, "from byte " + std::to_string(end) +
                                 " on it is no .bz2: it was cut off or damaged there");
  }
  return {};
}

Result<bool> LineReader::next(std::string_view& line) {
  byte_ += end_ - begin_;
  begin_ = end_;
  forget_long_line();
  while (too_long_) {
    const size_t newline = buffer_.find('\n', begin_);
    end_ = newline == buffer_.npos ? buffer_.size() : newline + 1;
    byte_ += end_ - begin_;
    begin_ = end_;
    too_long_ = false;
    if (newline != buffer_.npos || ended_) break;
    SS_RETURN_IF_ERROR(fill());
    too_long_ = true;
  }
  for (size_t scanned = begin_;;) {
    size_t newline = buffer_.find('\n', scanned);
    const bool last = newline == buffer_.npos && ended_;
    if (last && begin_ == buffer_.size()) return false;
    if (last) newline = buffer_.size() - 1;
    if (newline != buffer_.npos && newline - begin_ < line_bytes_max_) {
      end_ = newline + 1;
      ++number_;
      line = std::string_view(buffer_).substr(begin_, end_ - begin_);
      if (number_ == 1 && (line.starts_with("\xFF\xFE") || line.starts_with("\xFE\xFF")))
        return bad_data(path_, "it is UTF-16; convert it: iconv -f utf-16 -t utf8");
      if (const std::string ending = number_ == 1 ? ending_of_bytes(line) : ""; !ending.empty())
        return bad_data(path_,
                        without_compression(path_) != path_
                            ? "it holds no text, but a " + ending + " file: unpack it once"
                        : path_.ends_with(ending)
                            ? "it is a " + ending + " file, but only lines of text are read here"
                            : "it is no text, but a " + ending +
                                  " file by its first bytes: give its name that ending");
      if (const std::string_view kind = number_ == 1 ? kind_of_bytes(line) : "";
          !kind.empty() && is_binary(line.substr(0, kKnownBytes)))
        return bad_data(path_, "it holds no text: by its first bytes it is " + std::string(kind));
      return true;
    }
    if (buffer_.size() - begin_ >= line_bytes_max_) {
      too_long_ = true;
      ++number_;
      return bad_data(path_, "line " + std::to_string(number_) + ": it is longer than " +
                                 std::to_string(line_bytes_max_ >> 20) +
                                 " MiB (it begins at byte " + std::to_string(byte_) +
                                 "); is this text? Then put newlines into it");
    }
    scanned = buffer_.size() - begin_;
    if (scanned > kLongLine) {
      if (!permit_) permit_ = std::make_unique<MemoryPermit>();
      lines_since_ = 0;
    }
    SS_RETURN_IF_ERROR(fill());
  }
}

}  // namespace simplescale
