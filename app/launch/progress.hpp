// A progress line on stderr, redrawn in place if stderr is a terminal, and lines above it.
#pragma once

#include <chrono>
#include <string>

namespace simplescale {

class ProgressLine {
 public:
  /// Draws "label [=====>    ] text". fraction: 0 to 1. Does nothing if stderr is not a terminal.
  void draw(const std::string& label, double fraction, const std::string& text);
  /// Like draw(). Without a terminal, prints a line when the label changes, and every ten seconds.
  void report(const std::string& label, double fraction, const std::string& text);
  /// Prints a line above the progress line; also without a terminal.
  void print_line(const std::string& text);
  /// Prints a line to stdout, which keeps it unless it is a terminal.
  void print_result(const std::string& text);
  /// Removes the progress line.
  void clear();
  /// True if stderr is a terminal. The terminal may end before this process.
  bool terminal() const;

 private:
  bool drawn_ = false;
  std::string reported_;                             // the last label
  std::chrono::steady_clock::time_point report_at_;  // again
};

}  // namespace simplescale
