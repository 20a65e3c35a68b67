#include "runtime/base/json_text.hpp"

#include <doctest/doctest.h>

#include <limits>

namespace simplescale {

TEST_CASE("json: a rounded number has no more digits than its unit, and NaN becomes null") {
  CHECK(rounded(5940.7000001, 0.1).dump() == "5940.7");
  CHECK(rounded(2.675499, 0.001).dump() == "2.675");
  CHECK(rounded(-1234.4, 1).dump() == "-1234.0");
  CHECK(rounded(std::numeric_limits<double>::quiet_NaN(), 0.1).is_null());
}

TEST_CASE("json: bytes that are not UTF-8 do not throw") {
  CHECK(json_text({{"path", "a\xff"}}) == "{\"path\":\"a\xEF\xBF\xBD\"}");
}

}  // namespace simplescale
