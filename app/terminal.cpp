#include "app/terminal.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <vector>

#include "runtime/base/printable.hpp"

namespace simplescale::terminal {

namespace {

void write(FILE* to, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), to);
}

/// The text without user and password of URLs: https://USER:PASSWORD@HOST. As part of a path it has
/// one slash.
std::string without_logins(std::string text) {
  for (size_t at = text.find(":/"); at != text.npos; at = text.find(":/", at)) {
    at = std::min(text.find_first_not_of('/', at + 1), text.size());
    const size_t end = std::min(text.find_first_of("/ \t\n\"'?#", at), text.size());
    const size_t login = text.rfind('@', end);
    if (login != text.npos && login >= at && login < end) text.replace(at, login - at, "(login)");
  }
  return text;
}

[[gnu::format(printf, 2, 0)]] void write(FILE* to, const char* format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  const int bytes = std::vsnprintf(nullptr, 0, format, arguments);
  if (bytes > 0) {
    std::vector<char> text(static_cast<size_t>(bytes) + 1);
    std::vsnprintf(text.data(), text.size(), format, again);
    write(to, printable(without_logins({text.data(), static_cast<size_t>(bytes)})));
  }
  va_end(again);
}

}  // namespace

void print(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write(stdout, format, arguments);
  va_end(arguments);
}

void error(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write(stderr, format, arguments);
  va_end(arguments);
}

void text(std::string_view text) {
  write(stdout, printable(text));
}

void painted(std::string_view text) {
  write(stdout, printable_painted(text));
}

void cursor::out(const char* sequence) {
  std::fputs(sequence, stdout);
}

void cursor::err(const char* sequence) {
  std::fputs(sequence, stderr);
}

}  // namespace simplescale::terminal
