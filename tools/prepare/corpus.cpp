#include "tools/prepare/corpus.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/run_command.hpp"
#include "runtime/base/words.hpp"
#include "runtime/data/folder_files.hpp"
#include "runtime/data/text_names.hpp"
#include "runtime/object_store/s3_url.hpp"
#include "tools/prepare/json_row.hpp"
#include "tools/prepare/line_reader.hpp"
#include "tools/prepare/parquet/library.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

constexpr const char* bible_source = "debian:bible-kjv";
constexpr const char* not_installed = "it is not installed: apt-get install bible-kjv";
constexpr uint64_t bible_verses = 31'102;
constexpr std::string_view separator = "<|endoftext|>";
constexpr size_t chunk_bytes = 16 << 10;
constexpr size_t text_line_max = 16 << 20, json_line_max = 64 << 20;

constexpr std::string_view blank = " \t\r\n";

/// Cuts documents into chunks at newlines: a chunk ends at the first newline behind chunk_bytes.
class Cutter {
 public:
  /// trims: blanks at both ends of a document do not count.
  Cutter(bool trims, std::function<Status(TextChunk)> take)
      : trims_(trims), take_(std::move(take)) {}

  /// text: of the current document; the pieces of a document end at newlines.
  /// masked: bytes of `text`.
  Status add(std::string_view text, IndexRanges masked = {}) {
    if (trims_ && text_.empty()) {
      const size_t blanks = std::min(text.find_first_not_of(blank), text.size());
      if (!masked.empty()) masked = cut_ranges(masked, blanks, text.size());
      text.remove_prefix(blanks);
    }
    append_ranges(masked_, masked, text_.size());
    text_ += text;
    // No chunk can end before blanks: do not look for one again with each of many empty lines.
    if (trims_ && text.find_first_not_of(blank) == text.npos) return {};
    size_t begin = 0;
    while (text_.size() - begin > chunk_bytes) {
      const size_t cut = text_.find('\n', begin + chunk_bytes);
      if (cut == text_.npos) break;
      // A chunk that only blanks follow may be the document's last one.
      if (trims_ && text_.find_first_not_of(blank, cut) == text_.npos) break;
      SS_RETURN_IF_ERROR(emit(begin, cut));
      begin = cut;
    }
    if (begin > 0 && !masked_.empty()) masked_ = cut_ranges(masked_, begin, text_.size());
    text_.erase(0, begin);
    return {};
  }

  Status end_document() {
    if (trims_) text_.resize(text_.find_last_not_of(blank) + 1);  // npos + 1 = 0: only blanks
    const Status done = text_.empty() ? Status() : emit(0, text_.size());
    text_.clear();
    if (text_.capacity() > kKept) text_.shrink_to_fit();
    masked_.clear();
    begins_ = true;
    return done;
  }

 private:
  static constexpr size_t kKept = 1 << 20;  // of memory for the next document
  Status emit(size_t begin, size_t end) {
    return take_({std::exchange(begins_, false), text_.substr(begin, end - begin),
                  masked_.empty() ? IndexRanges() : cut_ranges(masked_, begin, end)});
  }
  const bool trims_;
  const std::function<Status(TextChunk)> take_;
  std::string text_;    // of the document, behind its last chunk
  IndexRanges masked_;  // bytes of text_
  bool begins_ = true;
};

bool is_separator(std::string_view line) {
  while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
  return line == separator;
}

/// What data.text_key and data.loss_mask_key are. Without the latter, as in earlier versions.
void add_keys(Hasher& hasher, const CorpusOptions& options) {
  hasher.update(options.text_key.data(), options.text_key.size());
  if (options.mask_key.empty()) return;
  hasher.update("", 1);
  hasher.update(options.mask_key.data(), options.mask_key.size());
}

/// Decides what happens to bad lines.
class BadLines {
 public:
  /// before: those that were left out of other files.
  BadLines(uint64_t allowed, uint64_t before) : allowed_(allowed), count_(before) {}
  uint64_t count() const { return count_; }
  Status leave_out(const Status& why) {
    if (++count_ > allowed_)
      return Status(why.code(), why.message() + "; data.skip_bad = " +
                                    (allowed_ == 0 ? "N leaves out up to N bad lines"
                                                   : std::to_string(allowed_) +
                                                         " bad lines were left out before"));
    constexpr uint64_t kLogged = 10;
    if (count_ <= kLogged) log::warn("left out: {}", why.message());
    if (count_ == kLogged) log::warn("further bad lines are not logged");
    return {};
  }

 private:
  const uint64_t allowed_;
  uint64_t count_;
};

/// LineReader::next(), but lines that are too long are bad lines.
Result<bool> next_line(LineReader& lines, BadLines& bad_lines, std::string_view& line) {
  while (true) {
    auto more = lines.next(line);
    if (more.ok() || !lines.too_long()) return more;
    SS_RETURN_IF_ERROR(bad_lines.leave_out(more.status()));
  }
}

Status read_json_lines(LineReader& lines, const CorpusOptions& options, BadLines& bad_lines,
                       Cutter& cutter) {
  for (std::string_view line;;) {
    SS_ASSIGN(const bool more, next_line(lines, bad_lines, line));
    if (!more) return {};
    if (line.find_first_not_of(blank) == line.npos) continue;
    line.remove_suffix(line.size() - line.find_last_not_of(blank) - 1);
    auto row = read_json_row(line, options.text_key, options.mask_key);
    if (!row.ok()) {
      SS_RETURN_IF_ERROR(bad_lines.leave_out(bad_data(
          lines.path(), "line " + std::to_string(lines.number()) + ": " + row.status().message())));
      continue;
    }
    SS_RETURN_IF_ERROR(cutter.add(row->text, std::move(row->masked)));
    SS_RETURN_IF_ERROR(cutter.end_document());
  }
}

/// The masked bytes of a row's text. bad_data says what is wrong with the row.
Result<IndexRanges> masked_of(const ParquetRow& row, const std::string& mask_key) {
  if (!row.text) return Status(Code::bad_data, "it has no text");
  if (const size_t at = first_invalid_utf8(*row.text); at < row.text->size())
    return Status(Code::bad_data, "byte " + std::to_string(at) + ": not UTF-8");
  return row.mask.empty() ? IndexRanges() : read_json_mask(row.mask, mask_key, *row.text);
}

/// on_row: called for each row that has been read.
Status read_parquet(ParquetRows& rows, const std::string& path, const CorpusOptions& options,
                    BadLines& bad_lines, Cutter& cutter, const std::function<void()>& on_row) {
  for (ParquetRow row;;) {
    SS_ASSIGN(const bool more, rows.next(row));
    if (!more) return {};
    on_row();
    auto masked = masked_of(row, options.mask_key);
    if (!masked.ok()) {
      SS_RETURN_IF_ERROR(bad_lines.leave_out(bad_data(
          path, "row " + std::to_string(rows.number()) + ": " + masked.status().message())));
      continue;
    }
    SS_RETURN_IF_ERROR(cutter.add(*row.text, masked.take()));
    SS_RETURN_IF_ERROR(cutter.end_document());
  }
}

Status read_text_lines(LineReader& lines, BadLines& bad_lines, Cutter& cutter) {
  for (std::string_view line;;) {
    SS_ASSIGN(const bool more, next_line(lines, bad_lines, line));
    if (!more) return {};
    if (lines.number() == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (const size_t at = first_invalid_utf8(line); at < line.size()) {
      SS_RETURN_IF_ERROR(bad_lines.leave_out(bad_data(
          lines.path(), "line " + std::to_string(lines.number()) + ", byte " + std::to_string(at) +
                            ": not UTF-8 (iconv -f latin1 -t utf8 converts Latin-1)")));
      continue;
    }
    SS_RETURN_IF_ERROR(is_separator(line) ? cutter.end_document() : cutter.add(line));
  }
}

Result<std::string> read_bible() {
  const auto program =
      run_command({"bible", "-f", "gen1:1-rev22:21"}, 30'000,
                  {.with_stderr = false, .bytes_max = 64 << 20, .inherits = Inherits::needed});
  if (program.status().code() == Code::not_found) return bad_data(bible_source, not_installed);
  if (!program.ok()) return bad_data(bible_source, program.status().message());
  if (program->code != 0)
    return bad_data(bible_source, "bible ended with exit code " + std::to_string(program->code));
  return bible_prose(program->output);
}

/// left_out: what the folder holds instead.
Status no_text_in(const std::string& folder, const std::vector<std::string>& left_out) {
  return bad_data(
      folder,
      "no text was found, the folder holds no .txt, .jsonl or .parquet files (.gz, .zst, "
      ".xz, .bz2)" +
          (left_out.empty() ? "" : "; " + counted_files(folder, left_out, "not read")));
}

/// The size of a file, and what changes with its contents: its time, or the etag of an object.
struct FileFacts {
  uint64_t bytes = 0;
  std::string version;
};

Result<FileFacts> facts_of(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0)
    return bad_data(path, std::string("cannot read it: ") + std::strerror(errno));
  const int64_t facts[] = {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
  return FileFacts{static_cast<uint64_t>(info.st_size),
                   std::string(reinterpret_cast<const char*>(facts), sizeof facts)};
}

/// The objects of a source in a bucket. left_out: those that are not read.
Result<std::map<std::string, FileFacts>> list_bucket(const std::string& path,
                                                     const DataFiles& files,
                                                     std::vector<std::string>& left_out) {
  std::map<std::string, FileFacts> found;
  const bool folder = files.is_folder(path);
  if (folder) left_out = files.odd(path);
  for (const DataFiles::Object& object : files.listed(path)) {
    const bool hidden = object.path.find("/.", path.size() - 1) != path.npos;
    if (folder ? is_text_file(object.path) && !hidden : object.path == path)
      found[object.path] = {object.bytes, std::to_string(object.bytes) + object.etag};
    else if (folder)
      left_out.push_back(object.path);
  }
  if (found.empty() && folder) return no_text_in(path, left_out);
  if (found.empty()) return bad_data(path, "there is no such text file or folder");
  return found;
}

/// left_out: what is not read of a folder. again: what is read by another name, too.
Result<std::vector<std::string>> list_files(const std::string& source,
                                            std::vector<std::string>& left_out,
                                            std::vector<std::string>& again) {
  std::error_code error;
  if (!fs::is_directory(source, error)) {
    if (fs::is_regular_file(source, error)) return std::vector{source};
    return bad_data(source, "there is no such text file or folder");
  }
  SS_ASSIGN(FolderFiles all, list_folder(source, Below::yes));
  std::vector<std::string> files;
  left_out = std::move(all.others);
  std::ranges::copy_if(all.again, std::back_inserter(again), is_text_file);
  for (const std::string& path : all.linked)
    if (is_text_file(path))
      SS_RETURN_IF_ERROR(InputFile::open_inside(source, path, LinksOut::own).status());
  for (std::string& path : all.files)
    (is_text_file(path) ? files : left_out).push_back(std::move(path));
  if (files.empty()) return no_text_in(source, left_out);
  return files;
}

}  // namespace

Result<Corpus> Corpus::open(const std::string& source, CorpusOptions options) {
  Corpus corpus;
  corpus.options_ = std::move(options);
  corpus.source_ = source;
  std::vector<std::string> files = {"/usr/lib/bible.data"};
  std::map<std::string, FileFacts> objects;
  if (is_s3_url(source)) {
    SS_ASSIGN(corpus.source_, corpus.options_.files.find(source));
    SS_ASSIGN(objects, list_bucket(corpus.source_, corpus.options_.files, corpus.left_out_));
    files.clear();
    for (const auto& [path, facts] : objects) files.push_back(path);
  } else if (source != bible_source) {
    if (source.starts_with("debian:"))
      return bad_data(source, "unknown package; only debian:bible-kjv is supported");
    SS_ASSIGN(files, list_files(source, corpus.left_out_, corpus.again_));
  } else if (access(files[0].c_str(), R_OK) != 0) {
    return bad_data(source, not_installed);
  }
  Hasher hasher;
  for (const std::string& file : files) {
    FileFacts facts;
    if (const auto object = objects.find(file); object != objects.end()) {
      facts = object->second;
    } else {
      SS_ASSIGN(facts, facts_of(file));
    }
    // The same folder under another name, or on another path, is the same text.
    const fs::path inside = fs::path(file).lexically_relative(corpus.source_);
    const std::string name = inside.empty() ? file : inside.string();
    Hasher own;
    for (Hasher* each : {&hasher, &own}) {
      each->update(name.c_str(), name.size() + 1);
      each->update(facts.version.data(), facts.version.size());
    }
    if (has_text_key(file)) add_keys(own, corpus.options_);
    const std::string shown = name == "." ? file : name;  // the source is this file
    corpus.files_.push_back({file, shown, own.digest().hex(), facts.bytes});
    corpus.bytes_ += facts.bytes;
  }
  if (std::ranges::any_of(files, has_text_key)) add_keys(hasher, corpus.options_);
  corpus.signature_ = hasher.digest().hex();
  return corpus;
}

std::vector<std::string> Corpus::notes() const {
  std::vector<std::string> lines;
  if (!left_out_.empty())
    lines.push_back(source_ + ": " + counted_files(source_, left_out_, "not read") +
                    " (text is read from .txt, .jsonl, .ndjson and .parquet files, also .gz, "
                    ".zst, .xz and .bz2)");
  if (!again_.empty())
    lines.push_back(source_ + ": " +
                    counted_files(source_, again_, "read more than once, by links to files"));
  return lines;
}

Result<uint64_t> Corpus::read(const std::function<Status(TextChunk, double)>& take) const {
  uint64_t done = 0, bad_lines = 0;
  bool any = false;
  for (size_t file = 0; file < files(); ++file) {
    SS_ASSIGN(const uint64_t more, read_file(file, bad_lines, [&](TextChunk chunk, uint64_t read) {
                any = true;
                const auto now = static_cast<double>(done + read);
                return take(std::move(chunk), std::min(1.0, now / static_cast<double>(bytes_)));
              }));
    bad_lines += more;
    done += bytes(file);
  }
  if (!any) return no_text();
  return bad_lines;
}

Status Corpus::no_text() const {
  return bad_data(source_, "it holds no text");
}

Result<uint64_t> Corpus::read_file(size_t file, uint64_t bad_before,
                                   const std::function<Status(TextChunk, uint64_t)>& take) const {
  const std::string& path = files_[file].path;
  std::optional<LineReader> lines;
  uint64_t done = 0;
  Cutter cutter(!has_text_key(path), [&](TextChunk chunk) {
    return take(std::move(chunk), lines ? lines->file_bytes_read() : done);
  });
  if (source_ == bible_source) {
    SS_ASSIGN(const std::string text, read_bible());
    for (size_t at = 0, end = 0; at < text.size(); at = end) {
      end = std::min(text.find('\n', at), text.size() - 1) + 1;
      done = bytes_ * at / text.size();
      const auto line = std::string_view(text).substr(at, end - at);
      SS_RETURN_IF_ERROR(is_separator(line) ? cutter.end_document() : cutter.add(line));
    }
    SS_RETURN_IF_ERROR(cutter.end_document());
    return uint64_t{0};
  }
  // A link may have been planted since the folder was listed.
  const std::string folder = path == source_ ? "" : source_;
  BadLines bad_lines(options_.skip_bad, bad_before);
  if (is_parquet(path)) {
    SS_ASSIGN(auto opened, options_.files.open(path, folder));
    SS_ASSIGN(const auto rows,
              open_parquet(std::move(opened), options_.text_key, options_.mask_key));
    SS_RETURN_IF_ERROR(read_parquet(*rows, path, options_, bad_lines, cutter, [&] {
      done = bytes(file) * rows->number() / std::max<uint64_t>(1, rows->rows());
    }));
    return bad_lines.count() - bad_before;
  }
  const bool json = is_json_lines(path);
  SS_ASSIGN(LineReader opened,
            LineReader::open(path, json ? json_line_max : text_line_max, options_.files, folder));
  lines.emplace(std::move(opened));
  SS_RETURN_IF_ERROR(json ? read_json_lines(*lines, options_, bad_lines, cutter)
                          : read_text_lines(*lines, bad_lines, cutter));
  SS_RETURN_IF_ERROR(cutter.end_document());
  return bad_lines.count() - bad_before;
}

Result<std::string> bible_prose(const std::string& verses) {
  std::string text;
  std::string_view book, chapter;  // "1Sa", "1Sa12"
  uint64_t count = 0;
  const std::string_view all = verses;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size());
    const std::string_view line = all.substr(at, end - at);
    at = end + 1;
    if (line.empty()) continue;
    const size_t colon = line.find(':'), blank = line.find(' ');  // "1Sa12:3 And ..."
    if (colon == line.npos || blank == line.npos || colon > blank)
      return bad_data(bible_source, "line " + std::to_string(count + 1) +
                                        " of the program's output is not a verse");
    const std::string_view this_chapter = line.substr(0, colon);
    const std::string_view this_book =
        this_chapter.substr(0, this_chapter.find_last_not_of("0123456789") + 1);
    if (count > 0 && this_book != book)
      text.append("\n").append(separator).append("\n");
    else if (count > 0)
      text += this_chapter == chapter ? ' ' : '\n';
    text += line.substr(blank + 1);
    book = this_book;
    chapter = this_chapter;
    ++count;
  }
  if (count != bible_verses)
    return bad_data(bible_source,
                    "the program printed " + std::to_string(count) + " verses of 31102");
  return text + "\n";
}

}  // namespace simplescale
