#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/parse_toml.hpp"

using namespace simplescale;
using nlohmann::json;

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

namespace simplescale {

namespace {

std::string repeated(size_t times, const std::string& text) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("toml: keys, headers and values nested deeper than the bound are refused") {
  constexpr size_t kDeep = 100'000;
  const std::string deep = repeated(kDeep, "a."), half = repeated(40, "a.");
  for (const std::string& text :
       {deep + "a = 1", "[" + deep + "a]\nb = 1", "[[" + deep + "a]]\nb = 1",
        repeated(kDeep, "\"a\" . ") + "a = 1", "v = { " + deep + "a = 1 }",
        "v = " + repeated(kDeep, "[") + "1", "[" + half + "a]\n" + half + "b = 1",
        "v = [" + repeated(40, "{a.a.a = [\n") + "1" + repeated(40, "]}") + "]",
        "s = '''a''\n'''\n" + deep + "a = 1", "s = \"\"\"a\\\"\"\"\"\n" + deep + "a = 1"}) {
    const auto parsed = parse_toml(text, "f");
    CHECK_MESSAGE(!parsed.ok(), text.substr(0, 40));
    CHECK(parsed.status().message().find("nested deeper than 64") != std::string::npos);
  }
  CHECK(parse_toml("\n" + deep + "a = 1", "f").status().message().starts_with("f:2:"));
}

TEST_CASE("toml: dots and brackets in strings, comments and numbers are not nested") {
  const std::string many = repeated(1000, ".[{");
  for (const std::string& text :
       {"a = \"" + many + "\"", "a = '" + many + "'", "a = \"\"\"\n" + many + "\"\"\"\nb = 1",
        "a = '''" + many + "\n" + many + "'''''\nb = 1", "# " + many + "\na = 1",
        "a = \"\\\"" + many + "\"", "a = [" + repeated(1000, "1.5, ") + "2.5]",
        repeated(1000, "[[t]]\na.b = 1.5\n"), "a = \"\" # " + many,
        std::string("a = \"....\"\r\n[b]\r\nc = 1\r\n")}) {
    const auto parsed = parse_toml(text, "f");
    CHECK_MESSAGE(parsed.ok(), text.substr(0, 40), " ", parsed.status().message());
  }
  CHECK(parse_toml("", "f")->empty());
}

TEST_CASE("toml: what is no TOML, or too large, is refused with file and line") {
  CHECK(parse_toml("a = 1\nb = [", "f").status().message().starts_with("f:2: "));
  CHECK(parse_toml("a = 1\na = 2", "f").status().code() == Code::bad_config);
  CHECK(!parse_toml(std::string(kTomlBytesMax + 1, ' '), "f").ok());
  CHECK(parse_toml(std::string(kTomlBytesMax, ' '), "f").ok());
}

}  // namespace simplescale
