#include "runtime/base/parse_json.hpp"

#include <doctest/doctest.h>

#include <string>

namespace simplescale {

TEST_CASE("json: text nested deeper than the bound is refused, brackets in strings do not count") {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + "1" + std::string(depth, ']');
  };
  CHECK(parse_json(nested(kJsonDepthMax)).is_array());
  CHECK(parse_json(nested(kJsonDepthMax + 1)).is_discarded());
  CHECK(parse_json(std::string(8 << 20, '[')).is_discarded());
  CHECK(parse_json("\"" + std::string(1000, '{') + "\"").is_string());
  CHECK(parse_json("\"\\\"" + std::string(1000, '{') + "\"").is_string());
  CHECK(parse_json("{\"a\": [" + std::string(70, ' ') + "]}").is_object());
  CHECK(parse_json("{").is_discarded());
  CHECK(parse_json("").is_discarded());
}

}  // namespace simplescale
