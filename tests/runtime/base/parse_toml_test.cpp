#include "runtime/base/parse_toml.hpp"

#include <doctest/doctest.h>

#include <string>

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
