// What is wrong in the tables of data.blend and data.stage, for messages. Pure; used by load.cpp.
#pragma once

#include <toml++/toml.h>

#include <optional>
#include <string>

namespace simplescale {

struct WrongMember {
  toml::source_region place;  // of the member, or of the table that lacks one
  std::string what;           // "unknown key wieght; nearest known key: weight"
};

/// The first wrong member in a list of tables. key: "data.blend" or "data.stage"; none for other keys,
/// and if `value` is no list of tables.
std::optional<WrongMember> wrong_member(const std::string& key, const toml::node& value);

}  // namespace simplescale
