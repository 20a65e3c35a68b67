// data.blend and data.stage: reading, checks, and what may change in a run that exists.
#include "runtime/config/blend.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/config/schema.hpp"
#include "runtime/config/topology.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

const std::string blend = R"(
[model]
preset = "micro"
[train]
max_steps = 10
[[data.blend]]
name = "web"
source = "/web.bin"
weight = 0.7
[[data.blend]]
name = "code"
source = "/code.bin"
weight = 0.3
[[data.blend]]
name = "math"
source = "/math.bin"
)";
const std::string stages = R"(
[[data.stage]]
from_tokens = 2560
weights = { web = 1, math = 1 }
[[data.stage]]
from_tokens = 5121
weights = { math = 0.5 }
)";

Config parsed(const std::string& text) {
  auto loaded = must(load_config_text(text, "a.toml"));
  return loaded->config;
}

/// The error of loading or planning; "": none.
std::string error_of(const std::string& text) {
  const auto loaded = load_config_text(text, "a.toml");
  if (!loaded.ok()) {
    CHECK(loaded.status().code() == Code::bad_config);
    CHECK(loaded.status().message().find('\n') == std::string::npos);
    return loaded.status().message();
  }
  const auto plan = make_plan(*loaded);
  return plan.ok() ? "" : plan.status().message();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_SUITE("blend") {
  TEST_CASE("blend: sources and stages become a mixture in samples, and read back") {
    const Config config = parsed(blend + stages);
    REQUIRE(config.data.blend.size() == 3);
    CHECK_FALSE(config.data.blend[2].weight);
    const auto mixture = must(mixture_of(config, 256));
    CHECK(mixture->names == std::vector<std::string>{"web", "code", "math"});
    const std::vector<Mixture::Stage> expected = {{0, {7, 3, 0}}, {10, {1, 0, 1}}, {21, {0, 0, 1}}};
    CHECK(mixture->stages == expected);  // token 5121 lies in sample 20: the stage begins with 21
    const auto again = must(load_config_text(to_toml(config), "b.toml"));
    CHECK(again->config.data.blend == config.data.blend);
    CHECK(again->config.data.stage == config.data.stage);
    CHECK(make_plan(config)->mixture.names.size() == 3);
    CHECK(make_plan(parsed(replaced(blend.substr(0, blend.find("[[")), "max_steps = 10",
                                    "max_steps = 5")))
              ->mixture.empty());
  }

  TEST_CASE("blend: a source has its own keys of data, or those of data") {
    const std::string keys =
        "text_key = \"body\"\nloss_mask_key = \"\"\nformat = \"text\"\ntoken_bytes = 4\n";
    const Config config = parsed(
        replaced(replaced(blend, "[[",
                          "[data]\ntext_key = \"t\"\nloss_mask_key = \"m\"\ntoken_bytes = 2\n[["),
                 "weight = 0.7\n", "weight = 0.7\n" + keys));
    const auto again = must(load_config_text(to_toml(config), "b.toml"));
    CHECK(again->config.data.blend == config.data.blend);
    const DataConfig own = config_of(config, config.data.blend[0]).data,
                     of_all = config_of(config, config.data.blend[1]).data;
    CHECK(own.source == "/web.bin");
    CHECK(own.blend.empty());
    CHECK(own.text_key == "body");
    CHECK(own.loss_mask_key == "");
    CHECK(own.format == DataFormat::text);
    CHECK(own.token_bytes == 4);
    CHECK(of_all.token_bytes == 2);
    CHECK(of_all.text_key == "t");
    CHECK(of_all.loss_mask_key == "m");
    CHECK(of_all.format == DataFormat::automatic);
  }

  TEST_CASE("blend: relative paths are relative to the file, and become absolute") {
    Config config = parsed(replaced(blend, "/web.bin", "web.bin"));
    make_paths_absolute(config);
    CHECK(config.data.blend[0].source.starts_with('/'));
    CHECK(config.data.blend[0].source.ends_with("/web.bin"));
    CHECK(config.data.blend[1].source == "/code.bin");
    CHECK(config.data.blend[1].folder.empty());
  }

  TEST_CASE("blend: a wrong value is named in one line") {
    const auto wrong = [&](const std::string& from, const std::string& to, const char* expected) {
      const std::string error = error_of(replaced(blend + stages, from, to));
      CHECK_MESSAGE(error.find(expected) != std::string::npos, error);
    };
    for (const char* weight : {"0", "-0.5", "nan", "inf", "-inf"})
      wrong("weight = 0.7", std::string("weight = ") + weight, "\"web\" has weight = ");
    wrong("weight = 0.7", "weight = \"much\"", "data.blend: weight must be a number");
    wrong("weight = 0.7", "wieght = 0.7",
          "data.blend: unknown key wieght; nearest known key: weight");
    wrong("name = \"code\"\n", "", "data.blend: this table lacks name");
    wrong("weight = 0.7", "weight = 0.123456789", "too many digits");
    wrong("weight = 0.7", "weight = 0.7\ntext_key = \"\"", "\"web\" has an empty text_key");
    wrong("weight = 0.7", "weight = 0.7\ntext_key = 3", "data.blend: text_key must be a string");
    wrong("weight = 0.7", "weight = 0.7\nformat = \"nanogtp\"",
          "data.blend: format must be one of");
    for (const char* bytes : {"1", "3", "8", "-2"})
      wrong("weight = 0.7", std::string("weight = 0.7\ntoken_bytes = ") + bytes,
            "\"web\" has token_bytes = ");
    wrong("weight = 0.7", "weight = 0.7\ntoken_bytes = \"4\"", "data.blend: token_bytes must be");
    wrong("weight = 0.7", "weight = 0.7\nloss_mask = \"x\"",
          "unknown key loss_mask; nearest known key: loss_mask_key");
    wrong("source = \"/web.bin\"", "source = \"\"", "\"web\" has an empty source");
    wrong("name = \"web\"", "name = \"a/b\"", "a name must be");
    wrong("name = \"web\"", "name = \"code\"", "two sources have the name \"code\"");
    wrong("[[data.blend]]", "[data]\nsource = \"/x.bin\"\n[[data.blend]]", "exclude each other");
    wrong("web = 1, math", "webs = 1, math",
          "names the source \"webs\", which data.blend lacks: did you mean 'web'?");
    wrong("web = 1, math = 1", "web = 0, math = 1", "\"web\" has weight = 0");
    wrong("web = 1, math = 1", "web = nan, math = 1", "\"web\" has weight = nan");
    wrong("web = 1, math = 1", "", "has no weight above 0");
    wrong("from_tokens = 2560", "from_tokens = 0", "must begin after token 0");
    wrong("from_tokens = 2560", "from_tokens = -1", "must begin after token 0");
    wrong("from_tokens = 5121", "from_tokens = 2560", "must begin after the stage before it");
    wrong("from_tokens = 5121", "from_tokens = 2559", "must begin after the stage before it");
    wrong("from_tokens = 5121", "from_tokens = 2.5",
          "data.stage: from_tokens must be a whole number");
    wrong("from_tokens = 5121", "from_token = 5121",
          "data.stage: unknown key from_token; nearest known key: from_tokens");
    wrong("web = 1, math", "web = true, math", "data.stage: weights must be numbers by the names");
    // The line is that of the member, not of the first table.
    const std::string text = replaced(blend + stages, "weight = 0.3", "wieght = 0.3");
    const auto line = 1 + std::ranges::count(text.substr(0, text.find("wieght")), '\n');
    CHECK_MESSAGE(has(error_of(text), ":" + std::to_string(line) + ": data.blend: unknown key"),
                  error_of(text));
    CHECK(has(error_of(stages), "data.stage needs the sources of [[data.blend]]"));
    std::string unweighted = replaced(blend, "weight = 0.7\n", "");
    CHECK(has(error_of(replaced(unweighted, "weight = 0.3\n", "")), "no weight above 0"));
    std::string many = blend.substr(0, blend.find("[["));
    for (int i = 0; i < 256; ++i)
      many +=
          "[[data.blend]]\nname = \"s" + std::to_string(i) + "\"\nsource = \"/x\"\nweight = 1\n";
    CHECK(error_of(many).find("at most 255") != std::string::npos);
  }

  TEST_CASE("blend: two stages that begin with the same sample are refused") {
    const Config config = parsed(replaced(blend + stages, "5121", "2561"));
    CHECK(mixture_of(config, 1).ok());
    CHECK(says(mixture_of(config, 4096).status(), Code::bad_config,
               "begins with sample 1, as the stage before it does"));
  }

  TEST_CASE("blend: weights of all stages together are bounded") {
    std::string text = blend;
    for (int i = 1; i < 8; ++i)
      text += "[[data.stage]]\nfrom_tokens = " + std::to_string(100'000 * i) +
              "\nweights = { web = 0.500001, code = 0.499999 }\n";
    CHECK(error_of(text).find("above 4000000; round them") != std::string::npos);
  }

  TEST_CASE("blend: a run keeps the mixture that it was trained with, and may change the rest") {
    const Config was = parsed(blend + stages);
    const auto refused = [&](const std::string& text, uint64_t samples) {
      return check_same_mixture(was, parsed(text), 256, samples).message();
    };
    CHECK(refused(blend + stages, 1000) == "");
    const std::string other = replaced(blend + stages, "weight = 0.7", "weight = 0.6");
    CHECK(refused(other, 0) == "");  // nothing was trained
    CHECK(refused(other, 5) ==
          "data.blend: from sample 0 on the weights were web 7, code 3 and are now web 2, code 1; "
          "the run has trained 5 samples of the old mixture: keep its data.blend and data.stage, "
          "and change the mixture from here on by a new [[data.stage]] with from_tokens = 1280 or "
          "more (a new source: a [[data.blend]] without weight)");
    const std::string later = replaced(blend + stages, "math = 0.5", "web = 3, math = 0.5");
    CHECK(refused(later, 21) == "");
    CHECK(refused(later, 22) != "");
    const std::string added = blend + "[[data.blend]]\nname = \"new\"\nsource = \"/new.bin\"\n" +
                              stages +
                              "[[data.stage]]\nfrom_tokens = 25600\nweights = { new = 1 }\n";
    CHECK(refused(added, 100) == "");
    CHECK(refused(added, 101) != "");
    const std::string moved = replaced(blend + stages, "/math.bin", "/other.bin");
    CHECK(refused(moved, 12) == "");  // what it holds is compared at the start
    const auto with = [&](const std::string& key) {
      return replaced(blend + stages, "\"/math.bin\"\n", "\"/math.bin\"\n" + key + "\n");
    };
    CHECK(refused(with("text_key = \"text\""), 12) == "");  // as before
    CHECK(refused(with("text_key = \"body\""), 11) == "");
    CHECK(refused(with("text_key = \"body\""), 12)
              .starts_with("data.blend: \"math\" had text_key = \"text\" and has now \"body\"; "));
    CHECK(refused(with("token_bytes = 2"), 12) == "");  // what is not said is read so
    CHECK(refused(with("token_bytes = 4"), 12).find("and has now \"4\"") != std::string::npos);
    CHECK(has(refused(with("loss_mask_key = \"m\""), 12), "had loss_mask_key = \"\""));
    CHECK(refused(with("format = \"llmc\""), 12).find("and has now \"llmc\"") != std::string::npos);
    const std::string removed = blend.substr(0, blend.find("[["));
    CHECK(refused(removed, 5) != "");
  }

  TEST_CASE("blend: weights and sources are a change of the recipe, which events tell") {
    const Config was = parsed(blend), now = parsed(blend + stages);
    const auto differences = diff(was, now);
    CHECK(differences.defining.empty());
    REQUIRE(differences.allowed.size() == 1);
    CHECK(differences.allowed[0].key == "data.stage");
    CHECK(differences.allowed[0].was == "[]");
  }
}
