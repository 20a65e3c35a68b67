// Loads files, the files that they inherit, and overrides into a Config. The schema checks every
// value.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <sstream>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/parse_toml.hpp"
#include "runtime/base/path_error.hpp"
#include "runtime/base/printable.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/base/words.hpp"
#include "runtime/config/check.hpp"
#include "runtime/config/rivals.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/secrets.hpp"

namespace simplescale {
namespace {

namespace fs = std::filesystem;
using schema::Key;
using schema::Ref;

constexpr size_t inheritance_max = 16;  // files
constexpr const char* kCommandLine = "command line";

using Problems = std::vector<Status>;

/// One line, even if a path or an argument contains newlines.
Status bad(const std::string& where, const std::string& text) {
  return Status(Code::bad_config, shown_name(where + ": " + text, 4 << 10));
}

std::string at_line(const std::string& file, const toml::source_region& region) {
  return file + ":" + std::to_string(region.begin.line);
}

std::string nearest(const std::string& section, const std::string& name) {
  return "; nearest known key: " + schema::nearest_key(section, name);
}

/// ": did you mean 'train'?", or the nearest key if no section's name is near.
std::string nearest_section(const std::string& section) {
  std::vector<std::string> known;
  for (const Key& key : schema::keys()) known.emplace_back(key.section);
  const std::string meant = did_you_mean(section, known);
  return meant.empty() ? nearest(section, "") : meant;
}

/// A value in TOML syntax.
std::string text_of(const toml::node& node) {
  if (auto string = node.value_exact<std::string>()) return schema::to_toml(&*string);
  if (auto number = node.value_exact<double>()) return schema::to_toml(&*number);
  if (const toml::array* array = node.as_array()) {
    std::string text;
    for (const toml::node& element : *array) text += (text.empty() ? "" : ", ") + text_of(element);
    return "[" + text + "]";
  }
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  return out.str();
}

/// The same for messages, shortened to 60 bytes.
std::string shown(const toml::node& node) {
  const std::string text = text_of(node);
  if (text.size() <= 60) return text;
  size_t end = 60;
  while ((text[end] & 0xc0) == 0x80) --end;  // cuts between UTF-8 characters
  return text.substr(0, end) + "…";
}

/// Assigns a TOML value to a member. Each overload returns false for a wrong type.
struct Assign {
  const toml::node& node;
  bool operator()(bool* v) const { return assign(v, node.value_exact<bool>()); }
  bool operator()(int64_t* v) const { return assign(v, node.value_exact<int64_t>()); }
  bool operator()(double* v) const {
    return node.is_number() && assign(v, node.value<double>());  // accepts integers
  }
  bool operator()(std::string* v) const { return assign(v, node.value_exact<std::string>()); }
  bool operator()(schema::Pair* v) const {
    const toml::array* array = node.as_array();
    return array && array->size() == 2 && Assign{*array->get(0)}(&(*v)[0]) &&
           Assign{*array->get(1)}(&(*v)[1]);
  }
  bool operator()(schema::EnumRef v) const {
    auto text = node.value_exact<std::string>();
    if (const auto flag = node.value_exact<bool>()) text = *flag ? "true" : "false";
    if (!text) return false;
    const auto found = std::find(v.names.begin(), v.names.end(), *text);
    if (found == v.names.end()) return false;
    *v.value = static_cast<unsigned char>(found - v.names.begin());
    return true;
  }
  bool operator()(DataFormat* v) const { return (*this)(schema::format_of(*v)); }
  bool operator()(schema::Weights* v) const {
    if (!node.is_table()) return false;
    for (const auto& [name, weight] : *node.as_table())
      if (!Assign{weight}(&v->emplace_back(std::string(name.str()), 0.0).second)) return false;
    return true;
  }
  bool operator()(ParameterGroup* v) const {
    return node.is_table() && node.as_table()->size() > 1 && members(v);
  }
  template <class T>
  bool operator()(std::optional<T>* v) const {
    return (*this)(&v->emplace());
  }
  template <class T>
  bool operator()(std::vector<T>* v) const {
    const toml::array* array = node.as_array();
    if (!array) return false;
    std::vector<T> read;
    for (const toml::node& element : *array)
      if (!Assign{element}(&read.emplace_back())) return false;
    *v = std::move(read);
    return true;
  }
  template <class Table>
  bool operator()(Table* v) const {
    return node.is_table() && members(v);
  }
  bool operator()(schema::Axes* v) const {
    schema::Axes axes;
    if (!node.is_table() || !gather(*node.as_table(), "", axes)) return false;
    *v = axes;
    return true;
  }

 private:
  /// Appends the lists of a table. A table within it is a section: train.eps = [...].
  static bool gather(const toml::table& table, const std::string& before, schema::Axes& axes) {
    for (const auto& [name, value] : table) {
      const std::string key = before + std::string(name.str());
      if (const toml::table* section = value.as_table()) {
        if (!gather(*section, key + ".", axes)) return false;
        continue;
      }
      const toml::array* array = value.as_array();
      if (!array || array->empty()) return false;
      axes.push_back({key, {}});
      for (const toml::node& element : *array) axes.back().values.push_back(text_of(element));
    }
    return true;
  }
  template <class T>
  static bool assign(T* to, const std::optional<T>& value) {
    if (value) *to = *value;
    return value.has_value();
  }
  template <class Table>
  bool members(Table* v) const {
    const toml::table& table = *node.as_table();
    size_t known = 0;
    bool good = true;
    schema::each_member(*v, [&](const char* name, auto& member, schema::Member in) {
      const toml::node* value = table.get(name);
      known += value != nullptr;
      good = good && (value ? Assign{*value}(&member) : in != schema::Member::must);
    });
    return good && known == table.size();
  }
};

struct WrongMember {
  toml::source_region place;  // of the member, or of the table that lacks one
  std::string what;           // "unknown key wieght; nearest known key: weight"
};

template <class Table>
std::optional<WrongMember> wrong_in(const toml::table& table) {
  Table scratch;
  for (const auto& [key, value] : table) {
    const std::string name(key.str());
    std::vector<std::string> names;
    std::string must_be;
    schema::each_member(scratch, [&](const char* known, auto& member, schema::Member) {
      names.emplace_back(known);
      if (name != known || Assign{value}(&member)) return;
      using Type = std::decay_t<decltype(member)>;
      must_be = std::is_same_v<Type, std::optional<double>>    ? "a number"
                : std::is_same_v<Type, int64_t>                ? "a whole number"
                : std::is_same_v<Type, std::optional<int64_t>> ? "2 or 4"
                : std::is_same_v<Type, std::optional<DataFormat>>
                    ? "one of the values of data.format"
                : std::is_same_v<Type, schema::Weights>
                    ? "numbers by the names of sources: { NAME = WEIGHT }"
                    : "a string";
    });
    if (std::ranges::find(names, name) == names.end())
      return WrongMember{key.source(), "unknown key " + name + "; nearest known key: " +
                                           *std::ranges::min_element(names, {}, [&](const auto& n) {
                                             return edit_distance(name, n);
                                           })};
    if (!must_be.empty()) return WrongMember{key.source(), name + " must be " + must_be};
  }
  std::optional<WrongMember> lacks;
  schema::each_member(scratch, [&](const char* name, auto&, schema::Member in) {
    if (in == schema::Member::must && !lacks && !table.contains(name))
      lacks = {table.source(), std::string("this table lacks ") + name};
  });
  return lacks;
}

/// The first wrong member in the tables of data.blend and data.stage; none of other keys.
std::optional<WrongMember> wrong_member(const Key& key, const toml::node& value) {
  Config scratch;
  const Ref ref = key.at(scratch);
  const bool blend = std::holds_alternative<schema::Blend*>(ref);
  const toml::array* array = value.as_array();
  if (!array || !(blend || std::holds_alternative<schema::Stages*>(ref))) return {};
  for (const toml::node& entry : *array)
    if (const toml::table* table = entry.as_table())
      if (auto wrong = blend ? wrong_in<BlendSource>(*table) : wrong_in<BlendStage>(*table))
        return wrong;
  return {};
}

bool in_range(const Key& key, const Ref& value) {
  if (const auto* v = std::get_if<int64_t*>(&value))
    return schema::contains(key.range, static_cast<double>(**v));
  if (const auto* v = std::get_if<double*>(&value)) return schema::contains(key.range, **v);
  if (const auto* v = std::get_if<schema::Pair*>(&value))
    return schema::contains(key.range, (**v)[0]) && schema::contains(key.range, (**v)[1]);
  if (const auto* v = std::get_if<schema::Integers*>(&value))
    return std::ranges::all_of(**v, [&](int64_t number) {
      return schema::contains(key.range, static_cast<double>(number));
    });
  return true;
}

/// The value that is wrong: of a list of any length, its first entry that is.
const toml::node& wrong_part(const Ref& value, const toml::node& node) {
  const toml::array* array = node.as_array();
  if (!array || std::holds_alternative<schema::Pair*>(value)) return node;
  for (const toml::node& entry : *array) {
    toml::array one;
    one.push_back(entry);
    if (!std::visit(Assign{one}, value)) return entry;
  }
  return node;
}

/// A wrong value leaves the config unchanged.
Status set_value(const Key& key, const toml::node& node, const std::string& where, Config& config) {
  Config scratch;
  const Ref value = key.at(scratch);
  if (!std::visit(Assign{node}, value))
    return bad(where, key.full_name() +
                          (key.is_secret ? "" : " = " + shown(wrong_part(value, node))) +
                          " must be " + schema::expected(key));
  if (!in_range(key, value)) {
    const std::string range = schema::to_string(key.range);
    return bad(where, key.full_name() + " = " + shown(node) +
                          " is out of range: " + (range.empty() ? "it must be finite" : range));
  }
  std::visit(Assign{node}, key.at(config));
  return {};
}

/// Adds an error to the problems. False: it was one.
bool passed(const Status& status, Problems& problems) {
  if (!status.ok()) problems.push_back(status);
  return status.ok();
}

Status apply_key(const std::string& section, const toml::key& name_key, const toml::node& value,
                 const std::string& file, LoadedConfig& loaded) {
  const std::string name(name_key.str()), line = at_line(file, name_key.source());
  const Key* key = schema::find(section, name);
  if (!key) return bad(line, "unknown key " + section + "." + name + nearest(section, name));
  if (const auto wrong = wrong_member(*key, value))
    return bad(at_line(file, wrong->place), key->full_name() + ": " + wrong->what);
  SS_RETURN_IF_ERROR(set_value(*key, value, line, loaded.config));
  loaded.origin[key->full_name()] = line;
  return {};
}

void apply_table(const toml::table& root, const std::string& file, LoadedConfig& loaded,
                 Problems& problems) {
  std::vector<std::string> said;
  for (const auto& [section_key, node] : root) {
    const std::string section(section_key.str());
    if (section == "base") continue;
    const std::string where = at_line(file, section_key.source());
    const bool known = std::any_of(schema::keys().begin(), schema::keys().end(),
                                   [&](const Key& key) { return section == key.section; });
    const toml::table* table = node.as_table();
    if (!known && !table)
      problems.push_back(bad(where, "unknown key " + section + nearest("", section)));
    else if (!known)
      problems.push_back(
          bad(where, "unknown section [" + section + "]" + nearest_section(section)));
    else if (!table)
      problems.push_back(bad(where, section + " must be a section, [" + section + "]"));
    else
      for (const auto& [name, value] : *table)
        if (passed(apply_key(section, name, value, file, loaded), problems))
          said.push_back(section + "." + std::string(name.str()));
  }
  settle_rivals(said, loaded);
}

/// The text of a config. io: it cannot be read now, which says nothing about it.
Result<std::string> read_config(const std::string& path, const std::string& where) {
  const bool wrong_path =
      access(path.c_str(), R_OK) != 0 && path_error(errno, Code::bad_config) == Code::bad_config;
  auto text = read_text(path, kTomlBytesMax);
  if (text.ok()) return text;
  const Status problem = bad(where, text.status().message());
  if (wrong_path || text.status().code() != Code::io) return problem;
  return Status(Code::io, problem.message());
}

Status apply_base(const toml::node& node, const std::string& file, std::vector<fs::path> open,
                  CheckedConfig& checked);

/// Applies the file that `text` inherits, then `text`. open: the files that inherit this one, to
/// find cycles.
void apply_text(const std::string& text, const std::string& file, std::vector<fs::path> open,
                CheckedConfig& checked) {
  const auto parsed = parse_toml(text, file);
  if (!parsed.ok()) {
    checked.complete = passed(parsed.status(), checked.problems);
    return;
  }
  const toml::table& root = *parsed;
  if (const toml::node* node = root.get("base"))
    if (!passed(apply_base(*node, file, std::move(open), checked), checked.problems))
      checked.complete = false;
  apply_table(root, file, checked.loaded, checked.problems);
}

/// Applies the file that `base` names.
Status apply_base(const toml::node& node, const std::string& file, std::vector<fs::path> open,
                  CheckedConfig& checked) {
  const std::string where = at_line(file, node.source());
  const auto base = node.value_exact<std::string>();
  if (!base) return bad(where, "base = " + shown(node) + " must be a string, the path of a file");
  const fs::path path = (fs::path(file).parent_path() / *base).lexically_normal();
  std::error_code ignored;
  const fs::path unique = fs::weakly_canonical(path, ignored);
  if (std::find(open.begin(), open.end(), unique) != open.end())
    return bad(where, "base = \"" + *base + "\" inherits from itself");
  if (open.size() >= inheritance_max)
    return bad(where,
               "more than " + std::to_string(inheritance_max) + " files inherit from each other");
  SS_ASSIGN(const std::string base_text, read_config(path.string(), where));
  open.push_back(unique);
  apply_text(base_text, path.string(), open, checked);
  return {};
}

bool takes_text(const Ref& value) {
  return std::holds_alternative<std::string*>(value) ||
         std::holds_alternative<schema::EnumRef>(value);
}

/// Applies "--section.key=value". The value is in TOML syntax; strings need no quotes. Returns the
/// key's name.
Result<std::string> apply_override(const std::string& argument, const std::string& where,
                                   LoadedConfig& loaded) {
  const std::string text =
      argument.substr(std::min(argument.find_first_not_of('-'), argument.size()));
  const size_t equals = text.find('=');
  const std::string full_name = text.substr(0, equals);
  const size_t dot = full_name.find('.');
  const std::string section = dot == std::string::npos ? "" : full_name.substr(0, dot);
  const std::string name = dot == std::string::npos ? full_name : full_name.substr(dot + 1);
  const Key* key = schema::find(section, name);
  if (!key) return bad(where, "unknown key " + full_name + nearest(section, name));
  if (equals == std::string::npos)
    return bad(where, "a value is missing: --" + full_name + "=VALUE");
  const std::string value = text.substr(equals + 1);
  const bool bare =
      takes_text(key->at(loaded.config)) && !value.starts_with('"') && !value.starts_with('\'');
  toml::table table;
  if (bare) {
    table.insert("v", value);
  } else {
    if (auto parsed = parse_toml("v = " + value, where); parsed.ok()) table = parsed.take();
    if (table.size() != 1 || !table.contains("v"))
      return bad(where, key->full_name() + " must be " + schema::expected(*key));
  }
  if (const auto wrong = wrong_member(*key, *table.get("v")))
    return bad(where, key->full_name() + ": " + wrong->what);
  SS_RETURN_IF_ERROR(set_value(*key, *table.get("v"), where, loaded.config));
  loaded.origin[key->full_name()] = kCommandLine;
  return key->full_name();
}

/// Checks every value of a sweep by itself. Combinations are checked when the sweep is planned.
void check_sweep(const LoadedConfig& loaded, Problems& problems) {
  const auto origin = loaded.origin.find("sweep.keys");
  for (const SweepAxis& axis : loaded.config.sweep.keys) {
    const std::string where = origin->second + ": sweep.keys";
    const Key* key = schema::find(axis.key);
    if (axis.key.starts_with("run.") || axis.key.starts_with("sweep.") || (key && key->is_secret)) {
      problems.push_back(bad(where, axis.key + " cannot be varied" +
                                        (axis.key == "run.seed" ? "; use sweep.seeds" : "")));
      continue;
    }
    for (const std::string& value : axis.values) {
      LoadedConfig copy = loaded;
      if (!passed(apply_override(axis.key + "=" + value, where, copy).status(), problems)) break;
    }
  }
}

/// Relative paths that a file sets become relative to the working directory, as all others are.
void resolve_paths(LoadedConfig& loaded) {
  for (const Key& key : schema::keys()) {
    const std::string& origin = loaded.origin[key.full_name()];
    if (!key.is_path || origin == "default" || origin == kCommandLine) continue;
    const fs::path file = origin.substr(0, origin.rfind(':'));
    for (std::string* path : schema::paths_of(key, loaded.config))
      if (schema::is_relative(*path))
        *path = (file.parent_path() / *path).lexically_normal().string();
  }
}

/// Where an override stands, without the value of a secret, also of one whose name is misspelt.
std::string place_of(const std::string& argument) {
  const size_t begin = std::min(argument.find_first_not_of('-'), argument.size()),
               equals = std::min(argument.find('=', begin), argument.size());
  const std::string name = argument.substr(begin, equals - begin);
  const size_t dot = std::min(name.find('.'), name.size());
  const Key* key = schema::find(name);
  if (!key)
    key = schema::find(
        schema::nearest_key(name.substr(0, dot), name.substr(std::min(dot + 1, name.size()))));
  return kCommandLine +
         (": " + argument.substr(0, key && key->is_secret ? equals : argument.size()));
}

/// secrets: of the run whose config.toml the file is. What the file itself says counts more.
CheckedConfig check_text(const std::string& text, const std::string& file,
                         const Overrides& overrides, const std::string& secrets = "") {
  CheckedConfig checked;
  LoadedConfig& loaded = checked.loaded;
  loaded.file = file;
  for (const Key& key : schema::keys()) loaded.origin[key.full_name()] = "default";
  std::error_code ignored;
  if (!secrets.empty()) apply_text(secrets, file + "'s secrets", {}, checked);
  apply_text(text, file, {fs::weakly_canonical(file, ignored)}, checked);
  std::vector<std::string> said;
  for (const std::string& argument : overrides) {
    const auto key = apply_override(argument, place_of(argument), loaded);
    if (passed(key.status(), checked.problems)) said.push_back(*key);
  }
  settle_rivals(said, loaded);
  note_keys_without_effect(loaded);
  for (const Key& key : schema::keys())
    for (std::string* path : schema::paths_of(key, loaded.config)) *path = path_of_text(*path);
  if (loaded.config.run.name.empty()) loaded.config.run.name = fs::path(file).stem().string();
  for (const Status& problem : check_combinations(loaded.config))
    checked.problems.push_back(located(problem, loaded));
  check_sweep(loaded, checked.problems);
  return checked;
}

Result<LoadedConfig> without_problems(CheckedConfig checked) {
  if (!checked.problems.empty()) return checked.problems.front();
  return std::move(checked.loaded);
}

}  // namespace

Result<LoadedConfig> load_config_text(const std::string& text, const std::string& file,
                                      const Overrides& overrides) {
  return without_problems(check_text(text, file, overrides));
}

Result<LoadedConfig> load_config(const std::string& path, const Overrides& overrides) {
  SS_ASSIGN(const std::string text, read_config(path, "config"));
  SS_ASSIGN(const std::string secrets, secrets_beside(path));
  return without_problems(check_text(text, path, overrides, secrets));
}

CheckedConfig check_user_config(const std::string& path, const Overrides& overrides) {
  const auto text = read_config(path, "config");
  if (!text.ok()) return {{}, {text.status()}, false};
  const auto secrets = secrets_beside(path);
  if (!secrets.ok()) return {{}, {secrets.status()}, false};
  CheckedConfig checked = check_text(*text, path, overrides, *secrets);
  resolve_paths(checked.loaded);
  return checked;
}

Result<LoadedConfig> load_user_config(const std::string& path, const Overrides& overrides) {
  return without_problems(check_user_config(path, overrides));
}

}  // namespace simplescale
