#include "tools/http/lines.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"

namespace simplescale {

namespace {

constexpr size_t kBytesMax = 1 << 20;
constexpr size_t kSpreadLinesMax = 2500;
constexpr size_t kSpreadBytesMax = 16 << 20;

size_t size_of(std::ifstream& file) {
  return static_cast<size_t>(std::max<std::streamoff>(0, file.seekg(0, std::ios::end).tellg()));
}

/// Offset of the first line that begins at `at` or later; `size` without one.
size_t line_from(std::ifstream& file, size_t at, size_t size) {
  if (at == 0 || at >= size) return std::min(at, size);
  file.seekg(static_cast<std::streamoff>(at - 1));
  std::string rest;
  return next_line(file, rest, kBytesMax) && !file.eof() ? at + rest.size() : size;
}

/// About `count` complete lines, spread evenly over the bytes of a file, and the offset behind the
/// last of them. Ends before a line that is too long.
std::pair<std::string, size_t> spread_lines(std::ifstream& file, size_t size, size_t count) {
  std::string text, line;
  size_t next = 0;
  for (size_t i = 0; i < count && text.size() < kSpreadBytesMax; ++i) {
    const size_t at = line_from(file, std::max(next, i * size / count), size);
    if (at >= size) break;
    file.seekg(static_cast<std::streamoff>(at));
    if (!next_line(file, line, kBytesMax) || file.eof()) break;
    next = at + line.size() + 1;
    text += line + "\n";
  }
  file.clear();
  return {std::move(text), next};
}

}  // namespace

FileLines read_lines(const std::string& path, LineRange range) {
  std::ifstream file = open_lines(path);
  const size_t size = file.is_open() ? size_of(file) : 0;
  FileLines lines;
  size_t after = 0;
  if (range.spread > 0) {
    std::tie(lines.text, after) = spread_lines(file, size, std::min(range.spread, kSpreadLinesMax));
  } else {
    after = range.after;
    if (after > size) after = 0;  // an offset in another run's file
    if (range.last > 0 && range.last < size) after = line_from(file, size - range.last, size);
  }
  std::string rest(std::min(kBytesMax, size - after), '\0');
  file.seekg(static_cast<std::streamoff>(after));
  file.read(rest.data(), static_cast<std::streamsize>(rest.size()));
  const size_t end = rest.rfind('\n');
  rest.resize(end == std::string::npos ? 0 : end + 1);
  lines.next = after + rest.size();
  lines.text += rest;
  return lines;
}

}  // namespace simplescale
