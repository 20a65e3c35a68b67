// JSON as text, and numbers for it. Any thread.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace simplescale {

/// Whatever bytes its strings are made of: those that are not UTF-8 (of a log's line, of a path)
/// are replaced, where dump() throws. indent: spaces a level; -1: all in one line.
inline std::string json_text(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// JSON has no NaN and no infinity.
inline nlohmann::json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

/// To whole multiples of `unit`.
inline nlohmann::json rounded(double value, double unit) {
  return number_or_null(std::round(value / unit) * unit);
}

}  // namespace simplescale
