// The table of all keys. Parsing, validation, to_toml(), `config show` and configs/reference.toml
// are driven by it. Constant, so any thread may read it.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/config/config.hpp"

namespace simplescale::schema {

/// A member of an enumeration type: its byte, and the names of the values.
struct EnumRef {
  unsigned char* value;
  std::span<const char* const> names;
};
using Pair = std::array<double, 2>;
using Faults = std::vector<FaultSpec>;
using Integers = std::vector<int64_t>;
using Axes = std::vector<SweepAxis>;
using Blend = std::vector<BlendSource>;
using Stages = std::vector<BlendStage>;
using Groups = std::vector<ParameterGroup>;
using BatchStages = std::vector<BatchStage>;
/// Pointer to a member of a Config.
using Ref = std::variant<bool*, int64_t*, double*, std::string*, Pair*, EnumRef, Faults*, Integers*,
                         Axes*, Blend*, Stages*, Groups*, BatchStages*>;

/// Whether a difference in a key makes a different run: always, only without train.deterministic
/// (layout), or never. recipe: never, but the steps from then on have other bits. place: the contents
/// of what lies there matter, so only a place instead of none makes a different run.
enum class Matters : unsigned char { always, layout, recipe, place, never };

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
  Range range;  // of a number, and of each number in a pair or list
  Matters matters;
  const char* comment;
  bool is_path = false;    // in a file that a user writes, relative to that file
  bool is_secret = false;  // its value appears only in files of mode 0600
  std::string full_name() const { return std::string(section) + "." + name; }
  /// For reading only.
  Ref in(const Config& config) const { return at(const_cast<Config&>(config)); }
};

/// The member `format` of a source of data.blend.
EnumRef format_of(DataFormat& format);

/// All keys, section by section.
std::span<const Key> keys();
/// Null if there is no such key.
const Key* find(const std::string& section, const std::string& name);
const Key* find(const std::string& full_name);
/// One line about a section.
const char* section_comment(const std::string& section);
/// The nearest known key by edit distance. The name counts twice, so that the same name in another
/// section is near. An abbreviation is near, too: lr, batch_size, warmup.
std::string nearest_key(const std::string& section, const std::string& name);

/// The paths that a key holds: none, its value, or those of all its entries.
std::vector<std::string*> paths_of(const Key& key, Config& config);
/// True for a path that is relative: neither empty nor absolute nor "debian:<package>".
bool is_relative(const std::string& path);

/// What the key accepts: "an integer", "\"auto\" or \"never\"", ...
std::string expected(const Key& key);
/// "at least 1", "0 to 0.5"; empty without limits.
std::string to_string(const Range& range);
bool contains(const Range& range, double value);
/// The value in TOML syntax; it reads back to the same value.
std::string to_toml(const Ref& value);
/// The same, for people, logs and records; "(secret)" for a secret that is set.
std::string shown(const Key& key, const Config& config);

}  // namespace simplescale::schema

namespace simplescale {
/// The text of configs/reference.toml: every key with its comment and its default.
std::string reference_toml();

/// The config with every value that stands for a rule (0, -1, "") replaced by the result of the
/// rule, where it can be computed.
Config with_derived_values(const Config& config);
}  // namespace simplescale
