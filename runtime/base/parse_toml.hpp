// Reads TOML that a file or a stranger wrote. The library bounds nested values, but not the parts of
// a dotted key or header, and frees nested tables recursively: "a.a.a. ... = 1" overflows the stack.
// Every TOML file is read here. Any thread.
#pragma once

#include <toml++/toml.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/base/status.hpp"

namespace simplescale {

inline constexpr size_t kTomlDepthMax = 64;  // our own files need 3
inline constexpr size_t kTomlBytesMax = size_t{1} << 20;

/// The tables of a text. file: its name for messages. bad_config: it is no TOML, has more than
/// kTomlBytesMax, or nests tables and arrays deeper than kTomlDepthMax; the message begins with
/// FILE:LINE.
Result<toml::table> parse_toml(std::string_view text, const std::string& file);

}  // namespace simplescale
