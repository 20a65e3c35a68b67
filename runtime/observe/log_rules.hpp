// Rules that classify log lines, in TOML. configs/log_rules.toml explains their fields and is
// compiled into the program. Immutable after loading; any thread.
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
  bool root = false;                  // true: the cause of an incident; false: a consequence
  std::vector<std::string> contains;  // the line must contain one of these texts
  std::optional<Regex> pattern;       // and match this pattern
  bool anchored = false;              // every match of the pattern begins at "^"
  bool matches(const std::string& line) const;
};

class LogRules {
 public:
  /// file: the name for messages. bad_config: names file, line and rule.
  static Result<LogRules> parse(std::string_view toml, const std::string& file);
  /// The rules of the file `extra` (unless it is ""), then the shipped rules. bad_config.
  static Result<LogRules> load(const std::string& extra);
  /// The first rule that matches the first 2 KiB of the line, or null. kernel: the line is of the
  /// kernel's log, which quotes names of processes and files that any user can choose. Of the rules
  /// that examine a node, only those apply that are anchored at the beginning of the line.
  const LogRule* match(const std::string& line, bool kernel = false) const;
  const std::vector<LogRule>& all() const { return rules_; }

 private:
  std::vector<LogRule> rules_;
};

}  // namespace simplescale
