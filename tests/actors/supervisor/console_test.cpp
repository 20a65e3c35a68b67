// The console: completion, what it draws, and how the supervisor reads commands.
#include <doctest/doctest.h>

#include <algorithm>

#include "actors/supervisor/commands.hpp"
#include "actors/supervisor/verbs.hpp"
#include "app/commands/render.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/faults.hpp"
#include "tests/must.hpp"

using namespace simplescale;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

json trainer(const char* name, const char* group, int shard) {
  return {{"name", name},   {"pid", 40}, {"rank", shard},      {"shard", shard},
          {"group", group}, {"step", 7}, {"state", "training"}};
}

json document() {
  json spare = trainer("n2.0", "", 0);
  spare["group"] = spare["shard"] = nullptr;
  spare["state"] = "idle";
  return {{"run", "r"},
          {"state", "training"},
          {"generation", 3},
          {"step", 7},
          {"max_steps", 20},
          {"loss", 1.5},
          {"tokens_per_second", 12.4},
          {"incidents", 1},
          {"paused", false},
          {"supervisor", {{"node", "n0"}, {"pid", 11}}},
          {"standby", nullptr},
          {"nodes",
           {{{"name", "n0"},
             {"host", "h"},
             {"state", "up"},
             {"pid", 12},
             {"group", "g1"},
             {"reason", ""},
             {"trainers", {trainer("n0.0", "g0", 0), trainer("n0.1", "g1", 0)}}},
            {{"name", "n2"},
             {"host", "h"},
             {"state", "spare"},
             {"pid", 13},
             {"group", nullptr},
             {"reason", "waits"},
             {"trainers", {spare}}}}}};
}

/// Two groups of one node with two trainers each, after step 5, and a spare node.
job::State training() {
  job::State s = job::make_state({2, 2, 1, 2, 1}, {"n0", "n1", "n2"});
  s.phase = job::Phase::training;
  s.generation = 4;
  s.committed_step = 5;
  s.layout.domains = {{"n0"}, {"n1"}};
  for (auto& [name, node] : s.nodes) node.state = job::NodeState::up;
  for (auto& [name, t] : s.trainers)
    t.state = name.starts_with("n2") ? job::TrainerState::idle : job::TrainerState::training;
  return s;
}

Request parse(const std::string& line, const job::State& state = training()) {
  return parse_command(state, split_words(line), "me@here, process 1");
}

template <class E>
bool is(const Request& request) {
  return request.error.empty() && request.event && std::holds_alternative<E>(*request.event);
}

}  // namespace

TEST_SUITE("console") {
  TEST_CASE("console: Tab completes commands, nodes, trainers, groups and fault kinds") {
    CHECK(completions(document(), {}, "dr") == Words{"drain"});
    CHECK(completions(document(), {}, "st") == Words{"status", "stop"});
    CHECK(completions(document(), {"help"}, "wat") == Words{"watch"});
    CHECK(completions(document(), {"drain"}, "") == Words{"n0", "n2"});
    CHECK(completions(document(), {"drain", "n0"}, "").empty());
    CHECK(completions(document(), {"restart"}, "") == Words{"g0", "g1", "n0.0", "n0.1", "n2.0"});
    CHECK(completions(document(), {"inject"}, "kill_s") == Words{"kill_supervisor"});
    CHECK(completions(document(), {"plan"}, "").size() == fault_kinds().size());
    CHECK(completions(document(), {"plan", "kill_agent"}, "n0") == Words{"n0", "n0.0", "n0.1"});
    CHECK(completions(document(), {"inject", "kill_agent", "n0"}, "--a") == Words{"--at"});
    CHECK(completions(document(), {"set"}, "cluster.m") == Words{"cluster.min_groups"});
    CHECK(completions(document(), {"nothing"}, "").empty());
    CHECK(completions(json(), {"drain"}, "").empty());
    CHECK(completions({{"nodes", {1, {{"trainers", {2}}}}}}, {"restart"}, "").empty());
    CHECK(common_prefix({"status", "stop"}) == "st");
    CHECK(common_prefix({"drain"}) == "drain");
    CHECK(common_prefix({}) == "");
  }

  TEST_CASE("console: commands that would change nothing, and wrong arguments, are refused") {
    job::State state = training();
    state.nodes.at("n1").state = job::NodeState::drained;
    CHECK(parse("drain n1", state).error == "n1 is drained already");
    CHECK(parse("undrain n0", state).error == "n0 is up, not drained");
    CHECK(is<job::DrainRequested>(parse("undrain n1", state)));
    CHECK(parse("undrain n9", state).error == "there is no node 'n9'");
    CHECK(parse("resume runs/my").error ==
          "`resume` takes no argument; it acts on the run of this console");
    CHECK(parse("inject slow_node n1 --ms -5").error ==
          "--ms needs a whole number of milliseconds, 0 or more; '-5' is none");
    CHECK(parse("inject kill_agent n1 --at").error == "--at needs a whole number");
  }

  TEST_CASE("console: a fault on what is not there is refused with a sentence") {
    job::State state = training();
    state.nodes["n0"].state = job::NodeState::absent;
    state.max_steps = 200;
    state.nodes["n1"].state = job::NodeState::lost;
    state.nodes["n1"].reason = "its agent has ended";
    for (const char* fault : {"inject kill_agent n0", "inject kill_trainer n0.1",
                              "inject corrupt_snapshot n0", "inject disk_full n0 --ms 5"})
      CHECK(parse(fault, state).error == "n0 is absent: its agent has not reported yet");
    CHECK(parse("inject slow_node n1", state).error == "n1 is lost: its agent has ended");
    CHECK(parse("inject kill_supervisor", state).error == "");
    CHECK(parse("inject kill_agent n0 --at 100", state).error == "");  // it may be there by then
    CHECK(parse("plan kill_agent n0", state).error == "");
    state = training();
    state.trainers["n1.0"].state = job::TrainerState::down;
    CHECK(parse("inject kill_trainer n1.0", state).error.starts_with("n1.0 has no process now"));
    CHECK(parse("inject kill_trainer n1.1", state).error == "");
    CHECK(parse("inject kill_agent n1", state).error == "");
  }

  TEST_CASE("console: the status says what is wrong with the records, and why a run is over") {
    json over = document();
    over["why"] = "gave up: node n1 is drained";
    over["next"] = "to continue from the newest checkpoint: simplescale resume runs/x";
    CHECK(render_status(over, {}).find("\n" + std::string(over["why"]) + "\n" +
                                       std::string(over["next"]) + "\n") != std::string::npos);
    json full = document();
    full["notice"] = "the records in r are 23 s old";
    CHECK(render_tree(full, {}).find("\nthe records in r are 23 s old\n") != std::string::npos);
  }

  TEST_CASE("console: the status shows a stall") {
    json stalled = document();
    CHECK(render_status(stalled, {}).find("no step") == std::string::npos);
    stalled["stall"] = {{"sentence", "no step for 12 s, waiting for n0.0 (backward, block 3)"}};
    CHECK(has(render_status(stalled, {}),
              "\nno step for 12 s, waiting for n0.0 (backward, block 3)\n"));
  }

  TEST_CASE("console: the tree has groups, their nodes and trainers; nodes without a group last") {
    const std::string text = render_tree(document(), {});
    CHECK(text ==
          "r: training, step 7 of 20, loss 1.5000, 12 tokens/s, generation 3, 1 incident\n"
          "supervisor on n0 (process 11)\n"
          "├─ g0\n"
          "│  └─ n0 up h (process 12)\n"
          "│     └─ n0.0 training shard 0 (process 40)\n"
          "├─ g1\n"
          "│  └─ n0 up h (process 12)\n"
          "│     └─ n0.1 training shard 0 (process 40)\n"
          "└─ spares and others\n"
          "   └─ n2 spare h (process 13): waits\n"
          "      └─ n2.0 idle (process 40)\n");
    CHECK(render_tree(document(), {true, 0}).find("\033[32mtraining\033[0m") != std::string::npos);
    const std::string narrow = render_tree(document(), {false, 12});
    CHECK(narrow.starts_with("r: training,\nsupervisor o\n├─ g0\n│  └─ n0 up \n"));
    CHECK(render_nodes(document(), {}).find("n2       spare") != std::string::npos);
  }

  TEST_CASE("console: status shows pace, age and rest of the run, and the load of each node") {
    json now = document();
    now["step_ms"] = 212.4;
    now["step_time"] = 1000.0;
    now["remaining_s"] = 4330.0;
    now["nodes"][0]["health"] = {
        {"cpu", 0.834}, {"memory", 0.98}, {"disk", 0.5}, {"busiest", {{"step_ms", 211.7}}}};
    const std::string text = render_tree(now, {false, 0, 1000.3});
    CHECK(has(text, "\n212 ms a step, the last one 0.3 s ago, 1 h 12 min left\nsupervisor"));
    json shaped = now;
    shaped["shape"] = "3 groups of 1 node (configured: 2 of 2)";
    CHECK(has(render_status(shaped, {false, 0, 1000.3}),
              " left\n3 groups of 1 node (configured: 2 of 2)\nsupervisor"));
    CHECK(has(text, "n0 up h (process 12), cpu 83 %, memory 98 %, step 212 ms\n"));
    CHECK(text.find("n2 spare h (process 13): waits\n") != std::string::npos);
    const std::string colored = render_tree(now, {true, 0, 1000.3});
    CHECK(colored.find("\033[31mmemory 98 %\033[0m") != std::string::npos);
    now["state"] = "finished";
    CHECK(render_status(now, {}).find("a step") == std::string::npos);
  }

  TEST_CASE("console: any document is rendered, and cannot send control codes to the terminal") {
    for (const json& odd : {json(), json(1), json("x"), json::array({1, 2}),
                            json{{"nodes", 3}, {"supervisor", 1}, {"step", "x"}},
                            json{{"nodes", {{{"trainers", {{{"group", "gx"}}}}}}}}}) {
      render_tree(odd, {});
      render_nodes(odd, {});
      render_events({odd}, {true, 20});
      render_incident({odd}, {});
      render_diagnosis(odd, {});
    }
    CHECK(render_events({{{"reason", "\033[2Jx\n"}}}, {}).find('\033') == std::string::npos);
  }

  TEST_CASE("console: the supervisor knows every command that it has to answer") {
    for (const Verb& verb : verbs()) {
      const std::string error = parse(verb.name).error;
      CHECK_MESSAGE(
          (has(error, "unknown")) == (verb.answerer == Answerer::console && verb.name != "why"),
          verb.name);
    }
    CHECK(parse("nonsense").error == "unknown command 'nonsense'");
    CHECK_FALSE(parse("").error.empty());
  }

  TEST_CASE("console: commands become events, and impossible ones are refused with a reason") {
    CHECK(is<job::PauseRequested>(parse("pause")));
    CHECK(is<job::StopRequested>(parse("stop")));
    CHECK(is<job::DrainRequested>(parse("drain n1")));
    CHECK(is<job::DiagnoseRequested>(parse("diagnose n1")));
    CHECK(std::get<job::DrainRequested>(*parse("remove n1").event).for_good);
    CHECK_FALSE(std::get<job::DrainRequested>(*parse("drain n1").event).for_good);
    CHECK(parse("remove n7").error == "there is no node 'n7'");
    CHECK(parse("drain").error == "drain NODE");
    CHECK(parse("drain n7").error == "there is no node 'n7'");
    CHECK(parse("add n7").error.find("train --join RUN") != std::string::npos);
    CHECK(parse("add n1").error.find("not drained") != std::string::npos);
    job::State state = training();
    state.nodes["n2"].state = job::NodeState::drained;
    CHECK(is<job::DrainRequested>(parse("add n2", state)));
    CHECK(is<job::DrainRequested>(parse("undrain n2", state)));
    CHECK(parse("diagnose n2", state).error == "n2 is drained, not up");
    CHECK(std::get<job::DiagnoseRequested>(*parse("diagnose all", state).event).nodes ==
          Words{"n0", "n1"});
    CHECK(parse("diagnose").error == "diagnose NODE|all");
    CHECK(parse("diagnose n7").error == "there is no node 'n7'");
    state.examined = {"n0"};
    CHECK(parse("diagnose n1", state).error == "a diagnosis is under way");
    state.nodes["n2"].state = job::NodeState::lost;
    CHECK(parse("add n2", state).error.find("by itself") != std::string::npos);
  }

  TEST_CASE("console: restart takes a trainer or a group, save picks a trainer that trains") {
    CHECK(parse("restart n1.1").restart == Words{"n1.1"});
    CHECK(parse("restart g1").restart == Words{"n1.0", "n1.1"});
    CHECK(parse("restart n2.0").error == "no trainer or group 'n2.0' trains");
    CHECK(parse("save").save == "n0.0");
    job::State state = training();
    state.paused = true;
    state.phase = job::Phase::recovering;
    CHECK(parse("save", state).error == "the run is paused; `resume` continues it");
    CHECK(!parse("save", state).early);
  }

  TEST_CASE(
      "console: save and restart between two generations are to be asked again, not refused") {
    job::State leaving = training();
    leaving.leaving = true;           // as `set train.learning_rate` makes it
    job::State between = training();  // all trainers have left, phase is still training
    for (auto& [name, trainer] : between.trainers) trainer.state = job::TrainerState::idle;
    job::State starting = training();
    starting.phase = job::Phase::starting;
    starting.layout.domains.clear();
    job::State recovering = training();
    recovering.phase = job::Phase::recovering;
    for (const job::State& state : {leaving, between, starting, recovering}) {
      CHECK(parse("save", state).early);
      CHECK(parse("save", state).error.starts_with("no trainer trains now: "));
      CHECK(!parse("restart nonsense", recovering).early);
    }
    CHECK(parse("restart n2.0", recovering).early);  // it may train in the next generation
    CHECK(!parse("restart n2.0", training()).early);
    for (job::State state : {leaving, starting}) {
      state.stop_requested = true;  // no generation that trains follows
      CHECK(!parse("save", state).early);
      CHECK(parse("save", state).error.find("being stopped") != std::string::npos);
      state.phase = job::Phase::failed;
      CHECK(parse("save", state).error.find("over") != std::string::npos);
    }
  }

  TEST_CASE("console: help explains every command with an example that the console accepts") {
    for (const Verb& verb : verbs()) {
      const std::string text = explained(verb);
      CHECK_MESSAGE(text.find("Example:\n  " + verb.name) != std::string::npos, text);
      CHECK_MESSAGE(text.find(verb.help) != std::string::npos, text);
    }
    CHECK(explained(*find_verb("drain")) ==
          "drain NODE\n"
          "  take a node out of training; a spare replaces it, or fewer groups train\n"
          "  Nothing is lost: the node leaves after the current step.\n"
          "Example:\n"
          "  drain n1    before n1's host is repaired\n");
  }

  TEST_CASE("console: plan and inject without arguments list all kinds of faults") {
    for (const char* verb : {"plan", "inject"}) {
      CHECK(parse(verb).error.empty());
      CHECK_FALSE(parse(verb).acts());
      const auto reply = answer_question(training(), Incidents(), std::nullopt, {verb});
      REQUIRE(reply);
      for (const std::string& kind : fault_kinds()) {
        REQUIRE_FALSE(fault_help(kind).empty());
        CHECK(reply->text.find("  " + kind + " ") != std::string::npos);
        CHECK(reply->text.find(fault_help(kind) + "\n") != std::string::npos);
        CHECK(json::parse(reply->json)["kinds"].contains(kind));
      }
    }
    CHECK(
        parse("inject kill_trainr n1.0").error ==
        "there is no fault 'kill_trainr': did you mean 'kill_trainer'?; `inject` lists all kinds");
  }

  TEST_CASE("console: watch shows what matters in the rows that there are") {
    std::vector<json> events;
    for (int i = 0; i < 40; ++i)
      events.push_back({{"time", i}, {"step", i}, {"kind", "checkpoint_saved"}, {"subject", "s"}});
    events.push_back({{"time", 50}, {"step", 9}, {"kind", "recovered"}, {"reason", "n1.0 died"}});
    json page = document();
    const std::string all = render_watch(page, events, 30, {});
    CHECK(all.find("│     └─ n0.0 training shard 0") != std::string::npos);  // the whole tree
    CHECK(all.find("n1.0 died") != std::string::npos);
    CHECK(std::ranges::count(all, '\n') == 30);
    page["nodes"] = json::array();
    for (int i = 0; i < 64; ++i) {
      const std::string name = "n" + std::to_string(i), group = "g" + std::to_string(i / 2);
      json t = trainer((name + ".0").c_str(), group.c_str(), i % 2);
      if (i == 7) t["state"] = "down";
      if (i == 9) t["slowness"] = 1.5;
      page["nodes"].push_back({{"name", name},
                               {"state", i == 5 ? "lost" : "up"},
                               {"reason", i == 5 ? "silent" : ""},
                               {"trainers", {t}}});
    }
    page["stall"] = {{"sentence", "no step for 12 s, waiting for n7.0"}};
    for (const size_t rows : {6u, 12u, 20u, 40u}) {
      const std::string some = render_watch(page, events, rows, {});
      CHECK(static_cast<size_t>(std::ranges::count(some, '\n')) <= rows);
      CHECK(some.find("no step for 12 s, waiting for n7.0") != std::string::npos);
    }
    const std::string some = render_watch(page, events, 20, {});
    CHECK(some.find("n5 lost") != std::string::npos);
    CHECK(some.find("n7: n7.0 down") != std::string::npos);
    CHECK(some.find("n9: n9.0 1.50 times as slow") != std::string::npos);
    CHECK(some.find("31 of 32 groups train") != std::string::npos);
    CHECK(some.find("g3: 1 down 1 training") != std::string::npos);
    CHECK(some.find("n8 ") == std::string::npos);
  }

  TEST_CASE("console: set changes the settings that may change in a running job, and no others") {
    job::State state = training();
    auto set = [&](const std::string& line) {
      const Request request = parse(line, state);
      REQUIRE_MESSAGE(request.event, request.error);
      return job::decide(0, state, *request.event);
    };
    CHECK(set("set supervision.max_restarts 9").reason == "supervision.max_restarts = 9");
    CHECK(state.max_restarts == 9);
    set("set supervision.within_s 7");
    CHECK(state.within_ms == 7000);
    CHECK(set("set cluster.min_groups 3").reason ==
          "cluster.min_groups must be at most 2, the number of groups");
    CHECK(state.rules.min_domains == 1);
    set("set cluster.min_groups 2");
    CHECK(state.rules.min_domains == 2);
    CHECK(set("set cluster.join_timeout_ms 0").actions.empty());
    for (const auto& [key, value] : job::settings(state))
      if (key != "train.learning_rate") CHECK(set("set " + key + " 2").reason == key + " = 2");
    CHECK(set("set train.learning_rate 2e-4").reason ==
          "train.learning_rate = 0.0002 from the next step on");
    CHECK(job::settings(state).back().second == "0.0002");
    for (const char* value : {"-1", "3", "nan", "two", ""})
      CHECK_FALSE(parse(std::string("set train.learning_rate ") + value, state).error.empty());
    CHECK_FALSE(parse("set train.max_steps 7").error.empty());
    CHECK_FALSE(parse("set cluster.min_groups two").error.empty());
    CHECK_FALSE(parse("set cluster.min_groups").error.empty());
    CHECK(parse("set").error.empty());
  }
}
