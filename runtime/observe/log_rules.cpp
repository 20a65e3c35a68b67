#include "runtime/observe/log_rules.hpp"

#include <algorithm>
#include <set>

#include "runtime/base/files.hpp"
#include "runtime/base/parse_toml.hpp"

namespace simplescale {

extern const std::string_view shipped_log_rules;  // CMake makes it from configs/log_rules.toml

namespace {

constexpr size_t kLineBytesMax = 2048;

/// The end of the set in brackets that begins at `at`: "[^]a]", "[[:space:](]".
size_t end_of_set(const std::string& pattern, size_t at) {
  at += pattern.compare(at + 1, 1, "^") == 0 ? 2 : 1;
  if (pattern.compare(at, 1, "]") == 0) ++at;  // a member
  for (; at < pattern.size() && pattern[at] != ']'; ++at) {
    const char inner = pattern[at] == '[' && at + 1 < pattern.size() ? pattern[at + 1] : ' ';
    if (inner == ':' || inner == '.' || inner == '=')
      at = std::min(pattern.find(std::string{inner, ']'}, at + 2), pattern.size() - 1) + 1;
  }
  return at;
}

/// All that the pattern matches begins at the start of a line: it begins with "^", which no "|" outside
/// of parentheses leaves behind. The pattern has been compiled, so "^" is not repeated.
bool is_anchored(const std::string& pattern) {
  if (!pattern.starts_with('^')) return false;
  int depth = 0;
  for (size_t at = 0; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if (c == '\\') ++at;
    if (c == '[') at = end_of_set(pattern, at);
    if (c == '(') ++depth;
    if (c == ')' && --depth < 0) return false;
    if (c == '|' && depth == 0) return false;
  }
  return true;
}

Result<LogRule> read_rule(const toml::table& table) {
  static const std::set<std::string_view> keys = {"name",  "contains", "pattern", "severity",
                                                  "cause", "action",   "hint",    "example"};
  auto bad = [](const std::string& what) { return Status(Code::bad_config, what); };
  auto text = [&](const char* key) { return table[key].value_or(std::string()); };
  LogRule rule;
  rule.name = text("name");
  if (rule.name.empty()) return bad("the rule has no name");
  for (const auto& [key, value] : table)
    if (!keys.contains(key.str())) return bad("unknown key '" + std::string(key.str()) + "'");
  rule.severity = text("severity");
  if (rule.severity != "error" && rule.severity != "warning" && rule.severity != "info")
    return bad("severity must be \"error\", \"warning\" or \"info\"");
  rule.action = table["action"].value_or(std::string("tell"));
  if (rule.action != "tell" && rule.action != "diagnose")
    return bad("action must be \"tell\" or \"diagnose\"");
  const std::string cause = text("cause");
  if (cause != "root" && cause != "consequence")
    return bad("cause must be \"root\" or \"consequence\"");
  rule.root = cause == "root";
  rule.hint = text("hint");
  rule.example = text("example");
  if (const toml::array* list = table["contains"].as_array())
    for (const auto& item : *list) rule.contains.push_back(item.value_or(std::string()));
  if (rule.contains.empty() || std::ranges::find(rule.contains, "") != rule.contains.end())
    return bad("contains must be a list of texts that are not empty");
  if (const std::string pattern = text("pattern"); !pattern.empty()) {
    SS_ASSIGN(rule.pattern, Regex::compile(pattern));
    rule.anchored = is_anchored(pattern);
  }
  return rule;
}

}  // namespace

bool LogRule::matches(const std::string& line) const {
  return std::ranges::any_of(
             contains, [&](const auto& text) { return line.find(text) != std::string::npos; }) &&
         (!pattern || pattern->matches(line.c_str()));
}

Result<LogRules> LogRules::parse(std::string_view text, const std::string& file) {
  LogRules rules;
  SS_ASSIGN(const toml::table page, parse_toml(text, file));
  const toml::array* list = page["rule"].as_array();
  if (!list || page.size() != 1)
    return Status(Code::bad_config, file + ": must hold [[rule]] tables and nothing else");
  for (const auto& item : *list) {
    const toml::table* table = item.as_table();
    if (!table)
      return Status(Code::bad_config, file + ": must hold [[rule]] tables and nothing else");
    auto rule = read_rule(*table);
    if (!rule.ok())
      return Status(Code::bad_config, file + ":" + std::to_string(table->source().begin.line) +
                                          ": rule '" + (*table)["name"].value_or(std::string("?")) +
                                          "': " + rule.status().message());
    rules.rules_.push_back(rule.take());
  }
  return rules;
}

Result<LogRules> LogRules::load(const std::string& extra) {
  LogRules rules;
  if (!extra.empty()) {
    auto text = read_text(extra);
    if (!text.ok()) return Status(Code::bad_config, text.status().message());
    SS_ASSIGN(rules, parse(*text, extra));
  }
  SS_ASSIGN(LogRules shipped, parse(shipped_log_rules, "configs/log_rules.toml"));
  std::ranges::move(shipped.rules_, std::back_inserter(rules.rules_));
  return rules;
}

const LogRule* LogRules::match(const std::string& line, bool kernel) const {
  const std::string shown = line.size() > kLineBytesMax ? line.substr(0, kLineBytesMax) : "";
  const std::string& text = shown.empty() ? line : shown;
  const auto found = std::ranges::find_if(rules_, [&](const LogRule& rule) {
    return (!kernel || rule.anchored || rule.action != "diagnose") && rule.matches(text);
  });
  return found == rules_.end() ? nullptr : &*found;
}

}  // namespace simplescale
