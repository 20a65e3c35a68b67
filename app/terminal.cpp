#include "app/terminal.hpp"

#include <cstdarg>
#include <cstdio>
#include <vector>

#include "runtime/base/printable.hpp"

namespace simplescale::terminal {

namespace {

void write(FILE* to, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), to);
}

[[gnu::format(printf, 2, 0)]] void write(FILE* to, const char* format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  const int bytes = std::vsnprintf(nullptr, 0, format, arguments);
  if (bytes > 0) {
    std::vector<char> text(static_cast<size_t>(bytes) + 1);
    std::vsnprintf(text.data(), text.size(), format, again);
    write(to, printable({text.data(), static_cast<size_t>(bytes)}));
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
