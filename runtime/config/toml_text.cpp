// Values and whole configs as TOML: a run's config.toml, and configs/reference.toml.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "runtime/base/utf8.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/secrets.hpp"

namespace simplescale {
namespace schema {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04X", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

/// The shortest text that reads back to the same double. It never looks like an integer.
std::string number(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

/// A number without exponent where possible: 65536, 0.5.
std::string plain(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 std::floor(value) == value ? std::chars_format::fixed
                                                            : std::chars_format::general)
                       .ptr;
  return {buffer, end};
}

/// true and false are TOML's own words.
std::string name_of(const EnumRef& v, size_t value) {
  const std::string name = v.names[value];
  return name == "true" || name == "false" ? name : quoted(name);
}

bool is_set(const auto& member) {
  if constexpr (requires { member.has_value(); }) return member.has_value();
  if constexpr (requires { member.empty(); }) return !member.empty();
  return true;
}

struct ToToml {
  std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
  std::string operator()(const int64_t* v) const { return std::to_string(*v); }
  std::string operator()(const double* v) const { return number(*v); }
  std::string operator()(const std::string* v) const { return quoted(*v); }
  std::string operator()(const Pair* v) const {
    return "[" + number((*v)[0]) + ", " + number((*v)[1]) + "]";
  }
  std::string operator()(const EnumRef& v) const { return name_of(v, *v.value); }
  std::string operator()(const DataFormat* v) const { return quoted(simplescale::to_string(*v)); }
  std::string operator()(const Weights* v) const {
    std::string out;
    for (const auto& [name, weight] : *v)
      out += (out.empty() ? "" : ", ") + quoted(name) + " = " + number(weight);
    return "{ " + out + " }";
  }
  template <class T>
  std::string operator()(const std::optional<T>* v) const {
    return (*this)(&**v);
  }
  template <class T>
  std::string operator()(const std::vector<T>* v) const {
    std::string out;
    for (const T& one : *v) out += (out.empty() ? "" : ", ") + (*this)(&one);
    return "[" + out + "]";
  }
  template <class Table>
  std::string operator()(const Table* v) const {
    std::string out;
    Table table = *v;
    each_member(table, [&](const char* name, auto& member, Member in) {
      if (in != Member::if_set || is_set(member))
        out += (out.empty() ? "{ " : ", ") + (name + (" = " + (*this)(&member)));
    });
    return out + " }";
  }
  std::string operator()(const Axes* v) const {
    std::string out;
    for (const SweepAxis& axis : *v) {
      std::string values;
      for (const std::string& value : axis.values) values += (values.empty() ? "" : ", ") + value;
      out += (out.empty() ? " " : ", ") + quoted(axis.key) + " = [" + values + "]";
    }
    return out.empty() ? "{}" : "{" + out + " }";
  }
};

struct Expected {
  std::string operator()(const bool*) const { return "true or false"; }
  std::string operator()(const int64_t*) const { return "an integer"; }
  std::string operator()(const double*) const { return "a number"; }
  std::string operator()(const std::string*) const { return "a string"; }
  std::string operator()(const Pair*) const { return "two numbers, [a, b]"; }
  std::string operator()(const EnumRef& v) const {
    std::string out;
    for (size_t i = 0; i < v.names.size(); ++i) {
      if (i) out += i + 1 < v.names.size() ? ", " : " or ";
      out += name_of(v, i);
    }
    return out;
  }
  std::string operator()(const Faults*) const {
    return "a list of { step = 40, kind = \"kill_trainer\", target = \"n1.0\" }";
  }
  std::string operator()(const Integers*) const { return "a list of integers"; }
  std::string operator()(const Blend*) const {
    return "a list of { name = \"web\", source = \"web.jsonl\", weight = 0.7 }";
  }
  std::string operator()(const Stages*) const {
    return "a list of { from_tokens = 1000000, weights = { web = 0.5, code = 0.5 } }";
  }
  std::string operator()(const Groups*) const {
    return "a list of { pattern = \"*norm*\", learning_rate_factor = 0.5, weight_decay = 0.0 }, "
           "with one or both of the numbers";
  }
  std::string operator()(const BatchStages*) const {
    return "a list of { until_tokens = 1000000, global_batch_size = 64 }";
  }
  std::string operator()(const Axes*) const {
    return "lists of values by key, { \"train.learning_rate\" = [1e-3, 3e-3] }";
  }
};

/// The text as comment lines of at most 100 columns.
std::string comment(const std::string& text) {
  std::string out, line = "#";
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (line.size() + 1 + word.size() > 100) {
      out += line + "\n";
      line = "#";
    }
    line += " " + word;
    at = end + 1;
  }
  return out + line + "\n";
}

/// The allowed values, for comments: the names of an enumeration, or the range.
std::string allowed(const Key& key, const Ref& value) {
  if (std::holds_alternative<EnumRef>(value)) return " One of " + expected(key) + ".";
  const std::string range = to_string(key.range);
  return range.empty() ? "" : " (" + range + ")";
}

}  // namespace

std::string expected(const Key& key) {
  Config config;
  return std::visit(Expected(), key.at(config));
}

std::string to_string(const Range& range) {
  const bool low = std::isfinite(range.min), high = std::isfinite(range.max);
  const std::string min = (range.above_min ? "above "
                           : low && !high  ? "at least "
                                           : "") +
                          (low ? plain(range.min) : "");
  const std::string max = high ? (range.below_max ? "below " : "") + plain(range.max) : "";
  if (low && high) return min + (range.below_max ? " or more, " : " to ") + max;
  return low ? min : high ? "at most " + max : "";
}

bool contains(const Range& range, double value) {
  return std::isfinite(value) && (range.above_min ? value > range.min : value >= range.min) &&
         (range.below_max ? value < range.max : value <= range.max);
}

std::string to_toml(const Ref& value) {
  return std::visit(ToToml(), value);
}

std::string shown(const Key& key, const Config& config) {
  const Config defaults;
  std::string value = to_toml(key.in(config));
  return key.is_secret && value != to_toml(key.in(defaults)) ? "(secret)" : value;
}

}  // namespace schema

namespace {

std::string toml_of(const Config& given, bool with_secrets) {
  const Config defaults;
  Config config = given;
  std::string out, section;
  for (const schema::Key& key : schema::keys()) {
    for (std::string* path : schema::paths_of(key, config)) *path = path_as_text(*path);
    if (section != key.section) {
      if (!section.empty()) out += "\n";
      section = key.section;
      out += "[" + section + "]\n";
    }
    const std::string value = schema::to_toml(key.in(config));
    if (!with_secrets && key.is_secret && value != schema::to_toml(key.in(defaults)))
      out += std::string("# ") + key.name + " is a secret: control/secrets.toml has it\n";
    else
      out += std::string(key.name) + " = " + value + "\n";
  }
  return out;
}

}  // namespace

std::string to_toml(const Config& config) {
  return toml_of(config, true);
}

std::string public_toml(const Config& config) {
  return toml_of(config, false);
}

std::string secrets_toml(const Config& config) {
  const Config defaults;
  std::string out;
  for (const schema::Key& key : schema::keys()) {
    const std::string value = schema::to_toml(key.in(config));
    if (key.is_secret && value != schema::to_toml(key.in(defaults)))
      out += key.full_name() + " = " + value + "\n";
  }
  return out;
}

std::string reference_toml() {
  std::string out = schema::comment(
      "Every key with its default. A config sets only the keys that it changes. base = "
      "\"other.toml\" at its top inherits another file; --section.key=value on the command line "
      "overrides both. Generated from the table in runtime/config/schema.cpp: a test compares the "
      "two, and rewrites this file if SIMPLESCALE_WRITE_REFERENCE=1 is set.");
  const Config defaults;
  std::string section;
  for (const schema::Key& key : schema::keys()) {
    if (section != key.section) {
      section = key.section;
      out += "\n" + schema::comment(schema::section_comment(section)) + "[" + section + "]\n";
    }
    const schema::Ref value = key.in(defaults);
    out += schema::comment(key.comment + schema::allowed(key, value));
    out += std::string(key.name) + " = " + schema::to_toml(value) + "\n";
  }
  return out;
}

}  // namespace simplescale
