// The run folder's records: the replicated state, the status document, and health.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "actors/supervisor/decision/rollback.hpp"
#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/rates.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "actors/supervisor/status.hpp"
#include "actors/supervisor/supervisor.hpp"
#include "runtime/base/files.hpp"
#include "runtime/run/run_folder.hpp"
#include "tests/actors/supervisor/candidate_folder.hpp"
#include "tests/actors/supervisor/records_folder.hpp"
#include "tests/must.hpp"

using namespace simplescale;
using test::CandidateFolder, test::state_of;

namespace {

using Folder = test::RecordsFolder;

SupervisorState some_state() {
  SupervisorState s;
  s.job = job::make_state({2, 2, 1, 2, 1}, {"n0", "n1", "n2"});
  s.job.phase = job::Phase::training;
  s.job.generation = 7;
  s.job.layout.domains = {{"n0"}, {"n2"}};
  s.job.nodes["n0"] = {job::NodeState::up, 41, {5, 6}, "", 1000, {900, 950}, 12, false,
                       {{1, 33, 6, 2}}};
  s.job.nodes["n0"].failed = {"n0.1"};
  s.job.nodes["n0"].instructions = InstructionSet::amx;
  s.job.instructions = InstructionSet::avx512;
  s.job.nodes["n0"].micro_batch_us = 1'700;
  s.job.balance = true;
  s.job.weights = {1000, 600};
  s.job.leaves = 12;
  s.job.balance_pause_ms = 70;
  s.job.balance_after_ms = 800;
  s.job.trainers["n2.1"] = {
      job::TrainerState::training, 99, {1, 2, 255}, {{1, 32, 6, 2}, {1, 33, 7, 2}}, 33, 7, true};
  s.job.suspect_steps = {{30, 4}};
  s.job.rollbacks = {{4, 0}, {7, 33}};
  s.job.rules.domain_sizes = {2, 3};
  s.job.rules.rate_first = true;
  s.job.proven_size = 2;
  s.job.failed_sizes = {{3, 1}};
  s.job.bad_copies = {{"n1.0", 33, 6, 2}};
  s.job.rates = {{{20, 0.1}, {34, 3e-4}}, 2e-4};
  s.job.waiting_since_ms = 990;
  s.job.exit = Code::requeue;
  s.job.exit_reason = "a \"reason\"";
  s.now_ms = 1100;
  s.term = 3;
  s.sequence = 1ull << 60;
  s.incidents = 2;
  s.incident_since_ms = 1050;
  s.recorded = true;
  s.recorded_step = 31;
  s.planned = {{"nan_loss", "n0.1", 40, 5, 0.5}};
  s.traced = {38, 39};
  return s;
}

}  // namespace

TEST_SUITE("job records") {
  TEST_CASE("state codec: decode() restores the encoded state") {
    SupervisorState s = some_state();
    s.job.saving = {33, 6};
    s.job.nodes["n0"].answered = 7;
    const auto bytes = encode(s);
    auto back = must(decode(bytes));
    CHECK(encode(*back) == bytes);
    // JOB-1: a new supervisor waits for no save and counts no answer of which only the last one knew.
    CHECK(back->job.saving.step == 0);
    CHECK(back->job.nodes["n0"].answered == 0);
    CHECK(back->job.layout == s.job.layout);
    CHECK(back->job.rules == s.job.rules);
    CHECK(back->job.proven_size == 2);
    CHECK(back->job.failed_sizes == std::map<int, int>{{3, 1}});
    CHECK(back->job.bad_copies == s.job.bad_copies);
    CHECK(back->job.instructions == InstructionSet::avx512);
    CHECK(back->job.nodes["n0"].micro_batch_us == 1'700);
    CHECK(back->job.balance);
    CHECK(back->job.leaves == 12);
    CHECK(back->job.balance_pause_ms == 70);
    CHECK(back->job.balance_after_ms == 800);
    CHECK(back->job.weights == std::vector<uint32_t>{1000, 600});
    CHECK(back->job.nodes["n0"].instructions == InstructionSet::amx);
    CHECK(back->job.trainers["n2.1"].address == s.job.trainers.at("n2.1").address);
    CHECK(back->job.trainers["n2.1"].held == s.job.trainers.at("n2.1").held);
    CHECK(back->job.nodes["n0"].peer == s.job.nodes.at("n0").peer);
    CHECK(job::undone(back->job, 33, 6));
    CHECK(!job::undone(back->job, 32, 6));
    CHECK(job::is_suspect(back->job, 30, 4));
    CHECK(back->job.nodes["n0"].failures_ms == std::vector<int64_t>{900, 950});
    CHECK(back->job.nodes["n0"].failed == s.job.nodes["n0"].failed);
    CHECK(back->job.exit == Code::requeue);
    CHECK(back->sequence == 1ull << 60);
    CHECK(back->planned == s.planned);
    CHECK(back->traced == s.traced);
  }

  TEST_CASE("learning rates: the next start reads what was stored, unless another is configured") {
    for (const job::Rates& rates : {job::Rates{}, job::Rates{{{20, 0.1}, {34, 3e-4}}, -1},
                                    job::Rates{{{20, 1.0 / 3}}, 2e-4}}) {
      const auto back = must(rates_of(rates_text(rates, 1e-3), 1e-3));
      CHECK(*back == rates);
      CHECK(*rates_of(rates_text(rates, 1e-3), 2e-3) == job::Rates{});
    }
    for (const char* damaged :
         {"", "{}", "[]", R"({"configured":0.001,"requested":null,"changes":[{"step":2}]})",
          R"({"configured":0.001,"requested":null,"changes":[{"step":0,"learning_rate":1}]})"})
      CHECK(rates_of(damaged, 1e-3).status().code() == Code::bad_data);
  }

  TEST_CASE("state codec: a partial, damaged or inconsistent state is refused") {
    const auto bytes = encode(some_state());
    for (size_t n = 0; n < bytes.size(); n += 7) CHECK(!decode({bytes.data(), n}).ok());
    SupervisorState s = some_state();
    s.job.layout.domains = {{"n9"}};
    CHECK(!decode(encode(s)).ok());
    s = some_state();
    s.job.trainers.erase("n1.1");
    CHECK(!decode(encode(s)).ok());
    s = some_state();
    s.job.phase = static_cast<job::Phase>(77);
    CHECK(!decode(encode(s)).ok());
    s = some_state();
    s.job.examined = {"n9"};
    CHECK(!decode(encode(s)).ok());
    for (size_t i = 0; i < bytes.size(); ++i) {  // any damage: no crash
      auto damaged = bytes;
      damaged[i] ^= 0x5A;
      (void)decode(damaged).ok();
    }
  }

  TEST_CASE("state codec: JOB-3, no older state replaces one that cannot be read") {
    // A read that failed once made a supervisor go on from the state of the term before.
    const CandidateFolder f;
    const std::string run = f.run.path, newest = run + "/" + state_page("a", 3);
    CHECK(!*read_left_state(run, "a", 3));
    f.leave_state(1, state_of(1, 7, 7));
    CHECK(read_left_state(run, "a", 3)->value().term == 1);  // 2 and 3 decided nothing
    CandidateFolder::make_unreadable(newest);
    CHECK(read_left_state(run, "a", 3).status().code() == Code::io);
    std::filesystem::remove(newest);
    REQUIRE(write_file_atomic(newest, "damaged").ok());
    CHECK(read_left_state(run, "a", 3).status().code() == Code::bad_data);
    f.leave_state(3, state_of(3, 1, 8));
    CHECK(read_left_state(run, "a", 3)->value().term == 3);
    CHECK(read_left_state(run, "a", 1)->value().term == 1);
  }

  TEST_CASE("state codec: JOB-1, a state that was left uncompared does not replace a newer one") {
    // A standby led, and could not read the page of term 2. It waited, without acting, until it
    // could, although other hosts could read the page.
    const CandidateFolder f;
    const auto newest = [&] { return read_left_state(f.run.path, "a", 4)->value(); };
    f.leave_state(1, state_of(1, 90, 7));
    f.leave_state(3, state_of(2, 15, 8));  // the standby leads term 3
    CHECK(newest().sequence == 15);
    f.leave_state(2, state_of(2, 14, 8));
    CHECK(newest().sequence == 15);
    f.leave_state(2, state_of(2, 20, 8));
    CHECK(newest().sequence == 20);
    f.leave_state(4, state_of(2, 15, 8));  // the next one could not read it either
    CHECK(newest().sequence == 20);
    CandidateFolder::make_unreadable(f.run.path + "/" + state_page("a", 2));
    CHECK(read_left_state(f.run.path, "a", 4).status().code() == Code::io);
    f.leave_state(4, state_of(4, 1, 9));  // it has compared them, and decided
    CHECK(newest().term == 4);
  }

  TEST_CASE("state codec: rebase() converts times to another clock") {
    SupervisorState s = some_state();
    rebase(s, 5'001'100);
    CHECK(s.job.nodes["n0"].since_ms == 5'001'000);
    CHECK(s.job.nodes["n0"].failures_ms == std::vector<int64_t>{5'000'900, 5'000'950});
    CHECK(s.incident_since_ms == 5'001'050);
  }

  TEST_CASE("status: the same object in one line and with a line for each node") {
    JobSupervisorState s;
    s.job = some_state().job;
    s.job.rules.shards = 2;
    s.job.committed_step = 31;
    s.options.config.run.name = "a \"run\"";
    s.agents["n0"].host = "host \\0";
    s.anomalies.step(1, 2.0, 1.0, {{"n0.0", 100}, {"n0.1", 100}, {"n2.0", 100}, {"n2.1", 137}});
    Journal journal("/nonexistent", nullptr, 0);
    s.health.add({.node = "n0", .cpu = 0.5}, 0, 0, journal);
    const std::string one = status_text(s, false), many = status_text(s, true);
    CHECK(one.find('\n') == std::string::npos);
    CHECK(std::ranges::count(many, '\n') == 3);
    const auto document = nlohmann::json::parse(one);
    CHECK(document == nlohmann::json::parse(many));
    CHECK(document["run"] == "a \"run\"");
    CHECK(document["standby"].is_null());
    CHECK(document["stall"].is_null());
    s.stall = job::Stall{12'340, {"n0.0"}, false, StepPhase::backward, 3};
    const auto stall = nlohmann::json::parse(status_text(s, false))["stall"];
    CHECK(stall["since_s"] == 12.3);
    CHECK(stall["waiting_for"] == "n0.0");
    CHECK(stall["phase"] == "backward");
    CHECK(stall["unit"] == 3);
    CHECK(stall["sentence"] == "no step for 12 s, waiting for n0.0 (backward, block 3)");
    // `train` reads the first line alone: all but the nodes.
    CHECK(nlohmann::json::accept(many.substr(0, many.find('\n')) + "]}"));
    REQUIRE(document["nodes"].size() == 3);
    const auto &n0 = document["nodes"][0], &n1 = document["nodes"][1], &n2 = document["nodes"][2];
    CHECK(n0["host"] == "host \\0");
    CHECK(n0["health"]["cpu"] == 0.5);
    CHECK(n0["peer_copies"] == nlohmann::json::parse(R"([{"shard": 1, "shards": 2, "step": 33}])"));
    CHECK(n1["group"].is_null());
    CHECK(n1["health"].is_null());
    CHECK(n2["group"] == "g1");
    CHECK(n2["trainers"][1] == nlohmann::json::parse(R"({"name": "n2.1", "pid": 99, "rank": 3,
      "shard": 1, "group": "g1", "state": "training", "step": 31, "micro_batches": 0,
      "slowness": 1.37})"));
    CHECK(n1["trainers"][0] == nlohmann::json::parse(R"({"name": "n1.0", "pid": 0, "rank": null,
      "shard": null, "group": null, "state": "down", "step": 31, "micro_batches": 0,
      "slowness": null})"));
  }

  TEST_CASE("health: one line a minute, and the last reports when an incident begins") {
    Folder folder;
    HealthHistory health;
    Journal journal(folder.path);
    const auto report = [](double step_ms) {
      return NodeHealth{.node = "n1",
                        .trainers = {{.trainer = "n1.0", .step_ms = step_ms, .wait_ms = 60},
                                     {.trainer = "n1.1", .step_ms = step_ms, .wait_ms = 30}}};
    };
    const auto times = [&] {
      REQUIRE(journal.flush());
      std::vector<int> found;
      std::istringstream file(folder.text("health.jsonl"));
      for (std::string line; std::getline(file, line);)
        found.push_back(nlohmann::json::parse(line)["time"].get<int>());
      return found;
    };
    CHECK(health.text("n1") == "null");
    for (int second = 0; second <= 60; ++second)
      health.add(report(100 + second), 7'000 + 1000 * second, second, journal);
    CHECK(times() == std::vector{0, 60});
    const auto document = nlohmann::json::parse(health.text("n1"));
    CHECK(document["busiest"]["name"] == "n1.1");
    CHECK(document["busiest"]["step_ms"] == 160);
    CHECK(!document.contains("trainers"));
    health.write("n0", journal);
    health.write("n1", journal);
    health.write("n1", journal);
    std::vector<int> want = {0, 60};
    for (int second = 1; second < 60; ++second) want.push_back(second);
    CHECK(times() == want);
    for (int second = 61; second < 61 + 60 + 200; ++second)
      health.add(report(1), 7'000 + 1000 * second, second, journal);
    health.write("n1", journal);
    CHECK(times().size() == want.size() + 4 + HealthHistory::kKept);
    const std::string text = folder.text("health.jsonl");
    const std::string last = text.substr(text.rfind('\n', text.size() - 2) + 1);
    CHECK(nlohmann::json::parse(last)["trainers"].size() == 2);
  }
}
