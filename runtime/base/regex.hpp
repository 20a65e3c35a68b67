// POSIX extended regular expressions, as in `grep -E`. std::regex would recurse once per character.
#pragma once

#include <regex.h>

#include <memory>
#include <string>

#include "runtime/base/status.hpp"

namespace simplescale {

class Regex {
 public:
  /// usage: the pattern is not a regular expression, and why.
  static Result<Regex> compile(const std::string& pattern);
  /// True if a part of the text matches. Any thread.
  bool matches(const char* text) const;

 private:
  struct Free {
    void operator()(regex_t* regex) const;
  };
  std::unique_ptr<regex_t, Free> regex_;
};

}  // namespace simplescale
