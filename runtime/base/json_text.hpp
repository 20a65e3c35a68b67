// JSON as text. Any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace simplescale {

/// Whatever bytes its strings are made of: those that are not UTF-8 (of a log's line, of a path)
/// are replaced, where dump() throws. indent: spaces a level; -1: all in one line.
inline std::string json_text(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace simplescale
