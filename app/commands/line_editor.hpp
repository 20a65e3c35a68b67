// Reads lines from stdin: with editing, history and Tab completion (libedit) on a terminal, plain
// lines otherwise. At most one editor at a time, on the main thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace simplescale {

class LineEditor {
 public:
  using Complete = std::function<std::vector<std::string>(const std::vector<std::string>& before,
                                                          const std::string& prefix)>;
  /// history_file: shared by all consoles, appended line by line; "": no history file.
  LineEditor(std::string history_file, Complete complete);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  /// Returns one line without its newline; "" after Ctrl-C; nothing at the end of input.
  std::optional<std::string> read(const std::string& prompt);
  bool terminal() const { return impl_ != nullptr; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null: stdin or stdout is no terminal
};

}  // namespace simplescale
