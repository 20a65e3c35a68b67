#include "runtime/base/parse_toml.hpp"

#include <algorithm>
#include <vector>

namespace simplescale {

namespace {

/// Index of the last character of the string that begins at `at`. A string of one line ends with
/// its line at the latest.
size_t end_of_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool lines = text.substr(at, 3) == three, escapes = quote == '"';
  for (size_t i = at + (lines ? 3 : 1); i < text.size(); ++i) {
    if (escapes && text[i] == '\\') {
      ++i;
    } else if (lines && text.substr(i, 3) == three) {
      for (i += 2; i + 1 < text.size() && text[i + 1] == quote;) ++i;
      return i;
    } else if (!lines && (text[i] == quote || text[i] == '\n')) {
      return text[i] == quote ? i : i - 1;
    }
  }
  return text.size();
}

/// Number of the first line at which a table or array is inside more than depth_max others; 0:
/// there is none. Looks only at dots, brackets and strings, so it counts the dot of a number, too.
size_t first_line_too_deep(std::string_view text, size_t depth_max) {
  std::vector<size_t> dots = {0};  // of the key or value here, and of those around it
  size_t depth = 0, header = 0, line = 1;
  bool line_begins = true, in_header = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (c == '"' || c == '\'') {
      const size_t end = end_of_string(text, i);
      line += static_cast<size_t>(std::ranges::count(text.substr(i, end - i), '\n'));
      i = end;
    } else if (c == '\n') {
      ++line;
      if (dots.size() > 1) continue;
      if (in_header) header = dots[0] + 1;
      depth = header;
      dots[0] = 0;
      line_begins = true, in_header = false;
      continue;
    } else if (c == '[' && line_begins && dots.size() == 1) {
      in_header = true;
      depth = 1;
    } else if (c == '.') {
      ++dots.back(), ++depth;
    } else if (c == ',') {
      depth -= dots.back();
      dots.back() = 0;
    } else if ((c == '[' || c == '{') && !in_header) {
      dots.push_back(0);
      ++depth;
    } else if ((c == ']' || c == '}') && dots.size() > 1) {
      depth -= dots.back() + 1;
      dots.pop_back();
    }
    if (depth > depth_max) return line;
    line_begins = line_begins && (c == ' ' || c == '\t');
  }
  return 0;
}

Status bad(const std::string& file, size_t line, const std::string& what) {
  std::string text = file + ":" + std::to_string(line) + ": " + what;
  std::ranges::replace(text, '\n', ' ');  // a path may contain newlines
  return {Code::bad_config, text};
}

}  // namespace

Result<toml::table> parse_toml(std::string_view text, const std::string& file) {
  if (text.size() > kTomlBytesMax)
    return bad(file, 1, "it has more than " + std::to_string(kTomlBytesMax) + " bytes");
  if (const size_t line = first_line_too_deep(text, kTomlDepthMax); line > 0)
    return bad(file, line, "it is nested deeper than " + std::to_string(kTomlDepthMax));
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    return bad(file, error.source().begin.line, std::string(error.description()));
  }
}

}  // namespace simplescale
