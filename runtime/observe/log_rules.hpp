// What lines of log files mean: rules read from TOML (configs/log_rules.toml explains them, and is
// part of the program). Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/regex.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

struct LogRule {
  std::string name, severity, action, hint, example;
  bool root = false;                  // explains an incident; else it follows from something
  std::vector<std::string> contains;  // one of these
  std::optional<Regex> pattern;       // and this
  bool matches(const std::string& line) const;
};

class LogRules {
 public:
  /// bad_config, with the file and the rule's name. file: for messages.
  static Result<LogRules> parse(std::string_view toml, const std::string& file);
  /// The shipped rules, after those of the file `extra`, if that is not "".
  static Result<LogRules> load(const std::string& extra);
  /// The first rule that matches, or null. Lines are looked at up to 2 KiB.
  const LogRule* match(const std::string& line) const;
  const std::vector<LogRule>& all() const { return rules_; }

 private:
  std::vector<LogRule> rules_;
};

}  // namespace simplescale
