#include "runtime/base/json_members.hpp"

#include <doctest/doctest.h>

using namespace simplescale;
using nlohmann::json;

TEST_CASE("json members: a member that is missing or of another type is no error") {
  const json others[] = {json(),
                         json("text"),
                         json(7),
                         json(1.5),
                         json(true),
                         json::array({1, 2}),
                         json(1e300),
                         json(UINT64_MAX),
                         json::object(),
                         json(-3),
                         json::parse("{", nullptr, false)};
  for (const json& value : others) {
    const json object = {{"key", value}};
    CHECK(text_of(object, "key", "otherwise") == (value.is_string() ? "text" : "otherwise"));
    CHECK(std::isnan(real_of(object, "key")) == !value.is_number());
    CHECK(member_of(value, "key").is_null());
    CHECK(text_of(value, "key").empty());
    CHECK(std::isnan(real_of(value, "key")));
    CHECK(whole_of(value, "key") == 0);
  }
  CHECK(whole_of({{"a", 7}}, "a") == 7);
  CHECK(whole_of({{"a", -3}}, "a") == -3);
  CHECK(whole_of({{"a", 1e300}}, "a") == 0);
  CHECK(whole_of({{"a", UINT64_MAX}}, "a") == 0);
  CHECK(whole_of({{"b", 7}}, "a") == 0);
}
