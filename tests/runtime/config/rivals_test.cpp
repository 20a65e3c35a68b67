// Keys that say the same thing: what was said last counts, and the user is told. Numbers that are
// others in fp32.
#include "runtime/config/rivals.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "runtime/config/topology.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using test::TempFolder;

namespace {

LoadedConfig loaded(const std::string& text, const Overrides& overrides = {}) {
  return must(load_config_text(text, "a.toml", overrides)).take();
}

std::string notes(const LoadedConfig& config) {
  std::string text;
  for (const std::string& note : config.notes) text += note + "\n";
  return text;
}

constexpr const char* kModel = "[model]\npreset = \"micro\"\n";

}  // namespace

TEST_SUITE("rivals") {
  TEST_CASE("rivals: the length that was said last counts, and the other one is told") {
    const std::string text = std::string(kModel) + "[train]\nmax_iters = 60\n";
    CHECK(notes(loaded(text)).empty());
    const LoadedConfig longer = loaded(text, {"--train.max_steps=120"});
    CHECK(longer.config.train.max_iters == 0);
    CHECK(make_plan(longer)->max_steps == 120);
    CHECK(notes(longer) ==
          "train.max_iters = 60 (a.toml:4) does not count, because train.max_steps = 120 (command "
          "line) says how long the run is\n");
    CHECK(longer.origin.at("train.max_iters") == "default");
    // What is said to be unset says nothing of the others.
    const LoadedConfig unset = loaded(text, {"--train.max_steps=0"});
    CHECK(unset.config.train.max_iters == 60);
    CHECK(notes(unset).empty());
    const LoadedConfig both = loaded(text, {"--train.max_steps=120", "--train.max_iters=70"});
    CHECK(make_plan(both)->max_steps == 70);
    CHECK(
        notes(both) ==
        "train.max_iters = 70 (command line) and train.max_steps = 120 (command line) both say how "
        "long the run is: the run ends at the first of them that is reached\n");
    const LoadedConfig tokens =
        loaded(std::string(kModel) + "[train]\nmax_tokens = 1_000_000\nmax_steps = 3\n",
               {"--train.max_steps=400"});
    CHECK(make_plan(tokens)->max_steps == 400);
    CHECK(has(notes(tokens), "train.max_tokens = 1000000 (a.toml:4) does not count"));
  }

  TEST_CASE("rivals: the file counts before the one that it inherits, for every kind") {
    const TempFolder folder;
    folder.write("base.toml", std::string(kModel) +
                                  "[train]\nmax_steps = 10\nwarmup_iters = 4\n"
                                  "[data]\nsource = \"a.txt\"\n[tokenizer]\nkind = \"byte_bpe\"\n");
    const std::string file =
        folder.write("run.toml",
                     "base = \"base.toml\"\n[train]\nmax_tokens = 1_000_000\nwarmup_steps = 2\n"
                     "[tokenizer]\npath = \"t.json\"\n"
                     "[[data.blend]]\nname = \"a\"\nsource = \"b.txt\"\nweight = 1\n");
    const auto config = must(load_user_config(file));
    CHECK(config->config.train.max_steps == 0);
    CHECK(config->config.train.warmup_iters == -1);
    CHECK(config->config.data.source.empty());
    CHECK(config->notes.size() == 4);
    for (const std::string& note : config->notes)
      CHECK_MESSAGE(note.find("base.toml:") != std::string::npos, note);
    const auto again = must(load_user_config(
        file, {"--train.warmup_tokens=2000", "--data.source=c.txt", "--tokenizer.kind=bpe"}));
    CHECK(again->config.train.warmup_steps == -1);
    CHECK(again->config.data.blend.empty());
    CHECK(again->config.tokenizer.path.empty());
    // Of one place.
    CHECK(has(
        make_plan(*load_user_config(file, {"--train.warmup_tokens=9", "--train.warmup_steps=1"}))
            .status(),
        "exclude each other"));
  }

  TEST_CASE("rivals: a run's config.toml, which has every key, gives the same config again") {
    const LoadedConfig first = loaded(std::string(kModel) + "[train]\nmax_iters = 60\n");
    const LoadedConfig again = loaded(to_toml(first.config));
    CHECK(notes(again).empty());
    CHECK(to_toml(again.config) == to_toml(first.config));
    const LoadedConfig resumed = loaded(to_toml(first.config), {"--train.max_steps=120"});
    CHECK(make_plan(resumed)->max_steps == 120);
    CHECK(resumed.notes.size() == 1);
  }

  TEST_CASE(
      "rivals: keys without effect, and those that a later preset does not change, are told") {
    const auto has = [](const std::string& text, const Overrides& overrides,
                        const std::string& part) {
      const std::string found = notes(loaded(std::string(kModel) + text, overrides));
      CHECK_MESSAGE(found.find(part) != std::string::npos, found);
    };
    has("[train]\nschedule = \"constant\"\ndecay_steps = 3\n", {},
        "train.decay_steps = 3 (a.toml:5) has no effect: train.schedule is \"constant\"");
    has("", {"--train.decay_power=3"}, "train.decay_power = 3.0 (command line) has no effect");
    has("", {"--data.document_end=3"}, "data.document_end = 3 (command line) has no effect");
    CHECK(must(load_config_text("", "a.toml", {"--data.document_end=3", "--data.pack=best_fit"}))
              ->notes.empty());
    has("", {"--train.learning_rate=1e-4", "--train.weight_decay=1e-4"}, "train.weight_decay");
    has("vocab = 500\n", {"--model.preset=mini"},
        "model.preset = \"mini\" (command line) does not change model.vocab = 500 (a.toml:3): keys "
        "of "
        "[model] override a preset");
    CHECK(notes(loaded("[model]\npreset = \"micro\"\ndim = 64\n")).empty());
  }

  TEST_CASE("config: numbers that are 0, 1 or infinite in fp32 are refused") {
    const auto error = [](const std::string& override_) {
      const auto config = load_config_text(kModel, "a.toml", {override_});
      return config.ok() ? std::string("no error") : config.status().message();
    };
    CHECK(error("--train.eps=1e-46") ==
          "command line: train.eps = 1e-46 is 0 in fp32, in which it is used: the smallest number "
          "is 1.2e-38");
    CHECK(error("--train.betas=[0.9, 0.99999999]").find("is 1 in fp32") != std::string::npos);
    CHECK(error("--train.betas=[0.99999998, 0.9]").find("is 1 in fp32") != std::string::npos);
    CHECK(error("--train.ema_decay=0.99999999").find("is 1 in fp32") != std::string::npos);
    CHECK(error("--train.muon_momentum=0.999999999").find("is 1 in fp32") != std::string::npos);
    CHECK(error("--train.weight_decay=1e-50").find("is 0 in fp32") != std::string::npos);
    CHECK(error("--train.learning_rate=1e-50").find("is 0 in fp32") != std::string::npos);
    CHECK(error("--train.grad_clip=1e39").find("is infinite in fp32") != std::string::npos);
    CHECK(error("--train.z_loss=1e-60").find("is 0 in fp32") != std::string::npos);
    CHECK(error("--model.norm_eps=1e-300").find("is 0 in fp32") != std::string::npos);
    CHECK(has(error("--train.group=[{ pattern = \"*\", weight_decay = 1e-60 }]"), "is 0 in fp32"));
    for (const char* fine :
         {"--train.eps=1e-30", "--train.betas=[0.0, 0.9999999]", "--train.ema_decay=0.9999999",
          "--train.weight_decay=0", "--train.grad_clip=0", "--train.min_learning_rate=-1"})
      CHECK_MESSAGE(error(fine) == "no error", fine);
  }
}
