#include "actors/supervisor/incidents.hpp"
#include "transport/protocol/reason.hpp"

#include <doctest/doctest.h>

#include "tests/must.hpp"

using namespace simplescale;

namespace {

LogFound oom(const char* node) {
  LogFound found;
  found.node = found.subject = node;
  found.file = "kernel";
  found.text = "Out of memory";
  found.rule = "oom";
  found.root = true;
  return found;
}

}  // namespace

TEST_SUITE("incidents") {
  TEST_CASE("incidents: one lasts from a failure to the first step, and is summed up") {
    const job::State job = job::make_state({1, 1, 1, 2, 1}, {"n0", "n1"});
    Incidents incidents;
    CHECK(incidents.record(job, {"", "joined", "", ""}, 1'000).line["incident"].is_null());
    CHECK(incidents.count() == 0);
    const auto begin = incidents.record(job, {"detect", "trainer_down", "n1.0", "gone"}, 2'000);
    CHECK(begin.began);
    CHECK(begin.line["incident"] == 1);
    CHECK(begin.line["ms"] == 0);
    CHECK_FALSE(incidents.record(job, {"detect", "node_lost", "n1", "gone"}, 2'010).began);
    incidents.record(job, {"", "trainer_ended", "n1.0", "signal 9"}, 2'020);
    incidents.record(job, {"fence", "trainer_down", "n1.0", "generation 2"}, 2'030);
    incidents.record(job, {"", "steps_undone", "3", {}, 3}, 2'040);
    incidents.record(job, {"decide", "plan", "", "restart n1.0"}, 2'100);
    const auto end = incidents.record(job, {"resume", "committed", "", "step 7"}, 2'500);
    REQUIRE(end.summary);
    const std::string sentence = (*end.summary)["sentence"];
    CHECK(sentence.starts_with("Node n1 was lost: gone. "));
    CHECK(sentence.find("3 steps were repeated. Stopped for 0.5 s.") != std::string::npos);
    const std::string reason = (*end.summary)["reason"];
    CHECK(reason.starts_with(sentence));
    CHECK(reason.ends_with("; 500 ms: detect 10, fence 20, decide 70, resume 400]"));
    CHECK(incidents.newest()["sentence"] == sentence);
    CHECK(incidents.newest()["over"] == true);
    CHECK((*end.summary)["cause"].is_null());
    CHECK(incidents.explain(1)->size() == 6);  // five phases and the summary
    CHECK(incidents.explain(2) == nullptr);
    CHECK(incidents.record(job, {"detect", "node_lost", "n0", ""}, 9'000).began);
    CHECK(incidents.count() == 2);
  }

  TEST_CASE("incidents: the death of all processes began before this start, and costs its steps") {
    for (const char* undone : {"17", ""}) {
      job::State job = job::make_state({1, 1, 1, 2, 1}, {"n0", "n1"});
      job.layout.domains = {{"n0"}, {"n1"}};
      job.joined_from = "checkpoint";
      job.joined_step = 40;
      job.incident = true;
      Incidents before(2);
      // 12 minutes ago; the machine has been up for one.
      const int64_t now = 60'000, since = now - 720'000;
      const auto begin = before.record(job, {"detect", "run_died", "", "no end"}, now, {}, since);
      CHECK(begin.line["incident"] == 3);
      CHECK(begin.line["ms"] == 720'000);
      if (*undone)
        before.record(job, {"", "steps_undone", undone, {}, std::stoull(undone)}, now, {}, since);
      SupervisorState state;  // the supervisor dies, too
      state.job = job;
      before.save(state);
      Incidents incidents(3);
      CHECK(incidents.resume(state, process_ended(), now, true));
      incidents.record(job, {"detect", "node_lost", "n1", "late"}, now + 500);
      incidents.record(job, {"decide", "joined", "", ""}, now + 1'000);
      const auto end = incidents.record(job, {"resume", "committed", "", ""}, now + 2'000);
      REQUIRE(end.summary);
      const std::string sentence = (*end.summary)["sentence"];
      CAPTURE(sentence);
      CHECK(sentence.starts_with("All processes of the run ended without a word: "));
      CHECK(sentence.find("Stopped for 12 min.") != std::string::npos);
      CHECK(has(sentence, *undone
                              ? "No newer state was left, so training went back from step 57 to "
                                "checkpoint 40: 17 steps were repeated."
                              : "The run was started again, and training went on with step 41: "
                                "no step was lost."));
    }
  }

  TEST_CASE("incidents: one begins with the newest committed step before it was detected") {
    const job::State job = job::make_state({1, 1, 1, 2, 1}, {"n0", "n1"});
    Incidents incidents;
    const auto begin =
        incidents.record(job, {"detect", "trainer_hung", "n1.0", "hung"}, 61'000, {}, 1'000);
    CHECK(begin.line["ms"] == 60'000);
    incidents.record(job, {"fence", "trainer_hung", "n1.0", ""}, 61'010);
    const auto end = incidents.record(job, {"resume", "committed", "", ""}, 61'500);
    REQUIRE(end.summary);
    CHECK((*end.summary)["ms"] == 60'500);
    CHECK((*end.summary)["phases"]["detect"] == 60'000);
  }

  TEST_CASE("incidents: the cause is the root cause in the logs nearest to the failure") {
    const job::State job = job::make_state({1, 1, 1, 2, 1}, {"n0", "n1"});
    Incidents incidents;
    LogFound old = oom("n1");
    old.rule = "old";
    CHECK(incidents.log_rule_line(job, old, 1'000)["incident"].is_null());
    incidents.log_rule_line(job, oom("n0"), 15'000);
    incidents.record(job, {"detect", "trainer_down", "n1.0", "gone"}, 20'000);
    LogFound consequence = oom("n1");
    consequence.root = false;
    consequence.rule = "lost";
    CHECK(incidents.log_rule_line(job, consequence, 20'001)["incident"] == 1);
    LogFound nearest = oom("n1");
    nearest.rule = "nearest";
    incidents.log_rule_line(job, nearest, 20'002);
    const auto end = incidents.record(job, {"resume", "committed", "", ""}, 21'000);
    CHECK((*end.summary)["cause"] == "nearest");
  }

  TEST_CASE("incidents: a successor goes on with the incident, or begins one for the loss") {
    job::State job = job::make_state({1, 1, 1, 2, 1}, {"n0", "n1"});
    Incidents first, second, third;
    first.record(job, {"detect", "node_lost", "n1", "gone"}, 2'000);
    SupervisorState state;
    first.save(state);
    state.job = job;
    state.job.incident = true;
    CHECK(second.resume(state, process_ended(), 3'000, true));
    CHECK(second.count() == 1);
    state.job.incident = false;  // it ended with records that were not written
    CHECK_FALSE(third.resume(state, process_ended(), 3'000, true));
    CHECK(third.count() == 2);
    const auto end = third.record(job, {"resume", "took_over", "n0", ""}, 3'100);
    CHECK((*end.summary)["subject"] == "supervisor: its process has ended");
    CHECK((*end.summary)["sentence"] ==
          "The supervisor died. The standby on n0 took over: training did not pause.");
    CHECK((*end.summary)["ms"] == 100);
  }
}
