// The implementation of decide() (decide.hpp): a visitor of one event that changes the state and
// collects the actions. Included by decide*.cpp alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "runtime/base/words.hpp"

namespace simplescale::job {

constexpr int64_t disk_retry_ms = 5'000;  // between two tries of a checkpoint that no node can read

inline std::string number(uint64_t n) {
  return std::to_string(n);
}

inline std::string milliseconds(int64_t n) {
  return n > 0 && n % 1000 == 0 ? std::to_string(n / 1000) + " s" : std::to_string(n) + " ms";
}

class Decider {
 public:
  Decider(int64_t now_ms, State& state, bool more) : now_(now_ms), more_(more), s_(state) {}
  Decision take() { return std::move(decision_); }
  /// Runs a plan that was put off until the last received event, if this event is the last one.
  void plan_if_due() {
    if (!more_ && s_.plan_due_ms >= 0) plan();
  }
  bool over() const { return job::over(s_.phase); }
  /// Call after each event. If a node has recovered, its next failure counts as a new cause.
  void end_causes();

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
  void operator()(const TrainerHung& e);
  // --- Progress ---
  void operator()(const StepCommitted& e);
  void operator()(const TrainerFinished& e);
  void operator()(const CheckpointWritten& e);
  void operator()(const CheckpointSaved& e);
  void operator()(const CheckpointsLeft& e);
  void operator()(const CheckpointFailed& e);
  // --- Requests ---
  void operator()(const StopRequested& e);
  void operator()(const PauseRequested& e);
  void operator()(const DiagnoseRequested& e);
  void operator()(const SetRequested& e);
  void operator()(const Tick&);

 private:
  // --- Facts ---

  /// Null if there is no such node, or if the run is over.
  Node* find_node(const std::string& name) {
    auto found = s_.nodes.find(name);
    return found == s_.nodes.end() || over() ? nullptr : &found->second;
  }
  Trainer* find_trainer(const std::string& name) {
    auto found = s_.trainers.find(name);
    return found == s_.trainers.end() || over() ? nullptr : &found->second;
  }
  /// True if the agent of the node reports.
  static bool is_here(const Node& node) {
    return node.state != NodeState::absent && node.state != NodeState::lost;
  }
  static bool in_generation(const Trainer& t) {
    return t.state == TrainerState::training || t.state == TrainerState::finished;
  }
  /// True if no step has been committed since the last failure, or since the start.
  bool awaiting_first_step() const {
    return s_.phase == Phase::starting || s_.phase == Phase::recovering;
  }
  bool waited(int64_t limit_ms) const { return now_ - s_.waiting_since_ms > limit_ms; }
  /// True if all trainers of a node satisfy the predicate. They are neighbours in the map, because
  /// "." sorts before every digit.
  template <class F>
  bool all_of_node(const std::string& node, F&& is_so) const {
    auto next = s_.trainers.lower_bound(node + ".");
    for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot, ++next)
      if (!is_so(next->second)) return false;
    return true;
  }
  /// True if all trainers of the layout satisfy the predicate; false for an empty layout.
  template <class F>
  bool all_members(F&& are_so) const {
    for (const auto& domain : s_.layout.domains)
      for (const std::string& node : domain)
        if (!all_of_node(node, are_so)) return false;
    return !s_.layout.domains.empty();
  }
  bool all_members_in(TrainerState state) const {
    return all_members([&](const Trainer& t) { return t.state == state; });
  }
  bool all_in_generation() const { return all_members(in_generation); }
  bool any_in_generation() const {
    return std::ranges::any_of(s_.trainers, [](const auto& t) { return in_generation(t.second); });
  }
  uint64_t last_step() const {
    return s_.trainers.at(trainer_name(s_.layout.domains.front().front(), 0)).step;
  }
  template <class F>
  void for_each_trainer(const std::string& node, F&& f) {
    auto next = s_.trainers.lower_bound(node + ".");
    for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot, ++next) f(next->second);
  }
  bool node_is_idle(const std::string& node) const {
    return all_of_node(node, [](const Trainer& t) { return t.state == TrainerState::idle; });
  }
  /// Nodes that a new layout may use, those with the fewest failures first: nodes that are up and
  /// idle. with_training: also the nodes of the current layout.
  std::vector<std::string> usable_nodes(bool with_training) const;
  /// True if enough failure domains remain without this node.
  bool can_spare(const std::string& name) const;

  /// Handles the report of an agent that could not send a copy to a generation.
  void agent_failed(const TrainerIdle& e);

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
  void request_rate(const SetRequested& e);
  /// Applies a requested learning rate, if there is one, from the step after `step` on.
  void begin_rate(uint64_t step);
  /// Counts a failure for the node's restart budget, once for each cause: failures of other
  /// trainers of the node by the same cause do not count again. subject: the node or trainer that
  /// failed.
  void record_failure(const std::string& subject);
  void enforce_restart_budget(const std::string& name);
  /// Forgets the copies of `step` that `trainer` and the peer store of its node hold.
  void discard_copy(const std::string& trainer, uint64_t step);
  /// Records that replicas computed different states of `step` in `generation`: no generation
  /// begins with these states.
  void suspect_step(uint64_t step, uint64_t generation);
  /// Ends the current generation at once, for all of its trainers.
  void fence(std::string phase, std::string kind, std::string subject, std::string reason);
  /// Ends the current generation after a step, unless it is about to end already.
  void leave_after_step(std::string reason);
  /// Kills trainers that do not leave their generation in time.
  void kill_trainers_ignoring_fence();
  /// Makes a node suspect if its trainers do not restart in time.
  void suspect_nodes_missing_trainers();
  /// Drains a suspect node whose diagnosis does not end in time.
  void drain_nodes_with_hung_checks();
  /// Requires that all trainers are idle. Suspects the nodes whose diagnosis was requested.
  void begin_diagnosis();
  /// Records the results of the diagnosis once all examined nodes have answered.
  void end_diagnosis();

  /// Ends a run that cannot go on, with `exit`. JOB-1: if only memory holds the newest step, one
  /// more generation first saves it, without training a step.
  void give_up(Code exit, std::string reason);
  /// Ends the run after give_up() or a stop. outcome: whether its newest step was saved, for users.
  void end_giving_up(const std::string& outcome, bool saved);
  /// The step of the newest valid checkpoint on disk; 0: none.
  uint64_t saved_step() const { return s_.has_checkpoint ? s_.checkpoint_step : 0; }
  void end_without_copies();
  /// "; to go on without …" for users, if a value was not finite; else "".
  std::string advice() const;

  // --- The next generation ---

  /// "2 groups": training waits while fewer groups are possible.
  std::string groups_needed() const {
    return counted(s_.rules.min_domains * s_.rules.groups_per_domain(), "group");
  }
  /// The fewest failure domains of a generation. A generation that only saves needs one and may use
  /// drained nodes. With fewer nodes than that, agents save (save_from_memory()).
  size_t domains_needed() const {
    return static_cast<size_t>(s_.giving_up ? 1 : s_.rules.min_domains);
  }
  /// The nodes that cannot train now, with the reason for each.
  std::string missing_nodes() const;
  /// Begins the next generation if all trainers are idle and enough nodes are usable. JOB-1: does
  /// nothing while plan_waits().
  void plan();
  /// True while a plan waits for later events that were received already. They may report a newer
  /// state, or a node that is worth waiting for.
  bool plan_waits();
  /// Trusted copies in the memory of idle trainers and in the peer stores of their nodes. An idle
  /// trainer can also send from the memory of a trainer of its node that is down. branch: the
  /// branch, as for trusted().
  std::vector<AvailableCopy> copies(uint64_t branch) const;
  /// The difference between the layouts, as text for users.
  std::string describe_change(const Layout& before, const Layout& next) const;
  /// Replaces the damaged checkpoint of `step` by the next older one. No effect if `step` is not
  /// the current checkpoint, because several trainers may report the same one.
  void skip_checkpoint(uint64_t step, const std::string& reason);
  /// Nodes of the layout with a trainer that could not read the generation's checkpoint.
  std::vector<std::string> nodes_without_checkpoint() const;
  /// Makes a node suspect if it cannot read the checkpoint and another node can.
  void suspect_nodes_without_checkpoint();
  /// True while decide() waits before the next try of a checkpoint that no node could read. No
  /// older checkpoint is used, because this one may be intact.
  bool waiting_for_disk() const {
    return !nodes_without_checkpoint().empty() && !waited(disk_retry_ms);
  }
  /// True if most nodes of the layout were lost less than vote_ms ago. A network partition may
  /// separate them from this supervisor; then they may vote against it. plan() waits for that vote
  /// before it continues without them.
  bool may_be_cut_off() const;

  struct Beginning {
    Source source = Source::initialize;
    uint64_t step = 0;
    std::vector<AvailableCopy> copies;
    uint64_t branch = newest_branch;  // if not the current one: regains steps
  };
  /// Returns the newest state of which every shard has a copy. JOB-1: includes states of abandoned
  /// branches whose rollback is tentative, if they are newer.
  Beginning newest_state() const;
  /// True if a copy is known of a step that the newest generation made (JOB-3).
  bool step_was_made() const;
  /// Abandoned branches that can become current: a known copy belongs to them, and their rollbacks
  /// are tentative. Empty if a step was made since.
  using Branches = std::set<uint64_t, std::greater<>>;
  Branches left_branches() const;
  /// Ends a generation that has made no step, if a newer state than it began with has come back.
  void fence_if_newer_state_returned();
  /// Makes an abandoned branch current: reverts the rollbacks that left it, and tentatively rolls
  /// back what was made since.
  void revert_rollbacks(uint64_t branch);
  /// Returns the newest step that can have been committed. A step is committed only if all ranks
  /// made it, and a trainer's memory holds the last step that the trainer made.
  uint64_t newest_possible() const;
  /// True if a newer step than `beginning` may have been committed, and some connected agent has
  /// not yet reported what its node's memory holds after the end of the last generation.
  bool answers_missing(const Beginning& beginning) const;
  /// True if the memory of connected nodes may hold every shard of a newer step than `beginning`.
  /// It holds at least the steps that were reported last. A trainer that was then in the newest
  /// generation may also hold each newer step that other trainers hold. Counts also nodes that
  /// cannot send now because none of their trainers is up.
  bool memory_may_be_newer(const Beginning& beginning) const;
  /// JOB-1: true if a newer state than `beginning` may still be reported or saved. Orders the
  /// reports that are missing.
  bool newer_may_come(const Beginning& beginning);
  /// GEN-2: takes the next number, which no other generation has.
  void use_next_number() { s_.generation = std::max(s_.generation, s_.generation_floor) + 1; }
  /// Ends a generation that trainers have left or are leaving. All agents then report what their
  /// memory holds. what: what the supervisor waits for, as text.
  void end_generation(std::string what);
  /// Makes the order for the next generation, which begins with this state: takes its number, and
  /// rolls back or regains the steps that this choice concerns.
  Join next_generation(const Beginning& beginning);
  /// Begins that generation with its trainers.
  void join(Layout next, const Beginning& beginning);
  /// JOB-1: ends the run if too few nodes are left for a group. Their agents first write the newest
  /// state of which the memory of these nodes holds every shard.
  void save_from_memory();
  /// Rolls back what older generations made of `step` and later steps.
  void roll_back_from(uint64_t step);
  /// Ends the generation after a step if enough nodes are up for more failure domains.
  void leave_to_grow();
  /// Ends the run once all trainers have finished and the last checkpoint is saved.
  void finish_if_saved();
  /// True if the current generation could not save this step.
  bool save_failed(uint64_t step) const {
    return !s_.failed_checkpoint_reason.empty() && s_.failed_checkpoint == step;
  }
  /// True if all trainers have finished and their last save failed. JOB-1: they stay, with the
  /// state in their memory, until the disk takes that step or a user ends the run.
  bool last_save_failed() const;
  /// Begins one more generation, which trains no step and saves.
  void save_again();
  /// Ends the run. all_steps: it is complete. Otherwise an end without an error counts as a stop.
  void shut_down(Code exit, std::string reason, bool all_steps = false);

  const int64_t now_;
  const bool more_;
  State& s_;
  Decision decision_;
};

}  // namespace simplescale::job
