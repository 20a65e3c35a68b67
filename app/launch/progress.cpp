#include "app/launch/progress.hpp"
#include "app/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace simplescale {

bool ProgressLine::terminal() const {
  return isatty(STDERR_FILENO);
}

void ProgressLine::draw(const std::string& label, double fraction, const std::string& text) {
  if (!terminal()) return;
  winsize size{};
  const int columns =
      ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  const int room = columns - 1 - static_cast<int>(label.size() + text.size()) - 4;
  const int width = std::clamp(room, 0, 40);
  const int done = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * width);
  std::string line = label + " ";
  if (width >= 8)
    line += "[" + std::string(done, '=') +
            (done < width ? ">" + std::string(width - done - 1, ' ') : "") + "] ";
  line += text;
  line.resize(std::min<size_t>(line.size(), static_cast<size_t>(columns - 1)));
  terminal::cursor::err(terminal::cursor::kLineStart);
  terminal::cursor::err(terminal::cursor::kClearLine);
  terminal::error("%s", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void ProgressLine::report(const std::string& label, double fraction, const std::string& text) {
  if (terminal()) return draw(label, fraction, text);
  const auto now = std::chrono::steady_clock::now();
  const bool is_new = label != reported_;
  if (!is_new && now < report_at_) return;
  print_line(is_new ? label : label + " " + text);
  reported_ = label;
  report_at_ = now + std::chrono::seconds(10);
}

void ProgressLine::print_line(const std::string& text) {
  clear();
  terminal::error("%s\n", text.c_str());
}

void ProgressLine::print_result(const std::string& text) {
  clear();
  terminal::print("%s\n", text.c_str());
  std::fflush(stdout);  // so that the reader of a pipe sees the line now
}

void ProgressLine::clear() {
  if (drawn_ && terminal()) {
    terminal::cursor::err(terminal::cursor::kLineStart);
    terminal::cursor::err(terminal::cursor::kClearLine);
  }
  drawn_ = false;
}

}  // namespace simplescale
