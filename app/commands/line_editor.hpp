// Lines typed by somebody: editing, history and Tab completion (libedit) on a terminal, plain lines
// from anything else. One at a time, main thread.
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
  /// history_file: lines of all consoles, appended as they are typed; "": none.
  LineEditor(std::string history_file, Complete complete);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  /// One line without its newline; "" after Ctrl-C; nothing at the end of the input.
  std::optional<std::string> read(const std::string& prompt);
  bool terminal() const { return impl_ != nullptr; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null: no terminal
};

}  // namespace simplescale
