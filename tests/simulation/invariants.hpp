// What has to hold in every history, whatever fails. The simulated cluster tells what happens; the
// first thing that must not happen is thrown as Broken.
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
  explicit Invariants(const Cluster& cluster) : c_(cluster) {}

  void after_event();
  void at_end();

  // Training.
  void wrote(const Generation& g, uint64_t step);
  void committed(const Generation& g, uint64_t step);
  void distrusted(uint64_t step, const std::set<uint64_t>& wrong);
  void settled(const Generation& g);

  // Supervisors.
  void claimed(const Supervisor& supervisor, bool replica, uint64_t sequence);
  void before(const Supervisor& supervisor, const job::Event& event);
  void same(const job::Decision& a, const job::Decision& b);
  void decided(const Supervisor& supervisor, const job::Event& event,
               const job::Decision& decision);
  void acts(const Supervisor& supervisor, const job::Action& action);
  void reported(const Supervisor& supervisor, uint64_t generation, uint64_t step);
  void obeyed(int node, uint64_t epoch, const char* what);

  uint64_t newest() const { return committed_; }

 private:
  void joins(const Supervisor& supervisor, const job::Join& join);
  void layout(const Supervisor& supervisor);
  void go_on_from(uint64_t step);
  void copies(const Supervisor& supervisor, const job::Join& join);
  void budgets(const Supervisor& supervisor);

  const Cluster& c_;
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
  Time progress_at_ = 0, looked_at_ = 0;
  uint64_t quiet_step_ = 0;
  std::map<std::string, Time> suspect_since_;
};

}  // namespace simplescale::simulation
