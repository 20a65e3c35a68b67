#include "runtime/base/regex.hpp"

namespace simplescale {

void Regex::Free::operator()(regex_t* regex) const {
  regfree(regex);
  delete regex;
}

Result<Regex> Regex::compile(const std::string& pattern) {
  auto compiled = std::make_unique<regex_t>();
  const int error = regcomp(compiled.get(), pattern.c_str(), REG_EXTENDED | REG_NOSUB);
  if (error != 0) {
    char text[256];
    regerror(error, compiled.get(), text, sizeof text);
    return Status(Code::usage, "'" + pattern + "' is not a regular expression: " + text);
  }
  Regex regex;
  regex.regex_.reset(compiled.release());
  return regex;
}

bool Regex::matches(const char* text) const {
  return regexec(regex_.get(), text, 0, nullptr, 0) == 0;
}

}  // namespace simplescale
