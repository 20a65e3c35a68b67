// train.group, train.optimizer, train.z_loss and train.batch_warmup: reading, checks, and what may change.
#include <doctest/doctest.h>

#include "runtime/config/preflight.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/show.hpp"
#include "runtime/config/topology.hpp"
#include "tests/must.hpp"

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
  return must(load_config_text(text, "a.toml")).take();
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
    CHECK(has(shown, "*norm*: 9 parameters, learning rate x 1, weight decay 0.01\n"));
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
      CHECK(has(error_of(plain + "[[train.group]]\n" + wrong), "must be a list of"));
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

  TEST_CASE("recipe: the average may begin or end in a run, and needs memory and room on disk") {
    const LoadedConfig without = loaded(plain), with = loaded(plain + "ema_decay = 0.999");
    const auto changed = diff(without.config, with.config);
    CHECK(changed.defining.empty());
    REQUIRE(changed.allowed.size() == 1);
    CHECK(changed.allowed[0].key == "train.ema_decay");
    CHECK(error_of(plain + "ema_decay = 1").find("out of range") != std::string::npos);
    const auto before = make_plan(without), after = make_plan(with);
    CHECK(3 * after->memory.state == 4 * before->memory.state);
    CHECK(3 * checkpoint_bytes(*after) == 4 * checkpoint_bytes(*before));
    CHECK(host_needs(with.config, *after, 2).shared >
          host_needs(without.config, *before, 2).shared);
  }

  TEST_CASE("recipe: moments in bf16 save a third of the state, and may begin or end in a run") {
    const LoadedConfig fp32 = loaded(plain), bf16 = loaded(plain + "moments_precision = \"bf16\"");
    const auto changed = diff(fp32.config, bf16.config);
    CHECK(changed.defining.empty());
    REQUIRE(changed.allowed.size() == 1);
    CHECK(changed.allowed[0].key == "train.moments_precision");
    const auto before = make_plan(fp32), after = make_plan(bf16);
    CHECK(2 * before->memory.state == 3 * after->memory.state);
    CHECK(2 * checkpoint_bytes(*before) == 3 * checkpoint_bytes(*after));
    CHECK(host_needs(bf16.config, *after, 2).shared < host_needs(fp32.config, *before, 2).shared);
    CHECK(show_config(bf16).find("moments in bf16") != std::string::npos);
    CHECK(show_config(fp32).find("moments in bf16") == std::string::npos);
  }

  TEST_CASE("recipe: Muon is shown with the number of its matrices, and needs memory") {
    const LoadedConfig adamw = loaded(plain), muon = loaded(plain + "optimizer = \"muon\"");
    CHECK(show_config(muon).find("Muon for the 28 matrices of the blocks") != std::string::npos);
    CHECK(show_config(adamw).find("Muon") == std::string::npos);
    CHECK(make_plan(muon)->memory.total() > make_plan(adamw)->memory.total());
  }

  TEST_CASE("recipe: a batch warm-up plans its steps, and the length of the run by them") {
    const std::string text = R"(
[model]
preset = "micro"
block_size = 16
[cluster]
nodes = 2
trainers_per_node = 1
[train]
micro_batch_size = 2
global_batch_size = 16
max_tokens = 2000
warmup_tokens = 200
[[train.batch_warmup]]
until_tokens = 161
global_batch_size = 4
[[train.batch_warmup]]
until_tokens = 400
global_batch_size = 8
)";
    const LoadedConfig config = loaded(text);
    CHECK(loaded(to_toml(config.config)).config.train.batch_warmup ==
          config.config.train.batch_warmup);
    const Plan plan = make_plan(config).take();
    // 4 4 4 | 8 8 | 16 ... samples; 125 samples are at most 5 + 6 steps of 28 + 96.
    const BatchSchedule::Stage stages[] = {{4, 11}, {8, 25}};
    CHECK(plan.batch == BatchSchedule(16, stages));
    CHECK(plan.max_steps == 11);
    CHECK(plan.max_tokens == 124 * 16);
    CHECK(plan.max_iters == 31);
    CHECK(plan.learning_rate.warmup_steps == 4);  // 13 samples
    CHECK(plan.leaves == 8);
    CHECK(show_config(config).find("3 steps of 4 samples, then 2 of 8\n") != std::string::npos);

    const auto without = diff(config.config, loaded(text.substr(0, text.find("[["))).config);
    REQUIRE(without.defining.size() == 1);
    CHECK(without.defining[0].key == "train.batch_warmup");
  }

  TEST_CASE("recipe: a batch warm-up that cannot be trained is refused") {
    const auto error = [](const std::string& warmup) {
      return error_of(plain + "micro_batch_size = 2\nglobal_batch_size = 8\n" + warmup);
    };
    const auto stage = [](int64_t until, int64_t size) {
      return "[[train.batch_warmup]]\nuntil_tokens = " + std::to_string(until) +
             "\nglobal_batch_size = " + std::to_string(size) + "\n";
    };
    CHECK(error(stage(1000, 4)).empty());
    CHECK(has(error(stage(1000, 3)), "train.micro_batch_size = 2: use 2 or 4"));
    CHECK(error(stage(1000, 10)).find("at most train.global_batch_size, 8") != std::string::npos);
    CHECK(error(stage(1000, 0)).find("at least 1") != std::string::npos);
    CHECK(error(stage(0, 4)).find("ends before it begins") != std::string::npos);
    CHECK(error(stage(1000, 4) + stage(1000, 6)).find("does not end after") != std::string::npos);
    CHECK(error("batch_warmup = [4]").find("must be a list of") != std::string::npos);
  }
}
