// The sentences that tell incidents, and those of the console's `plan`, compared with
// sentences.txt. SIMPLESCALE_WRITE_SENTENCES=1 rewrites that file; read it aloud afterwards.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "actors/supervisor/decision/rollback.hpp"
#include "actors/supervisor/decision/what_if.hpp"
#include "actors/supervisor/incidents.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/faults.hpp"
#include "tests/actors/supervisor/decide_cases.hpp"
#include "tests/paths.hpp"
#include "tests/temp_folder.hpp"
#include "transport/protocol/reason.hpp"

namespace simplescale::job {
namespace {

constexpr uint64_t kStep = 57, kCheckpoint = 50;
constexpr const char *kReplicas = "parallel.group_nodes = 1",
                     *kBoth = "parallel.group_nodes = 1 or checkpoint.peer_every_steps = 1";
// What the transport says of a lost agent.
const Reason kReset = connection_lost("Connection reset by remote peer"),
             kSilent = reason_of({.kind = ReasonKind::silent, .ms = 5003});

Reason signal(int number) {
  return reason_of({.kind = ReasonKind::signal, .number = number});
}
Reason stopped(int64_t ms) {
  return reason_of({.kind = ReasonKind::stopped, .ms = ms});
}
const Reason kExit3 = reason_of({.kind = ReasonKind::exit_code, .number = 3});

struct Arrangement {
  const char* name;
  int domains, domain_nodes, spares;
  bool peers, disk;
  const char* avoid;  // as risk_of() says
};
const Arrangement arrangements[] = {
    {"two groups", 2, 1, 0, false, true, ""},
    {"two groups and a spare", 2, 1, 1, false, true, ""},
    {"one group", 1, 2, 0, false, true, kBoth},
    {"one group, a spare, peer copies", 1, 2, 1, true, true, kReplicas},
    {"one group, no checkpoint", 1, 2, 0, false, false, kBoth},
};

/// A job that trains, told by its records as the supervisor tells it.
class Story {
 public:
  explicit Story(const Arrangement& a) : incidents(0, a.avoid) {
    std::vector<std::string> nodes;
    for (int i = 0; i < a.domains * a.domain_nodes + a.spares; ++i) nodes.push_back(node_name(i));
    s = make_state({2, 2 * a.domain_nodes, a.domain_nodes, a.domains, 1}, nodes);
    s.max_steps = 100;
    for (const std::string& node : nodes) up(node);
    for (uint64_t step = 1; step <= kStep; ++step) tell(StepCommitted{s.generation, step});
    if (a.disk) s.has_checkpoint = true, s.checkpoint_step = kCheckpoint;
    if (a.disk) s.older_checkpoints = {40};
    if (a.peers)
      for (uint32_t shard = 0; shard < 4; ++shard)
        s.nodes.at("n2").peer.push_back({shard, kStep - 1, s.generation, 4});
    for (const Place& place : places(s.rules, s.layout)) shard[place.trainer] = place.shard;
  }

  void tell(const Event& event) {
    now_ms += 40;
    for (const Action& action : decide(now_ms, s, event).actions)
      if (const Record* r = std::get_if<Record>(&action)) record(*r);
  }
  void record(const Record& r) {
    const auto recorded = incidents.record(s, r, now_ms);
    if (over(s.phase)) text = r.reason.text;
    if (recorded.summary) text = (*recorded.summary)["sentence"];
  }
  /// The agents answer the last fence, at once.
  void answer() {
    for (const auto& [name, node] : State(s).nodes) {
      now_ms -= 40;
      tell(PeerCopies{name, node.peer, s.generation});
    }
  }
  void up(const std::string& node, bool with_memory = false) {
    tell(NodeUp{node, s.nodes.at(node).pid + 1});
    answer();
    if (s.nodes.at(node).checking) tell(NodeChecked{node, true, ""});
    for (int slot = 0; slot < 2; ++slot) {
      const std::string name = trainer_name(node, slot);
      tell(TrainerUp{
          name, 1, {1}, copies(name, with_memory ? held() : std::vector<StateVersion>()), 0});
    }
  }
  std::vector<StateVersion> held() const {
    if (forgets) return {};
    return {{kStep - 1, newest_joined(s)}, {kStep, newest_joined(s)}};
  }
  std::vector<StateCopy> copies(const std::string& trainer,
                                const std::vector<StateVersion>& versions) const {
    const auto found = shard.find(trainer);
    return test::of(found == shard.end() ? 0 : found->second, versions, s.rules.cut_of(s.layout));
  }
  void others_leave() {
    answer();
    for (const auto& [name, t] : State(s).trainers)
      if (t.state == TrainerState::draining)
        tell(TrainerIdle{name, s.generation - 1, copies(name, held())});
  }
  void replaced(const std::string& trainer) {
    now_ms += 300;
    tell(TrainerUp{trainer, 2, {2}, copies(trainer, held()), 0});
  }
  void end() {
    tell(StepCommitted{s.generation, s.committed_step + 1});
    if (text.empty()) text = incidents.newest()["sentence"];
  }

  State s;
  Incidents incidents;
  std::map<std::string, uint32_t> shard;
  int64_t now_ms = 1'000;
  bool forgets = false;  // the trainers hold no state that counts
  std::string text;
};

void lose_trainer(Story& t, const Reason& how) {
  t.tell(TrainerDown{"n1.0", process_ended()});
  t.tell(TrainerDown{"n1.0", how});
  t.others_leave();
  t.replaced("n1.0");
}

/// why: what the transport says of the node's agent.
void lose_node(Story& t, bool with_memory, const Reason& why) {
  // The collectives of the other trainers fail first.
  t.tell(TrainerIdle{"n0.0", t.s.generation, t.copies("n0.0", t.held()), Fault::failed, 0, "",
                     "shard-0: rank 2 has died"});
  t.tell(NodeLost{"n1", why_node_lost(why)});
  t.others_leave();
  if (t.s.phase != Phase::recovering || t.s.waiting_for != "all trainers to be idle") return;
  t.now_ms += 1'500;
  t.up("n1", with_memory);
  if (t.s.waiting_for == "all trainers to be idle") t.tell(Tick{});
}

void fail(Story& t, Fault fault, uint64_t step, const std::string& suspect, const Reason& reason) {
  for (const auto& [name, trainer] : State(t.s).trainers)
    if (trainer.state == TrainerState::training) {
      auto held = t.held();
      if (fault == Fault::bad_copy && name == suspect) held.pop_back();
      t.tell(TrainerIdle{name, newest_joined(t.s), t.copies(name, held), fault, step, suspect,
                         reason});
    } else if (trainer.state == TrainerState::draining) {
      t.tell(TrainerIdle{name, t.s.generation - 1, t.copies(name, t.held())});
    }
  t.answer();
}

const std::map<std::string, std::function<void(Story&)>>& stories() {
  static const std::map<std::string, std::function<void(Story&)>> table = {
      {"kill_trainer", [](Story& t) { lose_trainer(t, signal(9)); }},
      {"stop_trainer", [](Story& t) { lose_trainer(t, stopped(1012)); }},
      {"hang_trainer",
       [](Story& t) {
         const Reason why = reason_of({.kind = ReasonKind::hung,
                                       .number = 3,
                                       .ms = 5112,
                                       .step = 58,
                                       .phase = StepPhase::backward,
                                       .block = 3});
         t.tell(TrainerHung{"n1.0", t.s.generation, why});
         t.tell(TrainerDown{"n1.0", why});
         t.others_leave();
         t.replaced("n1.0");
       }},
      {"segfault_trainer", [](Story& t) { lose_trainer(t, signal(11)); }},
      {"oom_trainer",
       [](Story& t) {
         LogFound found;
         found.node = "n1", found.subject = "n1.0", found.file = "kernel";
         found.text = "Out of memory: Killed process 4711", found.rule = "oom_killer";
         found.root = true;
         t.incidents.log_rule_line(t.s, found, t.now_ms);
         lose_trainer(t, signal(9));
       }},
      {"kill_agent", [](Story& t) { lose_node(t, false, kReset); }},
      {"stop_agent", [](Story& t) { lose_node(t, true, stopped(5003)); }},
      {"partition_node", [](Story& t) { lose_node(t, true, kSilent); }},
      {"lose_messages", [](Story& t) { lose_node(t, true, kSilent); }},
      {"kill_supervisor",
       [](Story& t) {
         SupervisorState before;
         before.node = "n0", before.job = t.s;
         t.incidents.resume(before, process_ended(), t.now_ms, true);
         t.record({"detect", "supervisor_lost", "supervisor", process_ended()});
         t.record({"resume", "took_over", "n1", "it leads after step 57"});
       }},
      {"slow_link",
       [](Story& t) {
         fail(t, Fault::failed, 0, "",
              {"replicate-0: n1.0 did not take part in all_reduce (operation 12) within 60000 ms"});
       }},
      {"corrupt_snapshot",
       [](Story& t) {
         fail(t, Fault::bad_copy, kStep, "n1.0",
              {"the copy of step 57 has changed in memory since it was committed"});
       }},
      {"corrupt_checkpoint",
       [](Story& t) {
         lose_node(t, false, process_ended());
         t.forgets = true;
         fail(t, Fault::bad_checkpoint, kCheckpoint, "", {"step-00000050: shard 1 is damaged"});
       }},
      {"bitflip_gradient",
       [](Story& t) {
         fail(t, Fault::mismatch, kStep, "",
              {"step 58: the replicas of shard 0 differ after step 57; no majority shows which one "
               "is wrong, so the step is made again"});
       }},
      {"nan_loss",
       [](Story& t) {
         const std::string what = "step 58: loss nan or gradient norm nan";
         fail(t, Fault::non_finite, kStep + 1, "n1.0",
              {.text = what + " is not finite", .detail = what});
       }},
  };
  return table;
}

/// The story of a fault can happen in this arrangement.
bool can_happen(const std::string& kind, const Arrangement& a) {
  if (kind == "bitflip_gradient") return a.domains > 1;  // otherwise nothing finds it
  if (kind == "corrupt_checkpoint") return a.domains == 1 && a.disk && !a.peers;  // it is read
  return stories().contains(kind);
}

/// What a user reads after a fault, and if the user asks for it beforehand.
std::string sentences(const std::string& kind, const Arrangement& a) {
  std::string out;
  if (can_happen(kind, a)) {
    Story t(a);
    stories().at(kind)(t);
    t.end();
    out += "  happened: " + t.text + "\n";
  }
  const std::string target = fault_target(kind) == FaultTarget::node ? "n1" : "n1.0";
  if (fault_target(kind) != FaultTarget::supervisor)
    out += "  plan: " + what_if(Story(a).s, kind, target, a.avoid) + "\n";
  return out;
}

/// For every fault, the arrangements with the same sentences together.
std::string all_sentences() {
  std::string out;
  for (const std::string& kind : fault_kinds()) {
    std::vector<std::pair<std::string, std::string>> told;  // sentences, arrangements
    for (const Arrangement& a : arrangements) {
      const std::string text = sentences(kind, a);
      const auto same = std::ranges::find(told, text, &std::pair<std::string, std::string>::first);
      if (same == told.end())
        told.emplace_back(text, a.name);
      else
        same->second += std::string("; ") + a.name;
    }
    for (const auto& [text, where] : told)
      out += kind + (told.size() == 1 ? "" : ", " + where) + "\n" + text;
  }
  return out;
}

std::string more_sentences() {
  std::string out;
  auto add_story = [&](const std::string& name, const std::function<void(Story&)>& happens) {
    Story t(arrangements[0]);
    happens(t);
    if (t.text.empty()) t.end();
    out += name + "\n  happened: " + t.text + "\n";
  };
  add_story("two trainers at once", [](Story& t) {
    t.tell(TrainerDown{"n1.0", signal(9)});
    t.tell(TrainerDown{"n0.1", kExit3});
    t.others_leave();
    t.replaced("n1.0");
    t.replaced("n0.1");
  });
  add_story("the supervisor and its standby die", [](Story& t) {
    SupervisorState before;
    before.job = t.s;
    t.incidents.resume(before, Reason{"", ReasonKind::both_ended}, t.now_ms, false);
    t.record({"resume", "took_over", "n1", ""});
  });
  add_story("the supervisor dies during a recovery", [](Story& t) {
    t.tell(TrainerDown{"n1.0", signal(9)});
    SupervisorState before;
    t.incidents.save(before);
    before.job = t.s, before.node = "n0";
    Incidents next;
    next.resume(before, process_ended(), t.now_ms, true);
    t.incidents = next;
    t.record({"detect", "supervisor_lost", "supervisor", process_ended()});
    t.record({"decide", "took_over", "n1", ""});
    t.others_leave();
    t.replaced("n1.0");
  });
  add_story("a node lost for good, without another one", [](Story& t) {
    t.s.rules.min_domains = 2;
    t.s.has_checkpoint = true;  // nothing is left to save
    t.s.checkpoint_step = t.s.committed_step;
    t.tell(NodeLost{"n1", why_node_lost(kSilent)});
    t.others_leave();
    t.now_ms += t.s.join_timeout_ms;
    t.tell(Tick{});
  });
  add_story("it is not over", [](Story& t) {
    t.tell(TrainerDown{"n1.0", kExit3});
    t.text = t.incidents.newest()["sentence"];
  });
  add_story("gave up", [](Story& t) {
    t.s.has_checkpoint = true;  // of the newest step: nothing is left to save
    t.s.checkpoint_step = t.s.committed_step;
    for (int i = 0; i <= t.s.give_up_after_cycles; ++i) lose_trainer(t, kExit3);
  });
  return out;
}

}  // namespace

TEST_CASE("sentences: every fault in every arrangement is told in plain English") {
  const std::string path = source_dir() + "/tests/actors/supervisor/sentences.txt";
  const std::string now = all_sentences() + more_sentences();
  if (std::getenv("SIMPLESCALE_WRITE_SENTENCES")) std::ofstream(path) << now;
  CHECK_MESSAGE(simplescale::test::contents(path) == now,
                "SIMPLESCALE_WRITE_SENTENCES=1 rewrites sentences.txt");
  for (const char* bad :
       {"; ;", ";;", " 1 groups", " 1 steps", "exit_reason", "..", "  plan: .", ": :", " ,", "( "})
    CHECK_MESSAGE(now.find(bad) == std::string::npos, bad);
}

TEST_CASE("sentences: what_if uses memory before the first incident, too") {
  for (const Arrangement& a : arrangements) {
    Story t(a);
    CHECK(what_if(t.s, "kill_trainer", "n1.0").find("no step is lost") != std::string::npos);
  }
}

}  // namespace simplescale::job
