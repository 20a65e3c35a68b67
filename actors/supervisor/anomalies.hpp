// Anomalies during training: trainers that are slower than the others, jumps of the loss, and experts
// with too few or too many tokens.
//
// Plain data; owned by the supervisor actor, which passes in every committed step and records the
// anomalies that are returned.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/training/router_counts.hpp"

namespace simplescale {

struct Anomaly {
  std::string kind;  // "straggler", "straggler_over", "loss_spike", "no_targets", or of experts()
  std::string subject;  // a trainer; of no_targets: a source, "": a whole step; a layer; or empty
  std::string reason;
};

/// The anomalies of a validation in which a source has no target that counts. targets: as in
/// Validated. sources: their names; empty without data.blend.
std::vector<Anomaly> validated_nothing(uint64_t step, const std::vector<uint64_t>& targets,
                                       const std::vector<std::string>& sources);

class Anomalies {
 public:
  /// Takes a committed step and returns new anomalies. loss: nats per token. A NaN loss with a
  /// number as gradient norm means a step without targets; both are NaN if no trainer could report
  /// the step. busy_ms: by trainer, the time of the step without waiting for other trainers,
  /// divided by its micro-batches, of which trainers have unequally many.
  std::vector<Anomaly> step(uint64_t step, double loss, double grad_norm,
                            const std::map<std::string, double>& busy_ms);
  /// The anomalies of a committed step's experts: "expert_starved", one for each layer with experts that
  /// have had less than `starved` of the mean load for expert_steps steps, and "router_collapsed", of
  /// experts that nearly every token has passed for as long although there are others.
  std::vector<Anomaly> experts(uint64_t step, std::span<const ExpertLoad> layers);
  /// Every slow_steps steps: the median time of a micro-batch, in microseconds, of each node's
  /// slowest trainer over these steps. Otherwise empty.
  std::map<std::string, uint32_t> take_speeds();
  /// The nodes with a trainer that is a straggler.
  std::set<std::string> stragglers() const;
  /// Forgets the times of all trainers; call it when membership has changed. Keeps the losses.
  void reset();
  /// For each trainer, its busy time divided by the median of all trainers, smoothed over steps. 1
  /// is normal.
  const std::map<std::string, double>& scores() const { return scores_; }

  static constexpr double slow = 1.5;          // a trainer with at least this score is slow
  static constexpr int slow_steps = 20;        // slow steps in a row that make a straggler
  static constexpr double starved = 0.1;       // of the mean load
  static constexpr double collapsed = 0.9;     // of the tokens
  static constexpr int expert_steps = 20;      // steps in a row that make an anomaly of an expert
  static constexpr int loss_memory = 50;       // steps in the mean of the loss
  static constexpr double spike_sigmas = 6.0;  // standard deviations above the mean

 private:
  std::map<std::string, double> scores_;
  std::map<std::string, int> slow_for_;
  std::map<std::string, std::vector<double>> times_;  // of micro-batches, since take_speeds()
  int steps_ = 0;                                     // since then
  // By layer and expert: steps in a row with too small and with too large a load.
  std::map<std::pair<int64_t, size_t>, int> starved_for_, collapsed_for_;
  double loss_mean_ = 0, loss_square_ = 0;
  int losses_ = 0;
};

}  // namespace simplescale
