// Writes JSON text, and makes numbers fit for JSON. Any thread.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace simplescale {

/// Like value.dump(), but bytes that are not UTF-8 (in a log line or a path) are replaced by
/// U+FFFD, where dump() throws. indent: spaces per level; -1: one line.
inline std::string json_text(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// The number, or null for NaN and infinity, which JSON does not have.
inline nlohmann::json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

/// The value rounded to a multiple of `unit`, a power of 0.1; null as above. Dividing by 10 gives
/// 5940.7, where multiplying by 0.1 gives 5940.700000000001.
inline nlohmann::json rounded(double value, double unit) {
  const double in_one = std::round(1 / unit);
  return number_or_null(std::round(value * in_one) / in_one);
}

}  // namespace simplescale
