// The one table of all keys: it drives parsing, validation, to_toml(), `config show` and
// configs/reference.toml. Constant, so any thread reads it. Internal to runtime/config.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/config/config.hpp"

namespace simplescale::schema {

/// An enumeration as the table sees it: its byte and its values' names.
struct EnumRef {
  unsigned char* value;
  std::span<const char* const> names;
};
using Pair = std::array<double, 2>;
using Faults = std::vector<FaultSpec>;
using Integers = std::vector<int64_t>;
using Axes = std::vector<SweepAxis>;
/// A member of one Config.
using Ref =
    std::variant<bool*, int64_t*, double*, std::string*, Pair*, EnumRef, Faults*, Integers*, Axes*>;

/// Whether two runs that differ in a key are different runs.
enum class Matters : unsigned char { always, layout, never };

struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above_min = false;  // min itself is out of range
  bool below_max = false;
};

struct Key {
  const char* section;
  const char* name;
  Ref (*at)(Config&);
  Range range;  // numbers, and each number of a pair
  Matters matters;
  const char* comment;
  std::string full_name() const { return std::string(section) + "." + name; }
  /// Reading only.
  Ref in(const Config& config) const { return at(const_cast<Config&>(config)); }
};

/// All keys, section by section, in the order of interface.md.
std::span<const Key> keys();
/// Null if there is none.
const Key* find(const std::string& section, const std::string& name);
const Key* find(const std::string& full_name);
/// True for a key of an earlier version. Runs made by it carry the key in their config.toml: it is
/// ignored with a warning, so that these runs still resume.
bool is_retired(const std::string& full_name);
/// One line about a section.
const char* section_comment(const std::string& section);
/// The nearest known key by edit distance; a key of the same name in another section is nearest.
std::string nearest_key(const std::string& section, const std::string& name);

/// "an integer", "\"auto\" or \"never\"", ...
std::string expected(const Key& key);
/// "at least 1", "0 to 0.5"; empty where everything is allowed.
std::string to_string(const Range& range);
bool contains(const Range& range, double value);
/// In TOML syntax; reads back to the same value.
std::string to_toml(const Ref& value);

}  // namespace simplescale::schema

namespace simplescale {
/// configs/reference.toml: every key, its comment and its default.
std::string reference_toml();

/// The config with every "by rule" value (0, -1, empty) replaced by what it comes to, as far as
/// that can be found out.
Config with_rules_applied(const Config& config);
}  // namespace simplescale
