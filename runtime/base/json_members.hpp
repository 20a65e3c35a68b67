// Reads members of JSON objects that a file or a stranger wrote: a member that is missing or of
// another type is no error. The library's value() throws for another type, and its const operator[]
// aborts without the member. Any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "runtime/base/parse_json.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// The member, or null.
inline const nlohmann::json& member_of(const nlohmann::json& object, const char* key) {
  static const nlohmann::json none;
  if (!object.is_object()) return none;
  const auto found = object.find(key);
  return found == object.end() ? none : *found;
}

/// `otherwise` if it is no text.
inline std::string text_of(const nlohmann::json& object, const char* key,
                           const std::string& otherwise = "") {
  const nlohmann::json& value = member_of(object, key);
  return value.is_string() ? value.get<std::string>() : otherwise;
}

/// NaN if it is no number.
inline double real_of(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member_of(object, key);
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

/// 0 if it is no number, or one that a double does not hold exactly.
inline int64_t whole_of(const nlohmann::json& object, const char* key) {
  const double value = real_of(object, key);
  return std::isfinite(value) && std::abs(value) < 9e15 ? static_cast<int64_t>(value) : 0;
}

/// Nothing if it is no whole number, or a negative one.
inline std::optional<uint64_t> unsigned_of(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = member_of(object, key);
  return value.is_number_unsigned() ? std::optional(value.get<uint64_t>()) : std::nullopt;
}

/// The value of a file's text; null if it could not be read or is no JSON.
inline nlohmann::json json_of(const Result<std::string>& text) {
  nlohmann::json value = text.ok() ? parse_json(*text) : nlohmann::json();
  return value.is_discarded() ? nlohmann::json() : value;
}

}  // namespace simplescale
