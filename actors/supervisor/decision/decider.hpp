// decide() at work: one event, against the state that it changes. For decide*.cpp alone; decide.hpp
// says what it is about.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

constexpr int64_t disk_retry_ms = 5'000;  // between two tries of a checkpoint that no node can read

inline std::string number(uint64_t n) {
  return std::to_string(n);
}

class Decider {
 public:
  Decider(int64_t now_ms, State& state) : now_(now_ms), s_(state) {}
  Decision take() { return std::move(decision_); }
  bool over() const { return s_.phase == Phase::finished || s_.phase == Phase::failed; }

  // --- Nodes ---
  void operator()(const NodeUp& e);
  void operator()(const NodeLost& e);
  void operator()(const NodeChecked& e);
  void operator()(const DrainRequested& e);
  void operator()(const PeerCopies& e);
  // --- Trainers ---
  void operator()(const TrainerUp& e);
  void operator()(const TrainerDown& e);
  void operator()(const TrainerIdle& e);
  void operator()(const TrainerReady& e);
  void operator()(const Suspected& e);
  // --- Progress ---
  void operator()(const StepCommitted& e);
  void operator()(const TrainerFinished& e);
  void operator()(const CheckpointSaved& e);
  void operator()(const CheckpointFailed& e);
  // --- Requests ---
  void operator()(const StopRequested& e);
  void operator()(const PauseRequested& e);
  void operator()(const DiagnoseRequested& e);
  void operator()(const SetRequested& e);
  void operator()(const Tick&);

 private:
  // --- Facts ---

  Node* find_node(const std::string& name) {
    auto found = s_.nodes.find(name);
    return found == s_.nodes.end() || over() ? nullptr : &found->second;
  }
  Trainer* find_trainer(const std::string& name) {
    auto found = s_.trainers.find(name);
    return found == s_.trainers.end() || over() ? nullptr : &found->second;
  }
  static bool in_generation(const Trainer& t) {
    return t.state == TrainerState::training || t.state == TrainerState::finished;
  }
  bool awaiting_first_step() const {
    return s_.phase == Phase::starting || s_.phase == Phase::recovering;
  }
  bool waited(int64_t limit_ms) const { return now_ - s_.waiting_since_ms > limit_ms; }
  /// Whether all trainers of a node are so; stops at the first that is not. They are neighbours in
  /// the map, since "." sorts before any digit.
  template <class F>
  bool all_of_node(const std::string& node, F&& is_so) const {
    auto next = s_.trainers.lower_bound(node + ".");
    for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot, ++next)
      if (!is_so(next->second)) return false;
    return true;
  }
  /// The same for all trainers of the layout; false if there is none.
  template <class F>
  bool all_members(F&& are_so) const {
    for (const auto& cell : s_.layout.cells)
      for (const std::string& node : cell)
        if (!all_of_node(node, are_so)) return false;
    return !s_.layout.cells.empty();
  }
  bool all_members_in(TrainerState state) const {
    return all_members([&](const Trainer& t) { return t.state == state; });
  }
  bool all_in_generation() const { return all_members(in_generation); }
  uint64_t last_step() const {
    return s_.trainers.at(trainer_name(s_.layout.cells.front().front(), 0)).step;
  }
  template <class F>
  void for_each_trainer(const std::string& node, F&& f) {
    auto next = s_.trainers.lower_bound(node + ".");
    for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot, ++next) f(next->second);
  }
  bool node_is_idle(const std::string& node) const {
    return all_of_node(node, [](const Trainer& t) { return t.state == TrainerState::idle; });
  }
  /// Nodes that a new layout may use: idle ones, and (for what-if) those that train.
  std::vector<std::string> usable_nodes(bool with_training) const;
  /// Whether training could go on without this node.
  bool can_spare(const std::string& name) const;

  // --- Effects ---

  template <class A>
  void add_action(A action) {
    decision_.actions.push_back(std::move(action));
  }
  void record(std::string phase, std::string kind, std::string subject, std::string reason);
  void set_reason(std::string reason) { decision_.reason = std::move(reason); }
  void begin_wait(std::string what);
  void set_node_state(const std::string& name, NodeState state, std::string reason);
  void declare_lost(const std::string& name, const std::string& reason);
  void suspect_node(const std::string& name, const std::string& reason);
  void drain_node(const std::string& name, const std::string& reason);
  void record_failure(const std::string& name);
  void enforce_restart_budget(const std::string& name);
  /// The copy that `trainer` holds of `step` is no good.
  void discard_copy(const std::string& trainer, uint64_t step);
  /// Nobody has gone on from this step as it was made.
  void suspect_step(uint64_t step, uint64_t generation);
  /// Ends the current generation for everybody in it, at once.
  void fence(std::string phase, std::string kind, std::string subject, std::string reason);
  /// Ends the current generation after a step.
  void leave_after_step(std::string reason);
  /// Trainers that ignore a fence are stuck.
  void kill_trainers_ignoring_fence();
  /// Nodes whose trainers do not come up again are suspects.
  void suspect_nodes_missing_trainers();
  void drain_nodes_with_hung_checks();
  /// Requires that all trainers are idle. Suspects the nodes whose diagnosis was requested.
  void begin_diagnosis();
  /// Records the result of the diagnosis once all of its nodes have answered.
  void end_diagnosis();

  // --- The next generation ---

  std::string missing_nodes() const;
  /// Begins the next generation if everybody that it needs is there.
  void plan();
  std::vector<AvailableCopy> copies() const;
  /// What changes in words.
  std::string describe_change(const Layout& before, const Layout& next) const;
  /// The next tier of the disk. Several trainers may say it of the same checkpoint.
  void skip_checkpoint(uint64_t step, const std::string& reason);
  /// Nodes of the layout with a trainer that could not read the generation's checkpoint.
  std::vector<std::string> nodes_without_checkpoint() const;
  /// A node that cannot read the checkpoint becomes suspect if another node could read it.
  void suspect_nodes_without_checkpoint();
  /// No node could read the checkpoint: retry it after a delay, never an older one, since it may be
  /// intact.
  bool waiting_for_disk() const {
    return !nodes_without_checkpoint().empty() && !waited(disk_retry_ms);
  }
  /// Most nodes of the layout have just been lost: if it is this side of the network that is cut
  /// off, the others get the time to say so before it goes on alone.
  bool may_be_cut_off() const;

  struct Beginning {
    Source source = Source::initialize;
    uint64_t step = 0;
    std::vector<AvailableCopy> copies;
  };
  /// The newest state that can be had of every shard.
  Beginning newest_state() const;
  /// A node reports, but not all of its trainers are up.
  bool trainers_may_return() const;
  void join(Layout next, const Beginning& beginning);
  /// What older generations have made of `step` and all after it is undone by the present one.
  void undo_from(uint64_t step);
  /// More groups, or a drained node replaced, as soon as nodes are there for it.
  void leave_to_grow();
  void finish_if_saved();
  void shut_down(Code exit, std::string reason);

  const int64_t now_;
  State& s_;
  Decision decision_;
};

}  // namespace simplescale::job
