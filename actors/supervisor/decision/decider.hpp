// The implementation of decide() (decide.hpp): a visitor of one event that changes the state and
// collects the actions. What it decides by are pure functions of the state: queries.hpp,
// placement.hpp, newest_state.hpp, rollback.hpp, restart_budget.hpp. Included by decide*.cpp alone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/decision/newest_state.hpp"
#include "actors/supervisor/decision/queries.hpp"
#include "transport/protocol/reason.hpp"

namespace simplescale::job {

constexpr int64_t disk_retry_ms = 5'000;  // between two tries of a checkpoint that no node can read

class Decider {
 public:
  Decider(int64_t now_ms, State& state, bool more) : now_(now_ms), more_(more), s_(state) {}
  Decision take() { return std::move(decision_); }
  /// After the event. Runs a plan that was put off until the last received event, if this event is
  /// the last one, and removes nodes that may leave by now.
  void end_event() {
    if (!more_ && s_.plan_due_ms >= 0) plan();
    release_nodes();
  }
  bool over() const { return job::over(s_.phase); }

  // --- Nodes (decide_nodes.cpp) ---
  void operator()(const NodeUp& e);
  void operator()(const NodeLost& e);
  void operator()(const NodeChecked& e);
  void operator()(const DrainRequested& e);
  void operator()(const DiagnoseRequested& e);
  void operator()(const PeerCopies& e);
  void operator()(const Suspected& e);
  // --- Trainers (decide_trainers.cpp) ---
  void operator()(const TrainerUp& e);
  void operator()(const TrainerDown& e);
  void operator()(const TrainerIdle& e);
  void operator()(const TrainerReady& e);
  void operator()(const TrainerHung& e);
  // --- Progress (decide_progress.cpp) ---
  void operator()(const StepCommitted& e);
  void operator()(const SpeedsMeasured& e);
  void operator()(const TrainerFinished& e);
  void operator()(const CheckpointWritten& e);
  void operator()(const CheckpointSaved& e);
  void operator()(const CheckpointsLeft& e);
  void operator()(const CheckpointFailed& e);
  // --- Requests (decide_requests.cpp) ---
  void operator()(const StopRequested& e);
  void operator()(const PauseRequested& e);
  void operator()(const SetRequested& e);
  // --- Time (decide.cpp) ---
  void operator()(const Tick&);

 private:
  /// Null if there is no such node, or if the run is over.
  Node* find_node(const std::string& name) {
    auto found = s_.nodes.find(name);
    return found == s_.nodes.end() || over() ? nullptr : &found->second;
  }
  Trainer* find_trainer(const std::string& name) {
    auto found = s_.trainers.find(name);
    return found == s_.trainers.end() || over() ? nullptr : &found->second;
  }
  bool waited(int64_t limit_ms) const { return now_ - s_.waiting_since_ms > limit_ms; }

  // --- The decision ---

  template <class A>
  void add_action(A action) {
    decision_.actions.push_back(std::move(action));
  }
  void record(std::string phase, std::string kind, std::string subject, Reason reason,
              uint64_t count = 0);
  void record(std::string phase, std::string kind, std::string subject, std::string reason,
              uint64_t count = 0) {
    record(std::move(phase), std::move(kind), std::move(subject), in_words(std::move(reason)),
           count);
  }
  void set_reason(std::string reason) { decision_.reason = std::move(reason); }
  void begin_wait(std::string what);

  // --- Membership (decide_nodes.cpp) ---

  /// Makes an unknown node that reports a node of the run. False: it is refused, and ends.
  bool admit(const NodeUp& e);
  /// Removes the nodes that are to leave for good. JOB-1: once a generation without them commits
  /// steps, so no state is needed that only they hold.
  void release_nodes();
  void set_node_state(const std::string& name, NodeState state, std::string reason);
  void declare_lost(const std::string& name, const Reason& reason);
  void suspect_node(const std::string& name, const std::string& reason);
  void drain_node(const std::string& name, const std::string& reason);
  /// BACKEND-3: the run computes with this set from now on. Drains the nodes whose hosts lack it.
  void use_instructions(InstructionSet of_run);
  /// BACKEND-3: chooses the best set that all hosts have which report now. No effect on GPUs.
  void choose_instructions();
  /// Drains a node that has used up its restart budget.
  void enforce_restart_budget(const std::string& name);
  /// Makes a node suspect if its trainers do not restart in time.
  void suspect_nodes_missing_trainers();
  /// Makes a node suspect if it cannot read the checkpoint and another node can.
  void suspect_nodes_without_checkpoint();
  /// Drains a suspect node whose diagnosis does not end in time.
  void drain_nodes_with_hung_checks();
  /// Requires that all trainers are idle. Suspects the nodes whose diagnosis was requested.
  void begin_diagnosis();
  /// Records the results of the diagnosis once all examined nodes have answered.
  void end_diagnosis();

  // --- Trainers (decide_trainers.cpp) ---

  /// Handles the report of an agent that could not send a copy to a generation.
  void agent_failed(const TrainerIdle& e);
  /// Forgets the copies of `step` that `trainer` and the peer store of its node hold.
  void discard_copy(const std::string& trainer, uint64_t step);
  /// A generation could not begin because of a copy. Discards it; if that has happened often since
  /// the last committed step, also what is reported of it later, and at last the step. So a
  /// generation begins with another source, if there is one.
  void bad_copy(const TrainerIdle& e);
  void discard_bad_copies();
  /// Records that no generation begins with the states of `step` that generations up to this one
  /// made, and why.
  void suspect_step(uint64_t step, uint64_t generation, const std::string& why);
  /// Kills trainers that do not leave their generation in time.
  void kill_trainers_ignoring_fence();

  // --- Checkpoints (decide_progress.cpp), and requests (decide_requests.cpp) ---

  /// Replaces the damaged checkpoint of `step` by the next older one. No effect if `step` is not
  /// the current checkpoint, because several trainers may report the same one.
  void skip_checkpoint(uint64_t step, const std::string& reason);
  /// The run is to end after a step. recorded: a supervisor knows the order.
  void request_stop(const StopRequested& e, bool recorded);
  void request_rate(const SetRequested& e);
  /// Applies a requested learning rate, if there is one, from the step after `step` on.
  void begin_rate(uint64_t step);

  // --- Generations (decide_generation.cpp) ---

  /// Begins the next generation if all trainers are idle and enough nodes are usable. JOB-1: does
  /// nothing while plan_waits().
  void plan();
  /// True while a plan waits for later events that were received already. They may report a newer
  /// state, or a node that is worth waiting for.
  bool plan_waits();
  /// True while decide() waits before the next try of a checkpoint that no node could read. No
  /// older checkpoint is used, because this one may be intact.
  bool waiting_for_disk() const;
  /// JOB-1: true if a newer state than `beginning` may still be reported or saved. Orders the
  /// reports that are missing.
  bool newer_may_come(const Beginning& beginning);
  /// GEN-2: takes the next number, which no other generation has.
  void use_next_number() { s_.generation = std::max(s_.generation, s_.generation_floor) + 1; }
  /// Makes the order for the next generation, which begins with this state: takes its number, and
  /// rolls back or regains the steps that this choice concerns.
  Join next_generation(const Beginning& beginning);
  /// Gives the groups of the layout shares by their speeds.
  void share_leaves();
  /// Begins that generation with its trainers.
  void join(Layout next, const Beginning& beginning);
  /// Ends the current generation at once, for all of its trainers.
  void fence(std::string phase, std::string kind, std::string subject, Reason reason);
  void fence(std::string phase, std::string kind, std::string subject, std::string reason) {
    fence(std::move(phase), std::move(kind), std::move(subject), in_words(std::move(reason)));
  }
  /// Ends a generation that has made no step, if a newer state than it began with has come back.
  void fence_if_newer_state_returned();
  /// Ends a generation that trainers have left or are leaving. All agents then report what their
  /// memory holds. what: what the supervisor waits for, as text.
  void end_generation(std::string what);
  /// Ends the current generation after a step, unless it is about to end already.
  void leave_after_step(std::string reason);
  /// Ends the generation after a step if enough nodes are up for more failure domains, or for a
  /// better size of them.
  void leave_to_grow();

  // --- The end (decide_end.cpp) ---

  /// Ends a run that cannot go on, with `exit`. JOB-1: if only memory holds the newest step, one
  /// more generation first saves it, without training a step.
  void give_up(Code exit, std::string reason);
  /// Ends the run after give_up() or a stop. outcome: whether its newest step was saved, for users.
  void end_giving_up(const std::string& outcome, bool saved);
  void end_without_copies();
  /// JOB-1: ends the run if too few nodes are left for a group. Their agents first write the newest
  /// state of which the memory of these nodes holds every shard.
  void save_from_memory();
  /// Begins one more generation, which trains no step and saves.
  void save_again();
  /// Ends the run once all trainers have finished and the last checkpoint is saved.
  void finish_if_saved();
  /// Ends the run. all_steps: it is complete. Otherwise an end without an error counts as a stop.
  void shut_down(Code exit, std::string reason, bool all_steps = false);

  const int64_t now_;
  const bool more_;
  State& s_;
  Decision decision_;
};

}  // namespace simplescale::job
