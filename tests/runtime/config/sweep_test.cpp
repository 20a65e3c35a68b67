#include <doctest/doctest.h>

#include "runtime/config/show.hpp"
#include "runtime/config/sweep.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

std::string error_of(const std::string& text) {
  const auto loaded = load_config_text(text, "a.toml");
  if (!loaded.ok()) return loaded.status().message();
  const auto runs = expand_sweep(loaded->config);
  return runs.ok() ? "no error" : runs.status().message();
}

std::vector<SweepRun> runs_of(const std::string& text) {
  const auto loaded = must(load_config_text(text, "a.toml"));
  return must(expand_sweep(loaded->config)).take();
}

}  // namespace

TEST_SUITE("sweep") {
  TEST_CASE("sweep: a grid has every combination with every seed") {
    const auto runs = runs_of(
        "[sweep]\nseeds = [1, 2]\n[sweep.keys]\ntrain.learning_rate = [1e-3, 2e-3]\n"
        "train.precision = [\"fp32\", \"bf16\"]\n");
    REQUIRE(runs.size() == 8);
    CHECK(runs[0].overrides == std::vector<std::string>{"--train.learning_rate=0.001",
                                                        "--train.precision=\"fp32\"",
                                                        "--run.seed=1"});
    CHECK(runs[0].name == "000-learning_rate-0.001-precision-fp32-seed-1");
    CHECK(runs[1].choices.back() == std::pair<std::string, std::string>{"run.seed", "2"});
    CHECK(runs[2].choices[1].second == "\"bf16\"");
    CHECK(runs[4].choices[0].second == "0.002");
    CHECK(runs[7].name == "007-learning_rate-0.002-precision-bf16-seed-2");
  }

  TEST_CASE("sweep: zip advances all lists together, once for every seed") {
    const auto runs = runs_of(
        "[sweep]\nmode = \"zip\"\nseeds = [7, 8]\nkeys = { \"train.betas\" = [[0.9, 0.95], [0.8, "
        "0.9]], \"model.layers\" = [2, 4] }\n");
    REQUIRE(runs.size() == 4);
    CHECK(runs[1].overrides[0] == "--model.layers=2");
    CHECK(runs[1].overrides[2] == "--run.seed=8");
    CHECK(runs[2].overrides[0] == "--model.layers=4");
    CHECK(runs[2].name == "002-layers-4-betas-0.8-0.9-seed-7");
  }

  TEST_CASE("sweep: seeds alone, and keys alone") {
    CHECK(runs_of("[sweep]\nseeds = [3, 4, 5]\n").size() == 3);
    CHECK(runs_of("[sweep]\nkeys = { train = { eps = [1e-8] } }\n").size() == 1);
  }

  TEST_CASE("sweep: an impossible sweep is an error with its line") {
    CHECK(has(error_of(""), "nothing to vary"));
    CHECK(has(error_of("[sweep]\nmode = \"random\"\n"), "\"grid\" or \"zip\""));
    CHECK(has(error_of("[sweep]\nseeds = [1.5]\n"), "a list of integers"));
    CHECK(has(error_of("[sweep]\nseeds = [-1]\n"), "out of range"));
    CHECK(has(error_of("[sweep]\nkeys = { \"train.eps\" = 1e-8 }\n"), "lists of values by key"));
    CHECK(has(error_of("[sweep]\nkeys = { \"train.eps\" = [] }\n"), "lists of values by key"));
    CHECK(has(error_of("[sweep]\n\nkeys = { \"train.epps\" = [1] }\n"),
              "a.toml:3: sweep.keys: unknown key train.epps; nearest known key: train.eps"));
    CHECK(has(error_of("[sweep]\nkeys = { \"train.eps\" = [1e-8, -1] }\n"), "out of range"));
    CHECK(has(error_of("[sweep]\nkeys = { \"run.seed\" = [1] }\n"), "use sweep.seeds"));
    CHECK(has(error_of("[sweep]\nkeys = { \"run.folder\" = [\"x\"] }\n"), "cannot be varied"));
    CHECK(has(error_of("[sweep]\nmode = \"zip\"\nkeys = { \"train.eps\" = [1e-8, 1e-7], "
                       "\"model.layers\" = [1] }\n"),
              "same length; model.layers has 1 values and train.eps 2"));
    std::string many = "[sweep]\nseeds = [0";
    for (int i = 1; i < 101; ++i) many += ", " + std::to_string(i);
    std::string layers = many.substr(many.find('[', 8));
    CHECK(has(error_of(many + "]\nkeys = { \"model.layers\" = " + layers + "] }\n"),
              "more than 10000 runs"));
  }

  TEST_CASE("sweep: a config with a sweep survives to_toml(), and its runs are the same training") {
    const std::string text =
        "[sweep]\nmode = \"zip\"\nseeds = [1]\n[sweep.keys]\ndata.source = [\"a b\\\"c\", "
        "\"d\"]\ntrain.betas = [[0.5, 0.25], [0.5, 0.125]]\ntrain.deterministic = [true, false]\n";
    const auto loaded = must(load_config_text(text, "a.toml"));
    const auto back = must(load_config_text(to_toml(loaded->config), "b.toml"));
    CHECK(back->config.sweep.keys == loaded->config.sweep.keys);
    CHECK(to_toml(back->config) == to_toml(loaded->config));
    Config without = loaded->config;
    without.sweep = {};
    CHECK(diff(without, loaded->config).defining.empty());
  }
}
