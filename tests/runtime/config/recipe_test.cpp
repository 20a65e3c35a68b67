// train.group, train.optimizer and train.z_loss: reading, checks, and what may change.
#include <doctest/doctest.h>

#include "runtime/config/schema.hpp"
#include "runtime/config/show.hpp"
#include "runtime/config/topology.hpp"

using namespace simplescale;

namespace {

const std::string plain = R"(
[model]
preset = "micro"
[train]
max_steps = 10
)";
const std::string groups = R"(
[[train.group]]
pattern = "*.embed_tokens.*"
learning_rate_factor = 0.5
[[train.group]]
pattern = "*norm*"
weight_decay = 0.01
)";

LoadedConfig loaded(const std::string& text) {
  auto config = load_config_text(text, "a.toml");
  REQUIRE_MESSAGE(config.ok(), config.status().message());
  return config.take();
}

/// The error of loading or planning; "": none.
std::string error_of(const std::string& text) {
  const auto config = load_config_text(text, "a.toml");
  const Status status = config.ok() ? make_plan(*config).status() : config.status();
  CHECK(status.code() == (status.ok() ? Code::ok : Code::bad_config));
  CHECK(status.message().find('\n') == std::string::npos);
  return status.message();
}

}  // namespace

TEST_SUITE("recipe") {
  TEST_CASE("recipe: groups of parameters are read, written back and shown") {
    const LoadedConfig config = loaded(plain + groups);
    const std::vector<ParameterGroup> expected{{"*.embed_tokens.*", 0.5, {}}, {"*norm*", 1, 0.01}};
    CHECK(config.config.train.group == expected);
    CHECK(loaded(to_toml(config.config)).config.train.group == expected);
    CHECK(error_of(plain + groups).empty());
    const std::string shown = show_config(config);
    CHECK(shown.find("*.embed_tokens.*: 1 parameter, learning rate x 0.5\n") != std::string::npos);
    CHECK(shown.find("*norm*: 9 parameters, learning rate x 1, weight decay 0.01\n") !=
          std::string::npos);
  }

  TEST_CASE("recipe: a group without effect is refused with the line of the key") {
    CHECK(error_of(plain + "[[train.group]]\npattern = \"*.embed.*\"\nweight_decay = 0.0") ==
          "a.toml:6: train.group: \"*.embed.*\" matches no parameter of the model; names are such "
          "as model.layers.0.mlp.down_proj.weight and lm_head.weight");
    CHECK(error_of(plain + groups + "[[train.group]]\npattern = \"model.norm.*\"\n" +
                   "weight_decay = 0.0")
              .ends_with("\"model.norm.*\" matches only parameters that an earlier group matches: "
                         "put it first"));
    for (const char* wrong :
         {"pattern = \"*\"", "weight_decay = 0.1", "pattern = \"*\"\nweight_decay = true",
          "pattern = \"*\"\nweight_decay = 0.1\nlr = 2"})
      CHECK(error_of(plain + "[[train.group]]\n" + wrong).find("must be a list of") !=
            std::string::npos);
    CHECK(error_of(plain + "z_loss = 2").find("out of range") != std::string::npos);
  }

  TEST_CASE("recipe: groups and z-loss may change in a run, the optimizer may not") {
    const Config was = loaded(plain).config;
    const auto changed = diff(was, loaded(plain + "z_loss = 1e-4\n" + groups).config);
    CHECK(changed.defining.empty());
    REQUIRE(changed.allowed.size() == 2);
    CHECK(changed.allowed[0].key == "train.group");
    CHECK(changed.allowed[1].key == "train.z_loss");
    const auto other = diff(was, loaded(plain + "optimizer = \"muon\"").config);
    REQUIRE(other.defining.size() == 1);
    CHECK(other.defining[0].key == "train.optimizer");
  }

  TEST_CASE("recipe: Muon is shown with the number of its matrices, and needs memory") {
    const LoadedConfig adamw = loaded(plain), muon = loaded(plain + "optimizer = \"muon\"");
    CHECK(show_config(muon).find("Muon for the 28 matrices of the blocks") != std::string::npos);
    CHECK(show_config(adamw).find("Muon") == std::string::npos);
    CHECK(make_plan(muon)->memory.total() > make_plan(adamw)->memory.total());
  }
}
