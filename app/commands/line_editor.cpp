#include "app/commands/line_editor.hpp"

#include <histedit.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <deque>
#include <fstream>
#include <iostream>

#include "actors/supervisor/verbs.hpp"
#include "app/terminal.hpp"
#include "runtime/base/open_output.hpp"

namespace simplescale {

namespace {

constexpr int kHistoryLines = 1000;

/// The newest kHistoryLines lines. Shortens a file with more than four times as many.
std::deque<std::string> load_history(const std::string& path) {
  std::deque<std::string> lines;
  size_t all = 0;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line); ++all) {
    if (!line.empty()) lines.push_back(line);
    if (lines.size() > kHistoryLines) lines.pop_front();
  }
  if (all <= size_t{4} * kHistoryLines) return lines;
  const std::string part = path + ".part" + std::to_string(getpid());
  const int fd = open_output(part, Output::replace, 0600);
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  const bool whole =
      fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) close(fd);
  if (!whole || std::rename(part.c_str(), path.c_str()) != 0) unlink(part.c_str());
  return lines;
}

/// One write, so that lines of several consoles do not mix. Errors are ignored.
void append_history(const std::string& path, const std::string& line) {
  if (path.empty()) return;
  const int fd = open_output(path, Output::append, 0600);
  if (fd < 0) return;
  const std::string text = line + "\n";
  (void)!write(fd, text.data(), text.size());
  close(fd);
}

void show(const std::vector<std::string>& words) {
  winsize size{};
  const size_t columns =
      ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  size_t width = 0;
  for (const std::string& word : words) width = std::max(width, word.size() + 2);
  const size_t in_row = std::max<size_t>(1, columns / width);
  terminal::print("\n");
  for (size_t i = 0; i < words.size(); ++i) {
    const bool end = (i + 1) % in_row == 0 || i + 1 == words.size();
    terminal::print("%-*s%s", end ? 0 : static_cast<int>(width), words[i].c_str(), end ? "\n" : "");
  }
  std::fflush(stdout);
}

}  // namespace

struct LineEditor::Impl {
  EditLine* edit = nullptr;
  History* history = nullptr;
  std::string prompt, file;
  Complete complete;
  bool cancelled = false;

  static Impl* of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return static_cast<Impl*>(self);
  }
  static char* prompt_of(EditLine* edit) { return of(edit)->prompt.data(); }

  /// Ctrl-C: discards the line.
  static unsigned char on_cancel(EditLine* edit, int) {
    of(edit)->cancelled = true;
    terminal::print("^C\n");
    return CC_EOF;
  }

  /// Tab: inserts the common prefix of all candidates, or lists them if that adds nothing.
  static unsigned char on_tab(EditLine* edit, int) {
    const LineInfo* line = el_line(edit);
    const std::string text(line->buffer, line->cursor);
    std::vector<std::string> words = split_words(text);
    std::string prefix;
    if (!words.empty() && text.back() != ' ') {
      prefix = words.back();
      words.pop_back();
    }
    const std::vector<std::string> found = of(edit)->complete(words, prefix);
    if (found.empty()) return CC_REFRESH_BEEP;
    std::string insert = common_prefix(found).substr(prefix.size());
    if (found.size() == 1) insert += " ";
    if (!insert.empty()) return el_insertstr(edit, insert.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
    show(found);
    return CC_REDISPLAY;
  }
};

LineEditor::LineEditor(std::string history_file, Complete complete) {
  if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) return;
  std::setlocale(LC_CTYPE, "");
  impl_ = std::make_unique<Impl>();
  impl_->file = std::move(history_file);
  impl_->complete = std::move(complete);
  impl_->edit = el_init("simplescale", stdin, stdout, stderr);
  impl_->history = history_init();
  EditLine* edit = impl_->edit;
  HistEvent event;
  history(impl_->history, &event, H_SETSIZE, kHistoryLines);
  history(impl_->history, &event, H_SETUNIQUE, 1);
  for (const std::string& line : load_history(impl_->file))
    history(impl_->history, &event, H_ENTER, line.c_str());
  el_set(edit, EL_CLIENTDATA, impl_.get());
  el_set(edit, EL_PROMPT_ESC, Impl::prompt_of, '\1');
  el_set(edit, EL_EDITOR, "emacs");
  el_set(edit, EL_HIST, history, impl_->history);
  el_set(edit, EL_ADDFN, "console-complete", "complete a word", Impl::on_tab);
  el_set(edit, EL_ADDFN, "console-cancel", "discard the line", Impl::on_cancel);
  el_set(edit, EL_SETTY, "-d", "-isig", nullptr);  // Ctrl-C is a key, not a signal
  el_source(edit, nullptr);                        // ~/.editrc
  el_set(edit, EL_BIND, "^I", "console-complete", nullptr);
  el_set(edit, EL_BIND, "^C", "console-cancel", nullptr);
  el_set(edit, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  // A Ctrl-D typed before the terminal is in raw mode arrives as NUL. libedit would quote the next
  // key: its table of terminal characters binds NUL (none) to quoted-insert.
  el_set(edit, EL_BIND, "^@", "em-set-mark", nullptr);
}

LineEditor::~LineEditor() {
  if (!impl_) return;
  history_end(impl_->history);
  el_end(impl_->edit);
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  if (!impl_) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  impl_->prompt = prompt;
  impl_->cancelled = false;
  int count = 0;
  const char* text = el_gets(impl_->edit, &count);
  if (impl_->cancelled) {
    el_reset(impl_->edit);
    return "";
  }
  if (!text || count <= 0) return std::nullopt;
  std::string line(text, static_cast<size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  if (!line.empty()) {
    HistEvent event;
    history(impl_->history, &event, H_ENTER, line.c_str());
    append_history(impl_->file, line);
  }
  return line;
}

}  // namespace simplescale
