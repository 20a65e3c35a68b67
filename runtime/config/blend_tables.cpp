#include "runtime/config/blend_tables.hpp"

#include <algorithm>
#include <vector>

#include "runtime/base/words.hpp"
#include "runtime/config/schema.hpp"

namespace simplescale {

namespace {

struct Member {
  const char* name;
  bool required;
  const char* must_be;
  bool (*fits)(const toml::node&);
};

bool is_text(const toml::node& node) {
  return node.is_string();
}

bool is_format(const toml::node& node) {
  DataFormat ignored{};
  const auto text = node.value_exact<std::string>();
  return text && std::ranges::find(schema::format_of(ignored).names, *text) !=
                     schema::format_of(ignored).names.end();
}

bool are_weights(const toml::node& node) {
  const toml::table* table = node.as_table();
  return table && std::all_of(table->begin(), table->end(),
                              [](const auto& entry) { return entry.second.is_number(); });
}

const std::vector<Member>& members_of(const std::string& key) {
  static const std::vector<Member> none,
      blend = {{"name", true, "a string", is_text},
               {"source", true, "a string", is_text},
               {"weight", false, "a number", [](const toml::node&n) { return n.is_number(); }},
               {"folder", false, "a string", is_text},
               {"text_key", false, "a string", is_text},
               {"loss_mask_key", false, "a string", is_text},
               {"format", false, "one of the values of data.format", is_format},
               {"token_bytes", false, "2 or 4", [](const toml::node&n) { return n.is_integer(); }}},
      stage = {
          {"from_tokens", true, "a whole number",
           [](const toml::node&n) { return n.is_integer(); }},
          {"weights", true, "numbers by the names of sources: { NAME = WEIGHT }", are_weights}};
  return key == "data.blend" ? blend : key == "data.stage" ? stage : none;
}

std::optional<WrongMember> wrong_in(const toml::table& table, const std::vector<Member>& members) {
  std::vector<std::string> names;
  for (const Member& member : members) names.emplace_back(member.name);
  for (const auto& [name, value] : table) {
    const auto known = std::ranges::find(names, std::string(name.str()));
    if (known == names.end())
      return WrongMember{name.source(),
                         "unknown key " + std::string(name.str()) + "; nearest known key: " +
                             *std::ranges::min_element(names, {}, [&](const auto& n) {
                               return edit_distance(std::string(name.str()), n);
                             })};
    const Member& member = members[static_cast<size_t>(known - names.begin())];
    if (!member.fits(value))
      return WrongMember{name.source(), *known + " must be " + member.must_be};
  }
  for (const Member& member : members)
    if (member.required && !table.contains(member.name))
      return WrongMember{table.source(), std::string("this table lacks ") + member.name};
  return {};
}

}  // namespace

std::optional<WrongMember> wrong_member(const std::string& key, const toml::node& value) {
  const std::vector<Member>& members = members_of(key);
  const toml::array* array = value.as_array();
  if (!array || members.empty()) return {};
  for (const toml::node& entry : *array)
    if (const toml::table* table = entry.as_table())
      if (auto wrong = wrong_in(*table, members)) return wrong;
  return {};
}

}  // namespace simplescale
