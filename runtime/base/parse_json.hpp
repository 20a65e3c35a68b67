// Reads JSON that a file or a stranger wrote. The library reads text of any depth without recursion,
// but copies, compares and prints values recursively: a few MB of "[[[[" overflow the stack later.
// Every JSON file that may come from somebody else is read here. Any thread.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

namespace simplescale {

inline constexpr size_t kJsonDepthMax = 64;  // our own files need 8, tokenizer.json needs 7

/// True if no value of the text is inside more than depth_max arrays and objects. Looks only at
/// brackets and strings: the text may be no JSON.
bool json_depth_at_most(std::string_view text, size_t depth_max = kJsonDepthMax);

/// The value, or a discarded value (is_discarded()) if the text is no JSON or deeper than
/// kJsonDepthMax.
nlohmann::json parse_json(std::string_view text);

}  // namespace simplescale
