// Regular expressions as in `grep -E`. Not std::regex, whose stack grows with the text it searches.
#pragma once

#include <regex.h>

#include <memory>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

class Regex {
 public:
  /// usage: not a regular expression, and why.
  static Result<Regex> compile(const std::string& pattern);
  /// Whether some part of the text (without zero bytes) matches. Any thread.
  bool matches(const char* text) const;

 private:
  struct Free {
    void operator()(regex_t* regex) const;
  };
  std::unique_ptr<regex_t, Free> regex_;
};

}  // namespace simplescale
