#include "actors/supervisor/decision/what_if.hpp"

#include <map>
#include <utility>

#include "actors/supervisor/decision/rollback.hpp"
#include "actors/supervisor/decision/sentence.hpp"
#include "transport/protocol/reason.hpp"

namespace simplescale::job {

namespace {

/// does: what the fault does to its target. then: what follows; "" if trainers have to begin
/// another generation.
struct Meaning {
  const char *does, *then;
};

const std::map<std::string, Meaning>& meanings() {
  static const std::map<std::string, Meaning> table = {
      {"kill_trainer", {"is killed", ""}},
      {"stop_trainer", {"is stopped", ""}},
      {"hang_trainer", {"hangs", ""}},
      {"segfault_trainer", {"crashes", ""}},
      {"oom_trainer", {"runs out of memory", ""}},
      {"kill_agent", {"dies", ""}},
      {"stop_agent", {"is stopped", ""}},
      {"partition_node", {"is cut off from the network", ""}},
      {"nan_loss", {"computes a value that is not finite", ""}},
      {"bitflip_gradient", {"computes a wrong gradient", ""}},
      {"corrupt_snapshot", {"has a wrong bit in its state", ""}},
      {"slow_node",
       {"is slow",
        "all trainers wait for it, and the event `straggler` names its trainers; with "
        "cluster.balance = \"auto\" other groups then take some of its micro-batches"}},
      {"slow_link",
       {"has a slow network",
        "all trainers wait for it; past parallel.collective_timeout_ms the "
        "step fails and is made again"}},
      {"lose_messages",
       {"loses messages",
        "they are sent again; it is lost if it is silent for longer than "
        "supervision.silence_ms"}},
      {"corrupt_checkpoint",
       {"damages the newest checkpoint",
        "training goes on; whoever reads the checkpoint finds the "
        "damage by its checksum and uses the one before it"}},
      {"disk_full",
       {"has a full disk",
        "training goes on; checkpoints fail (`checkpoint_failed`) until there "
        "is room"}},
      {"slow_disk", {"has a slow disk", "training goes on; checkpoints take longer or fail"}},
  };
  return table;
}

/// Carries out decisions on a copy of a job's state, and collects the facts of the incident.
class Rehearsal {
 public:
  Rehearsal(State state, const std::string& avoid) : s_(std::move(state)) {
    facts_.avoid = avoid;
    joined_ = newest_joined(s_);
    for (const Place& place : places(s_.rules, s_.layout)) shard_[place.trainer] = place.shard;
    shards_ = s_.rules.cut_of(s_.layout);
    began_ = s_.joined_step, committed_ = s_.committed_step;
  }

  const State& state() const { return s_; }
  const IncidentFacts& facts() const { return facts_; }
  bool joined() const { return facts_.joins > 0; }

  void tell(const Event& event, int64_t after_ms = 1) {
    now_ms_ = s_.waiting_since_ms + after_ms;
    const Decision decision = decide(now_ms_, s_, event);
    for (const Action& action : decision.actions)
      if (const Record* record = std::get_if<Record>(&action)) add(facts_, s_, *record);
  }

  /// The states in the memory of a trainer of the layout. Its last report may be older, because a
  /// trainer reports only when it leaves a generation.
  std::vector<StateCopy> held(const std::string& trainer) const {
    const auto shard = shard_.find(trainer);
    if (shard == shard_.end()) return s_.trainers.at(trainer).held;
    std::vector<StateCopy> steps;
    if (committed_ > began_) steps.push_back({shard->second, committed_ - 1, joined_, shards_});
    steps.push_back({shard->second, committed_, joined_, shards_});
    return steps;
  }

  /// All trainers that have to leave the generation leave it, and all agents answer the fence.
  void all_leave() {
    answer();
    for (const auto& [name, trainer] : State(s_).trainers)
      if (trainer.state == TrainerState::draining)
        tell(TrainerIdle{.trainer = name, .generation = s_.generation - 1, .held = held(name)});
  }

  void come_back(const std::string& node, bool with_memory) {
    tell(NodeUp{node, s_.nodes.at(node).pid + 1});
    answer();
    tell(NodeChecked{node, true, ""});
    for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot) {
      TrainerUp up{.trainer = trainer_name(node, slot), .pid = 1};
      if (with_memory) up.held = held(up.trainer);
      tell(up);
    }
  }

 private:
  void answer() {
    for (const auto& [name, node] : State(s_).nodes)
      tell(PeerCopies{name, node.peer, s_.generation});
  }

  State s_;
  IncidentFacts facts_;
  std::map<std::string, uint32_t> shard_;  // of the trainers of the layout
  uint32_t shards_ = 1;
  uint64_t joined_ = 0, began_ = 0, committed_ = 0;
  int64_t now_ms_ = 0;
};

void lose_node(Rehearsal& r, const std::string& node, const std::string& kind) {
  r.tell(NodeLost{node, kind == "kill_agent" ? process_ended() : in_words(kind)});
  r.all_leave();
  if (!r.joined()) r.come_back(node, kind != "kill_agent");
  // A supervisor that lost most nodes waits for votes, and it waits for trainers that restart.
  if (!r.joined()) r.tell(Tick{}, r.state().restart_timeout_ms);
}

void lose_trainer(Rehearsal& r, const std::string& trainer, const std::string& kind) {
  const Trainer before = r.state().trainers.at(trainer);
  r.tell(TrainerDown{trainer, {kind}});
  r.all_leave();
  r.tell(TrainerUp{trainer, before.pid, before.address, r.held(trainer)});
}

/// late: for corrupt_snapshot. The bit changes while the optimizer reads the state, so when the
/// trainer finds the damage, it has already overwritten the step before.
void fail_step(Rehearsal& r, const std::string& trainer, const std::string& kind, bool late) {
  const bool differs = kind == "bitflip_gradient", damaged = kind == "corrupt_snapshot";
  TrainerIdle report{
      .trainer = trainer, .generation = r.state().generation, .held = r.held(trainer)};
  report.fault = differs ? Fault::mismatch : damaged ? Fault::bad_copy : Fault::non_finite;
  report.step = r.state().committed_step + (kind == "nan_loss" ? 1 : 0);
  if (damaged) {
    report.held.pop_back();
    if (late) report.held.clear();
    report.suspect = trainer;
  }
  r.tell(report);
  r.all_leave();
}

}  // namespace

std::string what_if(const State& state, const std::string& kind, const std::string& target,
                    const std::string& avoid) {
  const bool known_trainer = state.trainers.contains(target);
  const std::string node = known_trainer ? node_of(target) : target;
  if (!state.nodes.contains(node)) return "there is no node or trainer '" + target + "'";
  const bool of_node = kind == "kill_agent" || kind == "stop_agent" || kind == "partition_node";
  const std::string trainer = known_trainer ? target : trainer_name(node, 0);
  const auto meaning = meanings().find(kind);
  const std::string does = meaning == meanings().end() ? "fails" : meaning->second.does;
  const std::string then = meaning == meanings().end() ? "" : meaning->second.then;
  const bool keeps = !known_trainer && !state.nodes.at(node).peer.empty();
  if (kind == "corrupt_snapshot" && keeps)
    return "If the copies that node " + node +
           " keeps for other nodes have a wrong bit, training goes on: a copy is checked before it "
           "is used, and a damaged one is not used.";
  const bool of_trainer = !of_node && then.empty();
  const std::string if_so =
      "If " + (of_trainer ? "trainer " + trainer : "node " + node) + " " + does + ", ";
  if (!then.empty()) return if_so + then + ".";
  const bool trains = of_node ? state.layout.contains(node)
                              : state.trainers.at(trainer).state == TrainerState::training;
  if (!trains) return if_so + "training goes on: it does not train now.";
  const bool replicas = places(state.rules, state.layout).size() > state.rules.cut_of(state.layout);
  if (kind == "bitflip_gradient" && !replicas)
    return if_so + "nothing finds it: there is no replica to compare with (one group).";
  const auto rehearse = [&](bool late) {
    Rehearsal rehearsal(state, avoid);
    if (of_node)
      lose_node(rehearsal, node, kind);
    else if (kind == "nan_loss" || kind == "bitflip_gradient" || kind == "corrupt_snapshot")
      fail_step(rehearsal, trainer, kind, late);
    else
      lose_trainer(rehearsal, trainer, kind);
    return forecast(rehearsal.facts());
  };
  const std::string usual = rehearse(false);
  if (kind != "corrupt_snapshot") return if_so + usual;
  const std::string late = rehearse(true);
  return if_so + usual +
         (late == usual ? "" : " If the bit changes while the optimizer reads the state, " + late);
}

}  // namespace simplescale::job
