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
using Weights = std::vector<std::pair<std::string, double>>;
/// Pointer to a member of a Config.
using Ref = std::variant<bool*, int64_t*, double*, std::string*, Pair*, EnumRef, Faults*, Integers*,
                         Axes*, Blend*, Stages*, Groups*, BatchStages*>;

/// Whether a difference in a key makes a different run: always, only without train.deterministic
/// (layout), or never. numerics: always, unless --change-numerics names the key, because only the bits
/// of the steps from then on differ. recipe: never, but the steps from then on have other bits. place:
/// the contents of what lies there matter, so only a place instead of none makes a different run.
/// All keys but those that never matter are in the numerics signature (signature.hpp).
enum class Matters : unsigned char { always, layout, numerics, recipe, place, never };

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

/// A member of a table in a list must be there, or may; if_set: it may, and only a value that is
/// neither empty nor missing is written.
enum class Member : unsigned char { must, may, if_set };

/// Calls visit(name, member, Member) for each member of a list's table, in their order in files.
template <class Visit>
void each_member(FaultSpec& fault, const Visit& visit) {
  visit("step", fault.step, Member::must);
  visit("kind", fault.kind, Member::must);
  visit("target", fault.target, Member::may);
}
template <class Visit>
void each_member(BlendSource& source, const Visit& visit) {
  visit("name", source.name, Member::must);
  visit("source", source.source, Member::must);
  visit("weight", source.weight, Member::if_set);
  visit("folder", source.folder, Member::if_set);
  visit("text_key", source.text_key, Member::if_set);
  visit("loss_mask_key", source.loss_mask_key, Member::if_set);
  visit("format", source.format, Member::if_set);
  visit("token_bytes", source.token_bytes, Member::if_set);
}
template <class Visit>
void each_member(BlendStage& stage, const Visit& visit) {
  visit("from_tokens", stage.from_tokens, Member::must);
  visit("weights", stage.weights, Member::must);
}
template <class Visit>
void each_member(ParameterGroup& group, const Visit& visit) {
  visit("pattern", group.pattern, Member::must);
  visit("learning_rate_factor", group.learning_rate_factor, Member::may);
  visit("weight_decay", group.weight_decay, Member::if_set);
}
template <class Visit>
void each_member(BatchStage& stage, const Visit& visit) {
  visit("until_tokens", stage.until_tokens, Member::must);
  visit("global_batch_size", stage.global_batch_size, Member::must);
}

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
