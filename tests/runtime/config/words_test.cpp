// Suggestions for misspelt words, and checks of fault targets.
#include <doctest/doctest.h>

#include "runtime/base/words.hpp"
#include "runtime/config/faults.hpp"

using namespace simplescale;

TEST_SUITE("words") {
  TEST_CASE("words: the nearest known word, if one is near") {
    const std::vector<std::string> commands = {"train", "status", "digest", "plot"};
    CHECK(nearest_word("trian", commands) == "train");
    CHECK(nearest_word("Status", commands) == "status");
    CHECK(nearest_word("frobnicate", commands) == "");
    CHECK(nearest_word("", commands) == "");
    CHECK(nearest_word("plto", commands) == "plot");
    CHECK(did_you_mean("digst", commands) == ": did you mean 'digest'?");
    CHECK(nearest_word("n9.0", {"n0.0", "n1.0"}) == "n0.0");
  }
}

TEST_SUITE("config faults") {
  TEST_CASE("faults: an unknown or wrong target gives an error with the nearest valid one") {
    const std::vector<std::string> nodes = {"n0", "n1"}, trainers = {"n0.0", "n1.0"};
    const auto wrong = [&](const std::string& kind, const std::string& target) {
      return check_fault(kind, target, nodes, trainers).message();
    };
    CHECK(wrong("kill_trainer", "n1.0") == "");
    CHECK(wrong("kill_trainer", "n1") == "");  // means its first trainer
    CHECK(wrong("kill_agent", "n1") == "");
    CHECK(wrong("kill_supervisor", "supervisor") == "");
    CHECK(wrong("kill_supervisor", "") == "");
    CHECK(wrong("kill_trainer", "n9.0") ==
          "there is no node or trainer 'n9.0': did you mean 'n0.0'?");
    CHECK(wrong("kill_agent", "n1.0") ==
          "kill_agent needs a node, but 'n1.0' is a trainer: did you mean 'n1'?");
    CHECK(wrong("kill_agent", "g0") == "there is no node 'g0': did you mean 'n0'?");
    CHECK(wrong("kill_supervisor", "n0") != "");
    CHECK(wrong("kill_trainr", "n0.0") ==
          "there is no fault 'kill_trainr': did you mean 'kill_trainer'?");
  }

  TEST_CASE("faults: make_plan() refuses faults that cannot happen in the run") {
    Config config;
    config.model.preset = "micro";
    config.train.max_steps = 10;
    config.cluster.nodes = 2;
    config.cluster.spares = 1;
    const auto error = [&](FaultSpec fault) {
      config.inject.faults = {fault};
      return make_plan(config).status().message();
    };
    CHECK(error({10, "kill_trainer", "n1.0"}) == "");
    CHECK(error({1, "kill_agent", "n2"}) == "");  // a spare
    CHECK(
        error({1, "kill_trainer", "n3.0"}).starts_with("inject.faults: step 1: there is no node"));
    CHECK(error({11, "kill_trainer", "n1.0"}) ==
          "inject.faults: step 11: the run ends after step 10, so this kill_trainer would never "
          "happen");
  }
}
