#include "actors/supervisor/leadership.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

namespace {

const job::Action fence = job::Fence{2, "n1.0: killed"};
const job::Action note = job::Record{"", "trainer_up", "n1.0", ""};

/// What the actor has to do, in order, in words.
std::string text(const Leadership::Actions& actions) {
  struct Name {
    std::string operator()(const Leadership::Replicate& r) { return r.store ? "store" : "send"; }
    std::string operator()(const Leadership::Await& a) { return a.check_term ? "check" : "wait"; }
    std::string operator()(const Leadership::CarryOut&) { return "carry_out"; }
    std::string operator()(const job::Record& r) { return r.kind; }
    std::string operator()(const Leadership::StartStandby& s) { return "start:" + s.node; }
    std::string operator()(const Leadership::EndStandby&) { return "end_standby"; }
    std::string operator()(const Leadership::Announce&) { return "announce"; }
    std::string operator()(const Leadership::EndProcess& e) {
      return e.resigns ? "resign" : e.deposed ? "deposed" : "end " + std::to_string(e.exit_code);
    }
  };
  std::string all;
  for (const auto& action : actions) all += (all.empty() ? "" : " ") + std::visit(Name{}, action);
  return all;
}

/// The supervisor of term 3 on n0, and a job on three nodes.
struct Fixture {
  Fixture() {
    job.phase = job::Phase::training;
    for (auto& [name, node] : job.nodes) {
      node.state = job::NodeState::up;
      agents[name] = {"host", 7, "address", true};
    }
  }
  /// n1 starts a standby and the supervisor accepts it.
  void appoint() {
    REQUIRE(text(lead.tick(job, agents, now)) == "start:n1");
    REQUIRE(text(lead.accept_standby({"n1", 41, "s"}, job)) == "send standby_appointed announce");
  }
  std::string term_seen(local::TermSeen seen) {
    return text(lead.term_seen(seen, job, agents, now));
  }
  std::string timed_out(uint64_t decision) { return text(lead.timed_out(decision, job, agents)); }
  /// The connection to a node's agent is lost. The decision about that may wait.
  void lose(const std::string& node) { agents[node].connected = false; }
  job::State job = job::make_state({1, 1, 1, 3, 1}, {"n0", "n1", "n2"});
  AgentRegistry agents;
  int64_t now = 100'000;
  Leadership lead{{.term = 3, .node = "n0", .join_timeout_ms = 10'000, .shutdown_ms = 1'000}, 0};
};

}  // namespace

TEST_SUITE("leadership") {
  TEST_CASE("LEAD-1: a change of membership waits for the standby and for the term files") {
    Fixture f;
    f.appoint();
    CHECK(text(f.lead.submit({fence, note})) == "store check");  // replica 2
    CHECK(text(f.lead.replica_stored(1)) == "");                 // an older one
    CHECK(text(f.lead.replica_stored(2)) == "");
    CHECK(f.term_seen({1, false, 3}) == "");  // an older question
    CHECK(f.term_seen({2, false, 3}) == "carry_out");
    CHECK(f.term_seen({2, false, 3}) == "");  // only once
    CHECK(text(f.lead.submit({fence})) == "store check");
    CHECK(f.term_seen({3, false, 3}) == "");
    CHECK(text(f.lead.replica_stored(2)) == "");
    CHECK(text(f.lead.replica_stored(3)) == "carry_out");
  }

  TEST_CASE("leadership: without a standby, records are carried out at once") {
    Fixture f;
    CHECK(text(f.lead.submit({note})) == "store carry_out");
    CHECK(text(f.lead.submit({note, fence})) == "store check");
    CHECK(f.term_seen({2, false, 3}) == "carry_out");
  }

  TEST_CASE("leadership: events wait in order while a decision waits, ticks are dropped") {
    Fixture f;
    f.lead.submit({fence});
    CHECK_FALSE(f.lead.admit(job::NodeLost{"n1", ""}));
    CHECK_FALSE(f.lead.admit(job::Tick{}));
    CHECK_FALSE(f.lead.admit(job::NodeLost{"n2", ""}));
    CHECK_FALSE(f.lead.next_event());
    CHECK(f.term_seen({1, false, 3}) == "carry_out");
    CHECK(std::get<job::NodeLost>(*f.lead.next_event()).node == "n1");
    f.lead.submit({fence});  // the decision about n1
    CHECK_FALSE(f.lead.next_event());
    CHECK(f.term_seen({2, false, 3}) == "carry_out");
    CHECK(std::get<job::NodeLost>(*f.lead.next_event()).node == "n2");
    CHECK_FALSE(f.lead.next_event());
    CHECK(f.lead.admit(job::Tick{}));
  }

  TEST_CASE(
      "leadership: a standby that does not answer is dismissed, and the decision carried out") {
    Fixture f;
    f.appoint();
    f.lead.submit({fence});
    CHECK(f.timed_out(1) == "");  // of an older decision
    CHECK(f.timed_out(2) == "end_standby standby_lost announce carry_out");
    CHECK_FALSE(f.lead.standby());
    CHECK(f.timed_out(2) == "");
  }

  TEST_CASE(
      "LEAD-1, GEN-2: without the run folder and a standby, no generation begins while a node is "
      "away") {
    // A host lost the run folder and its link to n1 at once. n1's supervisor used the next
    // generation number, and this one used the same.
    Fixture f;
    f.appoint();
    f.lose("n1");
    f.lead.submit({fence});
    f.lead.standby_lost(f.job, f.agents, f.now);
    CHECK(f.timed_out(2) == "wait");
    CHECK(f.timed_out(2) == "wait");
    CHECK(f.term_seen({2, true, 4}) == "deposed");  // the run folder answers at last
    f.lead = Leadership({.term = 3, .node = "n0"}, 0);
    f.lead.submit({fence});
    CHECK(f.timed_out(1) == "wait");
    CHECK(f.term_seen({1, false, 3}) == "carry_out");
    f.agents["n1"].connected = true;  // all nodes obey this supervisor
    f.lead.submit({fence});
    CHECK(f.timed_out(2) == "carry_out");
  }

  TEST_CASE("JOB-1: a supervisor that may be deposed does not end the run for its nodes") {
    // A host lost the run folder and its link to n1, whose supervisor led. The deposed one gave up,
    // and n0 ended, whose memory had the only copies of the newest step.
    Fixture f;
    f.lose("n1");
    f.lead.submit({job::Shutdown{Code::gave_up, "no node for a group"}});
    CHECK(f.timed_out(1) == "wait");
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now)) == "");
    CHECK(f.term_seen({1, true, 4}) == "deposed");
    // Nor does a standby count: its host has lost the folder, too.
    Fixture both;
    both.appoint();
    both.lose("n2");
    both.lead.submit({job::Shutdown{Code::gave_up, "no node for a group"}});
    CHECK(text(both.lead.replica_stored(2)) == "");
    CHECK(both.timed_out(2) == "wait");
    Fixture leads;
    leads.lose("n1");
    leads.lead.submit({job::Shutdown{Code::gave_up, "no node for a group"}});
    CHECK(leads.term_seen({1, false, 3}) == "carry_out");
  }

  TEST_CASE(
      "GEN-1: a node that came back while a decision waits gets orders once that is decided") {
    // A folder hung while a generation was to begin. n0 came back meanwhile and said what it held.
    // It got the order then, and trained in a generation that its supervisor knew nothing of.
    Fixture f;
    f.lead.submit({fence});
    CHECK_FALSE(f.lead.behind("n0"));
    f.lead.admit(job::NodeLost{"n0", ""});
    f.lead.admit(job::TrainerDown{"n1.0", ""});
    f.lead.admit(job::NodeUp{"n0", 7});
    CHECK(f.lead.behind("n0"));
    CHECK_FALSE(f.lead.behind("n1"));
    CHECK(f.term_seen({1, false, 3}) == "carry_out");
    for (int i = 0; i < 3; ++i) {
      CHECK(f.lead.behind("n0"));
      REQUIRE(f.lead.next_event());
    }
    CHECK_FALSE(f.lead.behind("n0"));
  }

  TEST_CASE("leadership: a node that is behind is not asked to start a standby") {
    // It would not get the order, and the supervisor would wait for 10 s before it asks again.
    Fixture f;
    f.lead.submit({fence});
    f.lead.admit(job::NodeLost{"n1", ""});
    f.lead.admit(job::NodeUp{"n1", 7});
    CHECK(text(f.lead.tick(f.job, f.agents, f.now)) == "start:n2");
  }

  TEST_CASE("LEAD-1, GEN-2: an error of the run folder is no answer, and it is asked again") {
    // A host lost its link to n1 and got EIO from the run folder. n1's standby led meanwhile.
    Fixture f;
    f.appoint();
    f.lose("n1");
    f.lead.submit({fence});
    f.lead.standby_lost(f.job, f.agents, f.now);
    CHECK(f.timed_out(2) == "wait");  // the question is not answered yet
    TermView view;
    CHECK(text(f.lead.term_seen(term_seen(2, 3, view), f.job, f.agents, f.now)) == "");
    CHECK(f.timed_out(2) == "check");
    CHECK(f.timed_out(2) == "wait");
    view.answered = true;
    view.newest.number = 4;
    CHECK(text(f.lead.term_seen(term_seen(2, 3, view), f.job, f.agents, f.now)) == "deposed");
    Fixture all;  // all nodes obey this supervisor
    all.lead.submit({fence});
    view.answered = false;
    CHECK(text(all.lead.term_seen(term_seen(1, 3, view), all.job, all.agents, all.now)) == "");
    CHECK(all.timed_out(1) == "carry_out");
  }

  TEST_CASE("LEAD-1: a standby that is accepted while a decision waits has not stored it yet") {
    // The decision was carried out without the run folder, and without a standby that had it.
    Fixture f;
    f.lose("n2");
    f.lead.submit({fence});
    REQUIRE(text(f.lead.tick(f.job, f.agents, f.now)) == "start:n1");
    CHECK(text(f.lead.accept_standby({"n1", 41, "s"}, f.job)) ==
          "send standby_appointed announce check");  // replica 2
    CHECK(f.timed_out(1) == "");                     // the standby has its own 200 ms
    Fixture stored = f, folder = f;
    CHECK(f.timed_out(2) == "end_standby standby_lost announce wait");
    CHECK(text(stored.lead.replica_stored(2)) == "");
    CHECK(stored.timed_out(2) == "carry_out");
    CHECK(folder.term_seen({1, false, 3}) == "");
    CHECK(folder.term_seen({2, false, 3}) == "");
    CHECK(text(folder.lead.replica_stored(2)) == "carry_out");
  }

  TEST_CASE("leadership: after a standby is lost, another node starts the next one") {
    Fixture f;
    f.appoint();
    f.lead.submit({fence});
    CHECK(f.term_seen({2, false, 3}) == "");
    CHECK(text(f.lead.standby_lost(f.job, f.agents, f.now)) ==
          "end_standby standby_lost announce start:n2 carry_out");
    CHECK(text(f.lead.tick(f.job, f.agents, f.now + 9'999)) == "");
    CHECK(text(f.lead.tick(f.job, f.agents, f.now + 10'000)) == "start:n1");
    f.agents["n2"].connected = false;
    CHECK(text(f.lead.tick(f.job, f.agents, f.now + 20'000)) == "start:n1");  // no other is left
    CHECK(text(f.lead.accept_standby({"n2", 42, "s"}, f.job)) == "");         // was not asked
  }

  TEST_CASE("LEAD-1: a supervisor that sees a newer term does and decides nothing more") {
    Fixture f;
    f.lead.submit({fence});
    CHECK(f.term_seen({1, true, 4}) == "deposed");
    CHECK(f.lead.deposed());
    CHECK(f.term_seen({1, false, 3}) == "");
    CHECK(f.timed_out(1) == "");
    CHECK_FALSE(f.lead.admit(job::NodeLost{"n1", ""}));
    Fixture idle;  // also if no decision waits
    CHECK(idle.term_seen({0, true, 4}) == "deposed");
    CHECK_FALSE(idle.lead.admit(job::NodeLost{"n1", ""}));
    CHECK_FALSE(idle.lead.next_event());
  }

  TEST_CASE("leadership: only the node that was asked may start the standby, and only one") {
    Fixture f;
    CHECK(text(f.lead.accept_standby({"", 41, "s"}, f.job)) == "");  // none was asked
    f.appoint();
    CHECK(text(f.lead.accept_standby({"n1", 42, "t"}, f.job)) == "");
    CHECK(text(f.lead.accept_standby({"", 42, "t"}, f.job)) == "");
    CHECK(f.lead.standby()->pid == 41);
  }

  TEST_CASE("leadership: a supervisor with more votes than nodes resigns unless it trains") {
    Fixture f;
    f.appoint();
    f.agents["n1"].connected = f.agents["n2"].connected = false;
    const local::TermSeen votes{0, false, 3, {"n1", "n2"}};
    f.job.trainers["n0.0"].state = job::TrainerState::training;
    CHECK(f.term_seen(votes) == "");
    f.job.trainers["n0.0"].state = job::TrainerState::idle;
    f.job.committed_step = 9;  // without n1 and n2
    CHECK(f.term_seen(votes) == "");
    f.job.nodes["n1"].failed_at_step = f.job.nodes["n2"].failed_at_step = 9;
    f.lead.node_joined("n0", f.now - 1'999);  // more may be about to join
    CHECK(f.term_seen(votes) == "");
    f.lead.node_joined("n0", f.now - 2'000);
    CHECK(f.term_seen({0, false, 3, {"n2"}}) == "");
    CHECK(f.term_seen(votes) == "end_standby standby_lost announce resigned resign");
    CHECK(f.lead.deposed());
  }

  TEST_CASE(
      "leadership: a supervisor whose predecessor resigned does not resign before it trains") {
    Fixture f;
    f.lead = Leadership({.term = 4, .node = "n0", .elected = true}, 0);
    f.agents["n1"].connected = f.agents["n2"].connected = false;
    const local::TermSeen votes{0, false, 4, {"n1", "n2"}};
    CHECK(f.term_seen(votes) == "");
    f.lead.tick(f.job, f.agents, f.now);  // it trains
    CHECK(f.term_seen(votes) == "resigned resign");
  }

  TEST_CASE("leadership: nodes of the predecessor that do not join in time are lost") {
    Fixture f;
    SupervisorState from;
    from.job = f.job;
    from.job.nodes["n2"].state = job::NodeState::lost;
    from.sequence = 7;
    f.lead.resume(from, f.now);
    f.lead.node_joined("n0", f.now);
    CHECK(f.lead.missing_nodes(f.now).empty());
    f.lead.submit({fence});
    CHECK(f.lead.missing_nodes(f.now + 1).empty());  // not while a decision waits
    CHECK(f.term_seen({8, false, 3}) == "carry_out");
    const auto missing = f.lead.missing_nodes(f.now + 1);
    REQUIRE(missing.size() == 1);
    CHECK(std::get<job::NodeLost>(missing[0]).node == "n1");
    CHECK(f.lead.missing_nodes(f.now + 2).empty());
  }

  TEST_CASE("leadership: the process ends when all agents have left, or none comes for long") {
    Fixture f;
    f.appoint();
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now)) == "");
    for (auto& [name, agent] : f.agents) agent.connected = false;
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now + 10'000)) == "");
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now + 10'001)) ==
          "end " + std::to_string(exit_code(Code::requeue)));
    f.job.phase = job::Phase::finished;
    f.agents["n1"].connected = true;
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now)) == "end_standby");
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now + 2'000)) == "");
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now + 2'001)) == "end 0");
    f.agents["n1"].connected = false;
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now + 1)) == "end 0");
  }

  TEST_CASE("leadership: JOB-4, time in which the process was stopped is no time of waiting") {
    Fixture f;
    SupervisorState from;
    from.job = f.job;
    f.lead.resume(from, f.now);
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now)) == "");
    for (auto& [name, agent] : f.agents) agent.connected = false;
    f.lead.stopped(3'600'000);
    f.now += 3'600'000;
    CHECK(f.lead.missing_nodes(f.now).empty());
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now + 10'000)) == "");
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now + 10'001)) ==
          "end " + std::to_string(exit_code(Code::requeue)));
    f.job.phase = job::Phase::finished;
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now)) == "");
    f.lead.stopped(3'600'000);
    f.now += 3'600'000;
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now + 2'000)) == "");
    CHECK(text(f.lead.end_if_due(f.job, f.agents, f.now + 2'001)) == "end 0");
  }

  TEST_CASE_FIXTURE(Fixture, "a standby on a node that is removed is replaced") {
    appoint();
    job.nodes.erase("n1");
    agents.erase("n1");
    CHECK(text(lead.tick(job, agents, now)) == "end_standby standby_lost announce start:n2");
  }
}
