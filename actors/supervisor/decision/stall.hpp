// Finds out whether training stalls, which trainer the other trainers wait for, and whether that
// trainer hangs.
//
// Plain data, no clock and no actors. The supervisor actor owns it, and passes in every committed
// step and, while no step is committed, the nodes' reports of their trainers' progress.
//
// A generation that has committed a step is stalled if no other step follows for three times the
// median of recent steps, and for kStallMs. A trainer hangs if it alone computes while all other
// trainers wait in collectives, and it has computed no unit for ten times the slowest recent step,
// and for kHangMs. A trainer that is slow but computes units does not hang. A trainer that waits
// for tokens, for a copy of its state or for the network does not hang either. If this code misses
// a trainer that hangs, supervision.progress_timeout_ms finds it (actors/node/liveness.hpp).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

struct Stall {
  int64_t since_ms = 0;                  // time since the newest committed step
  std::vector<std::string> waiting_for;  // trainers; empty: all trainers wait in collectives
  bool silent = false;                   // these trainers do not answer
  StepPhase phase = StepPhase::none;     // of the first of these trainers
  int block = -1;
  std::string names() const;     // "n0.0", "n0.0, n0.1", "4 trainers"
  std::string sentence() const;  // "no step for 12 s, waiting for n0.0 (backward, block 3)"
};

class StallWatch {
 public:
  static constexpr int64_t kStallMs = 2'000, kHangMs = 5'000;
  static constexpr int64_t kAskMs = 500;  // between two questions to the nodes

  /// A generation begins.
  void begin();
  /// A step is committed.
  void committed(int64_t now_ms);
  /// When the newest step of this generation was committed, if one was.
  std::optional<int64_t> committed_ms() const { return committed_ms_; }
  /// True if the nodes should report now what their trainers do.
  bool ask(int64_t now_ms, const State& job);
  void report(int64_t now_ms, const TrainerProgress& progress);
  /// Nullopt: training goes on, or the trainers are not supposed to train now.
  std::optional<Stall> stall(int64_t now_ms, const State& job) const;
  std::optional<TrainerHung> hung(int64_t now_ms, const State& job) const;

 private:
  struct Reported {
    TrainerProgress progress;
    int64_t at_ms = 0;
  };
  bool stalled(int64_t now_ms, const State& job) const;
  /// The trainer's progress, if it is known and not older than kFreshMs.
  const TrainerProgress* fresh(int64_t now_ms, const State& job, const std::string& trainer) const;

  std::deque<int64_t> steps_ms_;  // of recent steps, also of older generations
  std::optional<int64_t> committed_ms_;
  std::optional<int64_t> first_asked_ms_, asked_ms_;  // since the newest step
  std::map<std::string, Reported> reported_;
};

}  // namespace simplescale::job
