#include "runtime/data/line_reader.hpp"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "runtime/object_store/s3_url.hpp"

namespace simplescale {

namespace {

constexpr size_t kReadBytes = 256 << 10;

Status bad(const std::string& path, const std::string& what) {
  return Status(Code::bad_data, path + ": " + what);
}

constexpr uint64_t kAheadBytes = 32 << 20;

std::string reason(archive* a) {
  const char* text = archive_error_string(a);
  return text ? text : "unknown error";
}

}  // namespace

std::string_view without_compression(std::string_view name) {
  for (const std::string_view suffix : {".gz", ".zst", ".xz", ".bz2"})
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  return name;
}

/// An object that libarchive reads from front to back.
struct LineReader::Input {
  std::shared_ptr<const DataFile> file;
  uint64_t at = 0, announced = 0;
  std::vector<char> piece = std::vector<char>(kReadBytes);

  static la_ssize_t read(archive* a, void* self, const void** data) {
    Input& in = *static_cast<Input*>(self);
    const uint64_t bytes = std::min<uint64_t>(in.piece.size(), in.file->bytes() - in.at);
    if (in.announced < in.at + kAheadBytes / 2 &&
        in.file->read_ahead(in.at, std::min(kAheadBytes, in.file->bytes() - in.at)))
      in.announced = in.at + kAheadBytes;
    if (const Status read = in.file->read(in.at, in.piece.data(), bytes); !read.ok()) {
      archive_set_error(a, EIO, "%s", read.message().c_str());
      return -1;
    }
    in.at += bytes;
    *data = in.piece.data();
    return static_cast<la_ssize_t>(bytes);
  }
};

void LineReader::Close::operator()(archive* a) const {
  archive_read_free(a);
}

Result<LineReader> LineReader::open(const std::string& path, size_t line_bytes_max,
                                    const DataFiles& files) {
  LineReader reader;
  reader.path_ = path;
  reader.line_bytes_max_ = line_bytes_max;
  reader.archive_.reset(archive_read_new());
  archive* a = reader.archive_.get();
  archive_read_support_format_raw(a);
  archive_read_support_format_empty(a);
  // By name only: plain text may begin like a compressed file.
  if (path.ends_with(".gz")) archive_read_support_filter_gzip(a);
  if (path.ends_with(".zst")) archive_read_support_filter_zstd(a);
  if (path.ends_with(".xz")) archive_read_support_filter_xz(a);
  if (path.ends_with(".bz2")) archive_read_support_filter_bzip2(a);
  archive_entry* entry = nullptr;
  int opened = 0;
  if (is_s3_url(path)) {
    SS_ASSIGN(auto file, files.open(path));
    reader.input_ = std::make_shared<Input>(Input{.file = std::move(file)});
    opened = archive_read_open(a, reader.input_.get(), nullptr, Input::read, nullptr);
  } else {
    opened = archive_read_open_filename(a, path.c_str(), kReadBytes);
  }
  if (opened != ARCHIVE_OK) return bad(path, "cannot read it: " + reason(a));
  const int header = archive_read_next_header(a, &entry);
  if (header == ARCHIVE_EOF)
    reader.ended_ = true;  // an empty file
  else if (header != ARCHIVE_OK)
    return bad(path, "cannot read it: " + reason(a));
  else if (without_compression(path) != path && archive_filter_count(a) < 2)
    return bad(path, "its name says that it is compressed, but it is not");
  return reader;
}

uint64_t LineReader::file_bytes_read() const {
  return static_cast<uint64_t>(std::max<int64_t>(archive_filter_bytes(archive_.get(), -1), 0));
}

Result<bool> LineReader::next(std::string_view& line) {
  byte_ += end_ - begin_;
  begin_ = end_;
  for (size_t scanned = begin_;;) {
    size_t newline = buffer_.find('\n', scanned);
    const bool last = newline == buffer_.npos && ended_;
    if (last && begin_ == buffer_.size()) return false;
    if (last) newline = buffer_.size() - 1;
    if (newline != buffer_.npos && newline - begin_ < line_bytes_max_) {
      end_ = newline + 1;
      ++number_;
      line = std::string_view(buffer_).substr(begin_, end_ - begin_);
      return true;
    }
    if (buffer_.size() - begin_ >= line_bytes_max_)
      return bad(path_, "byte " + std::to_string(byte_) + ": a line is longer than " +
                            std::to_string(line_bytes_max_ >> 20) + " MiB; is this text?");
    buffer_.erase(0, begin_);
    begin_ = end_ = 0;
    scanned = buffer_.size();
    buffer_.resize(scanned + kReadBytes);
    const ssize_t got = archive_read_data(archive_.get(), buffer_.data() + scanned, kReadBytes);
    buffer_.resize(scanned + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0)
      return bad(path_, "behind line " + std::to_string(number_) +
                            ": cannot read on: " + reason(archive_.get()));
    ended_ = got == 0;
  }
}

}  // namespace simplescale
