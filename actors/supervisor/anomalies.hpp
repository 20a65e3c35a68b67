// What is odd in a run that goes on: trainers that hold the others up, a loss that jumps. Pure
// state of plain data; the supervisor feeds it committed steps and tells what it says.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace simplescale {

struct Anomaly {
  std::string kind;     // "straggler", "straggler_over", "loss_spike"
  std::string subject;  // the trainer
  std::string reason;
};

class Anomalies {
 public:
  /// One committed step: its loss, and how long each trainer was busy (not waiting for others).
  std::vector<Anomaly> step(uint64_t step, double loss,
                            const std::map<std::string, double>& busy_ms);
  /// Membership has changed: times are compared anew.
  void reset();
  /// A trainer's busy time over the median of all, smoothed; 1 is normal.
  const std::map<std::string, double>& scores() const { return scores_; }

  static constexpr double slow = 1.5;          // this many times the median is slow
  static constexpr int slow_steps = 20;        // in a row, before it is told
  static constexpr int loss_memory = 50;       // steps
  static constexpr double spike_sigmas = 6.0;  // above the mean of those

 private:
  std::map<std::string, double> scores_;
  std::map<std::string, int> slow_for_;
  double loss_mean_ = 0, loss_square_ = 0;
  int losses_ = 0;
};

}  // namespace simplescale
