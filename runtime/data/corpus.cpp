#include "runtime/data/corpus.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "runtime/base/hash.hpp"
#include "runtime/base/run_command.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

constexpr const char* bible_source = "debian:bible-kjv";
constexpr const char* not_installed = "it is not installed: apt-get install bible-kjv";
constexpr uint64_t bible_verses = 31'102;
constexpr std::string_view separator = "<|endoftext|>";
constexpr size_t chunk_bytes = 16 << 10;
constexpr size_t line_bytes_max = 16 << 20;

Status bad(const std::string& path, const std::string& what) {
  return Status(Code::bad_data, path + ": " + what);
}

struct Mapping {
  void* data = nullptr;
  size_t bytes = 0;
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data) munmap(data, bytes);
  }
  std::string_view text() const { return {static_cast<const char*>(data), bytes}; }
};

Status map_text(const std::string& path, Mapping& mapping) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  int error = fd < 0 || fstat(fd, &info) != 0 ? errno : 0;
  if (error == 0 && info.st_size > 0) {
    mapping.bytes = static_cast<size_t>(info.st_size);
    void* data = mmap(nullptr, mapping.bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED)
      error = errno;
    else
      mapping.data = data;
  }
  if (fd >= 0) ::close(fd);
  return error == 0 ? Status() : bad(path, std::string("cannot read it: ") + std::strerror(error));
}

using Take = std::function<Status(TextChunk, size_t end)>;  // end: of the chunk in the text

/// Splits the document [begin, end) of a text into chunks at newlines.
Status cut_document(const std::string& path, std::string_view text, size_t begin, size_t end,
                    const Take& take) {
  constexpr std::string_view blank = " \t\r\n";
  begin = text.find_first_not_of(blank, begin);
  if (begin >= end) return {};
  end = text.find_last_not_of(blank, end - 1) + 1;
  for (bool first = true; begin < end; first = false) {
    const size_t cut = std::min(text.find('\n', std::min(begin + chunk_bytes, end)), end);
    if (cut - begin > line_bytes_max)
      return bad(path,
                 "byte " + std::to_string(begin) + ": a line is longer than 16 MiB; is this text?");
    SS_RETURN_IF_ERROR(take({first, std::string(text.substr(begin, cut - begin))}, cut));
    begin = cut;
  }
  return {};
}

/// Splits a text into documents at separator lines, and these into chunks.
Status cut_text(const std::string& path, std::string_view text, const Take& take) {
  if (const size_t at = first_invalid_utf8(text); at < text.size())
    return bad(path, "byte " + std::to_string(at) +
                         ": not UTF-8; convert it, for instance with iconv -f latin1 -t utf8");
  size_t begin = text.substr(0, 3) == "\xEF\xBB\xBF" ? 3 : 0;  // a byte-order mark
  for (size_t at = begin; (at = text.find(separator, at)) != text.npos;) {
    const size_t behind = at + separator.size();
    const bool alone = (at == 0 || text[at - 1] == '\n') &&
                       (behind == text.size() || text[behind] == '\n' || text[behind] == '\r');
    if (alone) SS_RETURN_IF_ERROR(cut_document(path, text, begin, at, take));
    if (alone) begin = behind;
    at = behind;
  }
  return cut_document(path, text, begin, text.size(), take);
}

Result<std::string> read_bible() {
  const auto program = run_command({"bible", "-f", "gen1:1-rev22:21"}, 30'000,
                                   {.with_stderr = false, .bytes_max = 64 << 20});
  if (program.status().code() == Code::not_found) return bad(bible_source, not_installed);
  if (!program.ok()) return bad(bible_source, program.status().message());
  if (program->code != 0)
    return bad(bible_source, "bible ended with exit code " + std::to_string(program->code));
  return bible_prose(program->output);
}

Result<std::vector<std::string>> list_files(const std::string& source) {
  std::error_code error;
  if (!fs::is_directory(source, error)) {
    if (fs::is_regular_file(source, error)) return std::vector{source};
    return bad(source, "there is no such text file or folder");
  }
  std::vector<std::string> files;
  auto entry = fs::recursive_directory_iterator(source, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error))
    if (entry->path().extension() == ".txt" && entry->is_regular_file(error))
      files.push_back(entry->path().string());
  if (error) return bad(source, "cannot read the folder: " + error.message());
  if (files.empty()) return bad(source, "no text was found, the folder holds no .txt files");
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Result<Corpus> Corpus::open(const std::string& source) {
  Corpus corpus;
  corpus.source_ = source;
  std::vector<std::string> files = {"/usr/lib/bible.data"};
  if (source != bible_source) {
    if (source.starts_with("debian:"))
      return bad(source, "unknown package; only debian:bible-kjv is supported");
    SS_ASSIGN(files, list_files(source));
    corpus.files_ = files;
  } else if (access(files[0].c_str(), R_OK) != 0) {
    return bad(source, not_installed);
  }
  Hasher hasher;
  for (const std::string& file : files) {
    struct stat info {};
    if (stat(file.c_str(), &info) != 0)
      return bad(file, std::string("cannot read it: ") + std::strerror(errno));
    const int64_t facts[] = {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
    // The same folder under another name, or on another path, is the same text.
    const fs::path inside = fs::path(file).lexically_relative(source);
    const std::string name = inside.empty() ? file : inside.string();
    hasher.update(name.c_str(), name.size() + 1);
    hasher.update(facts, sizeof facts);
    corpus.bytes_ += static_cast<uint64_t>(info.st_size);
  }
  corpus.signature_ = hasher.digest().hex();
  return corpus;
}

Status Corpus::read(const std::function<Status(TextChunk, double)>& take) const {
  uint64_t before = 0, total = bytes_;
  bool any = false;
  const Take take_part = [&](TextChunk chunk, size_t end) {
    any = true;
    return take(std::move(chunk),
                std::min(1.0, static_cast<double>(before + end) / static_cast<double>(total)));
  };
  if (source_ == bible_source) {
    SS_ASSIGN(const std::string text, read_bible());
    total = text.size();
    return cut_text(source_, text, take_part);
  }
  for (const std::string& file : files_) {
    Mapping mapping;
    SS_RETURN_IF_ERROR(map_text(file, mapping));
    SS_RETURN_IF_ERROR(cut_text(file, mapping.text(), take_part));
    before += mapping.bytes;
  }
  return any ? Status() : bad(source_, "it holds no text");
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
      return bad(bible_source,
                 "line " + std::to_string(count + 1) + " of the program's output is not a verse");
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
    return bad(bible_source, "the program printed " + std::to_string(count) + " verses of 31102");
  return text + "\n";
}

size_t first_invalid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const size_t size = text.size();
  size_t i = 0;
  while (i < size) {
    uint64_t eight = 0;
    if (i + 8 <= size) {
      std::memcpy(&eight, bytes + i, 8);
      if ((eight & 0x8080808080808080u) == 0) {  // eight ASCII characters at once
        i += 8;
        continue;
      }
    }
    const unsigned char lead = bytes[i];
    const size_t length = lead < 0x80                    ? 1
                          : lead >= 0xC2 && lead <= 0xDF ? 2
                          : (lead & 0xF0) == 0xE0        ? 3
                          : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                         : 0;
    if (length == 0 || i + length > size) return i;
    for (size_t k = 1; k < length; ++k)
      if ((bytes[i + k] & 0xC0) != 0x80) return i;
    // Overlong forms, surrogates and code points beyond U+10FFFF.
    if (length > 2) {
      const unsigned char second = bytes[i + 1];
      if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
          (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F))
        return i;
    }
    i += length;
  }
  return size;
}

}  // namespace simplescale
