// The invariants that every history must keep, whatever fails. The simulated cluster reports what
// happens; the first violation is thrown as Violation.
//
//   JOB-1   A committed step is undone only if neither it nor a newer step has a usable copy of
//           every shard left. All copies count that exist on the disk and in the memory of nodes
//           that report to the supervisor, whether or not it has heard of the copies. The shards
//           must be of one cut.
//   JOB-2   A step is committed once in a generation, by all its ranks; each row is trained once.
//   JOB-3   A generation begins from one step. Each member holds its shard of that step as it was
//           made last. A shard of another cut is made of one copy of each old shard that has
//           elements of it, all of one step and branch.
//   JOB-4   Once faults have ended, training continues within a bounded time; no node is forgotten.
//   JOB-5   The same events give the same decisions, each with a reason.
//   LEAD-1  Only the newest supervisor acts.
//   GEN-1   No trainer trains in two generations.
//   GEN-2   The number of a generation is used once.
//   RESTORE-1  Trainers that begin a generation never discard the last copy of its state.
//   RESHAPE-1  A generation has the shape that layout.hpp names best for its nodes, and no generation
//           ends only to get the same shape again.
//   BALANCE-1  Generations that end for other shares are a pause apart.
//   CHECKPOINT-1  The newest checkpoint that the leader knows can be read at any moment.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/cluster.hpp"

namespace simplescale::simulation {

/// Throws Violation unless the invariant holds.
inline void require(bool holds, const char* invariant, const std::string& text) {
  if (!holds) throw Violation{invariant, text};
}
inline std::string number(uint64_t n) {
  return std::to_string(n);
}

class Invariants {
 public:
  explicit Invariants(const Cluster& cluster) : cluster_(cluster) {}

  void after_event();
  void at_end();

  // Training.
  /// A rank has applied `step`.
  void step_written(const Generation& g, uint64_t step);
  /// All ranks have applied `step`.
  void step_committed(const Generation& g, uint64_t step);
  /// Trainers found that replicas differ; `wrong`: the contents that are not correct.
  void step_distrusted(const std::set<uint64_t>& wrong);
  /// A trainer changes its memory as a generation begins.
  void memory_changes(const Generation& g);
  void memory_changed(const Generation& g, const char* what);
  /// A member is to send these shards and gets another one, which needs a third side.
  void no_room(const Generation& g, const Generation::Member& m, const std::set<Shard>& sent) const;
  /// A member has made its shard of shards of another cut, of which `like` is one.
  void shard_made(const Generation& g, const Generation::Member& m, const StoredCopy& like) const;
  /// All members have restored the state that `g` begins with.
  void state_restored(const Generation& g);

  // Supervisors.
  /// from: the state of its predecessor; null: it has none. claimed: when it claimed its term.
  /// missed: the disk has a newer state, which it has not found.
  void supervisor_started(const Supervisor& supervisor, const SupervisorState* from, Time claimed,
                          bool missed);
  /// A process that has claimed a term lets another one lead. state: that it or the disk had.
  void stepped_down(uint64_t term, const SupervisorState& state);
  /// Before the supervisor decides on `event`.
  void event_received(const Supervisor& supervisor, const job::Event& event);
  void same_decision(const job::Decision& a, const job::Decision& b);
  void decision_made(const Supervisor& supervisor, const job::Decision& decision);
  void action_taken(const Supervisor& supervisor, const job::Action& action);
  /// The supervisor counts `step` as committed.
  void step_counted(const Supervisor& supervisor, uint64_t generation, uint64_t step);
  /// The supervisor says that the records hold all lines up to `step`.
  void records_marked(const Supervisor& by, uint64_t step);
  /// A publisher has renamed a folder to step-N.
  void checkpoint_placed(const Supervisor& by, const SavedStep& saved);
  /// The supervisor has ordered a round of copies.
  void round_ordered(const Supervisor& by, const CopyToPeers& order);
  /// A copy of a round was not made. The next round may overwrite those that its supervisor has not
  /// heard of.
  void round_failed(const CopyToPeers& order);
  /// Memory of a keeper has failed: the rounds so far promise nothing.
  void copies_damaged();
  /// A node has taken a copy, or has removed one to make room.
  void copies_changed();
  /// A publisher has acted.
  void disk_changed();
  /// An agent leaves the run, and the memory of its node is lost.
  void node_leaves(int node);
  /// A supervisor resigns because of the votes that it has read.
  void resigns(const Supervisor& supervisor) const;
  /// A command that joins the run has taken the name of this node.
  void name_taken(int node, uint64_t command);
  /// An agent carries out an order of the supervisor of `term`.
  void command_obeyed(int node, uint64_t term, const char* what);

  uint64_t newest_committed() const { return committed_; }

 private:
  void check_join(const Supervisor& supervisor, const job::Join& join);
  void check_waited(const Supervisor& supervisor, const job::Action& action);
  void check_given_up(const Supervisor& supervisor, const job::Shutdown& end);
  /// A round of copies, and the links of its keepers when it was ordered.
  struct Round {
    const Supervisor* by = nullptr;
    CopyToPeers order;
    std::map<int, uint64_t> links;
  };
  bool counts(const Round& round) const;
  /// The keepers hold every copy, of the round's step or of a newer one.
  bool held_whole(const Round& round) const;
  void check_history(const job::Join& join, uint64_t committed, uint64_t made);
  bool is_unknown(uint64_t generation) const;
  void check_line(uint64_t step, const std::string& when);
  void check_records();
  /// The newest generation whose line of `step` is there; `made` ends the search.
  static uint64_t generation_in(const std::vector<Disk::Line>& lines, uint64_t step, uint64_t made);
  /// The newest committed step of which memory or the disk holds every shard. without: a node whose
  /// memory does not count; -1: none.
  uint64_t newest_held(int without) const;
  /// Calls f with each copy on the disk and in memory of nodes that are up.
  void each_copy(int without, const std::function<void(const StoredCopy&)>& f) const;
  /// The newest generation of whose `step` memory and the disk hold every shard of a cut.
  std::optional<uint64_t> held_of(uint64_t step) const;
  void check_layout(const Supervisor& supervisor);
  /// Failure domains of this size, in nodes.
  struct Shape {
    int size = 1;
    size_t domains = 0;
    size_t nodes() const { return domains * static_cast<size_t>(size); }
    bool operator==(const Shape&) const = default;
  };
  Shape shape_of(const job::Layout& layout) const;
  /// The shape that layout.hpp names best for so many nodes, `current` being the layout before.
  std::optional<Shape> best_shape(const job::State& s, const job::Layout& current,
                                  size_t nodes) const;
  /// The supervisor is to leave its generation for another shape.
  bool grows(const job::State& s) const;
  void check_shape(const job::State& s);
  void check_left(const Supervisor& supervisor, const job::Action& action);
  bool tries(const job::State& s, const job::Layout& current, int size) const;
  void set_committed(uint64_t step);
  void check_newest_step(const Supervisor& supervisor, const job::Join& join);
  void check_waits_for_memory(const Supervisor& supervisor, const job::Join& join);
  void check_regained(const Supervisor& supervisor, const job::Join& join);
  void check_budgets(const Supervisor& supervisor);
  void check_causes(const Supervisor& supervisor);

  const Cluster& cluster_;
  bool undoes_ = false;     // the newest generation began before a step that a rank made, or anew
  uint64_t committed_ = 0;  // the newest committed step
  std::map<uint64_t, uint64_t> made_;                        // step -> generation that made it last
  std::map<uint64_t, uint64_t> by_generation_;               // generation -> newest committed step
  std::map<std::pair<uint64_t, uint64_t>, size_t> written_;  // (generation, step) -> ranks done
  uint64_t distrusted_ = UINT64_MAX;                 // the oldest step that replicas differ in
  bool made_again_ = false;                          // a generation has begun before distrusted_
  bool stop_asked_ = false;                          // a user has asked a supervisor to stop
  std::set<uint64_t> detected_;                      // wrong contents that a supervisor knows of
  std::set<uint64_t> found_;                         // wrong contents that only trainers know of
  std::set<std::pair<uint64_t, std::string>> lost_;  // (term, node)
  Round round_;                                      // the newest
  Round whole_;  // the newest of which the keepers have held every copy
  InstructionSet instructions_ = InstructionSet::automatic;  // of the run
  std::optional<int64_t> balanced_at_;  // when a generation has last been left for other shares, ms
  uint64_t joined_ = 0, acted_generation_ = 0;
  uint64_t newest_maker_ = 0;           // the newest generation of which a rank has applied a step
  std::map<uint64_t, uint64_t> users_;  // generation number -> term that has used it
  std::map<int, uint64_t> obeyed_;
  uint64_t marked_ = 0;  // up to this step the records hold the current history
  // Generations that a decision began which is lost: greater than the first, at most the second.
  std::vector<std::pair<uint64_t, uint64_t>> unknown_;
  struct Failures {
    std::vector<int64_t> at_ms;
    uint64_t step = 0;
  };
  std::map<std::string, Failures> failures_;  // of each trainer
  std::map<uint64_t, uint64_t>
      newest_known_;              // by term: the newest generation its supervisor knows
  int64_t waiting_since_ms_ = 0;  // of the supervisor that decides now
  bool adopts_ = false;  // it hears of a trainer in the generation that its state has it in
  std::optional<uint64_t> held_before_;  // held_of() before the memory of a trainer changes
  /// Of a generation that is left for another shape: its own one, and the number of usable nodes.
  std::optional<std::pair<Shape, size_t>> left_;
  Time progress_at_ = 0, checked_at_ = 0;
  Time grows_since_ = 0;       // more groups are possible than train
  std::set<int32_t> removed_;  // agents that were removed
  std::map<uint64_t, std::map<std::string, int32_t>> agents_;  // by term, then node; as known
  uint64_t quiet_step_ = 0;
  std::map<std::string, Time> suspect_since_;
};

}  // namespace simplescale::simulation
