// One line that redraws itself on a terminal, and whole lines now and then elsewhere.
#pragma once

#include <string>

namespace simplescale {

class ProgressLine {
 public:
  ProgressLine();
  /// Draws "label [=====>    ] text". fraction: 0..1. Elsewhere than on a terminal nothing is
  /// drawn.
  void draw(const std::string& label, double fraction, const std::string& text);
  /// Prints a line above the progress line, everywhere.
  void say(const std::string& text);
  void clear();
  bool terminal() const { return terminal_; }

 private:
  bool terminal_, drawn_ = false;
};

}  // namespace simplescale
