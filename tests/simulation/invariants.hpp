// What has to hold in every history, whatever fails. The simulated cluster tells what happens; the
// first thing that must not happen is thrown as Violation.
//
//   JOB-1   A committed step is undone only if no usable copy of it, or of a newer step, is left.
//   JOB-2   A step is committed once in a generation, by all its ranks; each row is trained once.
//   JOB-3   A generation begins from one step, and each member holds its shard of that step as it was
//           made last.
//   JOB-4   Once faults have ended, training goes on within a bounded time; no node is forgotten.
//   JOB-5   The same events make the same decisions, each with a reason.
//   LEAD-1  Only the newest supervisor acts.
//   GEN-1   No trainer trains in two generations.
//   GEN-2   The number of a generation is given out once.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/simulation/cluster.hpp"

namespace simplescale::simulation {

class Invariants {
 public:
  explicit Invariants(const Cluster& cluster) : cluster_(cluster) {}

  void after_event();
  void at_end();

  // Training.
  void step_written(const Generation& g, uint64_t step);
  void step_committed(const Generation& g, uint64_t step);
  void step_distrusted(uint64_t step, const std::set<uint64_t>& wrong);
  void state_restored(const Generation& g);

  // Supervisors.
  void supervisor_started(const Supervisor& supervisor, bool replica, uint64_t sequence);
  void event_received(const Supervisor& supervisor, const job::Event& event);
  void same_decision(const job::Decision& a, const job::Decision& b);
  void decision_made(const Supervisor& supervisor, const job::Event& event,
                     const job::Decision& decision);
  void action_taken(const Supervisor& supervisor, const job::Action& action);
  void step_counted(const Supervisor& supervisor, uint64_t generation, uint64_t step);
  void command_obeyed(int node, uint64_t epoch, const char* what);

  uint64_t newest_committed() const { return committed_; }

 private:
  void check_join(const Supervisor& supervisor, const job::Join& join);
  void check_layout(const Supervisor& supervisor);
  void set_committed(uint64_t step);
  void check_newest_step(const Supervisor& supervisor, const job::Join& join);
  void check_budgets(const Supervisor& supervisor);

  const Cluster& cluster_;
  uint64_t committed_ = 0;                                   // newest step
  std::map<uint64_t, uint64_t> made_;                        // step -> the generation that made it
  std::map<uint64_t, uint64_t> by_generation_;               // newest step committed in it
  std::map<std::pair<uint64_t, uint64_t>, size_t> written_;  // (generation, step) -> ranks
  uint64_t distrusted_ = UINT64_MAX;                         // this step and all after it
  std::set<uint64_t> detected_;                              // contents known to be wrong
  bool made_again_ = false;                                  // a generation has begun before it
  std::set<uint64_t> found_;                                 // and those no supervisor knows of
  std::set<std::pair<uint64_t, std::string>> lost_;          // by epoch
  uint64_t joined_ = 0, acted_generation_ = 0;
  std::map<int, uint64_t> obeyed_;
  struct Failures {
    std::vector<int64_t> at_ms;
    uint64_t step = 0;
  };
  std::map<std::string, Failures> failures_;
  Time progress_at_ = 0, checked_at_ = 0;
  uint64_t quiet_step_ = 0;
  std::map<std::string, Time> suspect_since_;
};

}  // namespace simplescale::simulation
