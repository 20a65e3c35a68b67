#include "actors/supervisor/anomalies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/training/names.hpp"

namespace simplescale {

void Anomalies::reset() {
  scores_.clear();
  slow_for_.clear();
  times_.clear();
  steps_ = 0;
}

std::map<std::string, uint32_t> Anomalies::take_speeds() {
  std::map<std::string, uint32_t> speeds;
  if (steps_ < slow_steps) return speeds;
  for (auto& [trainer, times] : times_) {
    const auto middle = times.begin() + std::ssize(times) / 2;
    std::ranges::nth_element(times, middle);
    uint32_t& of_node = speeds[node_of(trainer)];
    of_node = std::max(of_node, static_cast<uint32_t>(std::clamp(*middle * 1e3, 1.0, 4e9)));
  }
  times_.clear();
  steps_ = 0;
  return speeds;
}

std::set<std::string> Anomalies::stragglers() const {
  std::set<std::string> nodes;
  for (const auto& [trainer, steps] : slow_for_)
    if (steps >= slow_steps) nodes.insert(node_of(trainer));
  return nodes;
}

namespace {
constexpr const char* kMasks = "data.loss_mask_key, data.document_boundary_loss";
}

std::vector<Anomaly> validated_nothing(uint64_t step, const std::vector<uint64_t>& targets,
                                       const std::vector<std::string>& sources) {
  std::vector<Anomaly> found;
  for (size_t i = 0; i < targets.size(); ++i)
    if (targets[i] == 0) {
      const std::string of = i < sources.size() ? " of " + sources[i] : "";
      found.push_back(
          {"no_targets", "validation" + of,
           fmt::format("step {}: no target of the validation samples{} counts in the loss "
                       "({}{}); the validation loss{} is null",
                       step, of, kMasks, of.empty() ? "" : ", or too few tokens", of)});
    }
  return found;
}

std::vector<Anomaly> Anomalies::step(uint64_t step, double loss, double grad_norm,
                                     const std::map<std::string, double>& busy_ms) {
  std::vector<Anomaly> found;
  std::vector<double> sorted;
  ++steps_;
  for (const auto& [trainer, ms] : busy_ms) {
    sorted.push_back(ms);
    times_[trainer].push_back(ms);
  }
  std::ranges::sort(sorted);
  // Take the lower median, so that of two trainers the slower one is the straggler.
  const double median = sorted.empty() ? 0 : sorted[(sorted.size() - 1) / 2];
  for (const auto& [trainer, ms] : busy_ms) {
    if (median <= 0) break;
    auto [score, first] = scores_.try_emplace(trainer, ms / median);
    if (!first) score->second += 0.2 * (ms / median - score->second);
    int& times = slow_for_[trainer];
    if (score->second < slow) {
      if (times >= slow_steps)
        found.push_back({"straggler_over", trainer, "its busy time is near the median again"});
      times = 0;
    } else if (++times == slow_steps) {
      found.push_back(
          {"straggler", trainer,
           fmt::format("busy {:.1f} times the median of {:.0f} ms a micro-batch, for {} steps",
                       score->second, median, slow_steps)});
    }
  }
  if (std::isnan(loss) && std::isfinite(grad_norm))
    found.push_back(
        {"no_targets", "",
         fmt::format("step {}: no target of the global batch counts in the loss ({}); its "
                     "loss is null, its gradient is zero",
                     step, kMasks)});
  if (!std::isfinite(loss)) return found;
  const double deviation = std::sqrt(std::max(0.0, loss_square_ - loss_mean_ * loss_mean_));
  if (losses_ >= loss_memory && loss > loss_mean_ + spike_sigmas * std::max(deviation, 1e-3))
    found.push_back(
        {"loss_spike", "",
         fmt::format("step {}: loss {:.4f} after a mean of {:.4f}", step, loss, loss_mean_)});
  losses_ = std::min(losses_ + 1, loss_memory);
  loss_mean_ += (loss - loss_mean_) / losses_;
  loss_square_ += (loss * loss - loss_square_) / losses_;
  return found;
}

std::vector<Anomaly> Anomalies::experts(uint64_t step, std::span<const ExpertLoad> layers) {
  std::vector<Anomaly> found;
  for (const ExpertLoad& layer : layers) {
    std::string hungry, full;
    const auto counted = [&](auto& steps_for, size_t expert, bool bad, std::string& names) {
      int& steps = steps_for[{layer.layer, expert}];
      steps = bad ? steps + 1 : 0;
      if (steps == expert_steps) names += (names.empty() ? "" : ", ") + std::to_string(expert);
    };
    const auto experts = static_cast<double>(layer.loads.size());
    for (size_t e = 0; e < layer.loads.size(); ++e) {
      counted(starved_for_, e, layer.loads[e] < starved, hungry);
      counted(collapsed_for_, e,
              layer.loads[e] * static_cast<double>(layer.per_token) > collapsed * experts &&
                  layer.per_token < layer.loads.size(),
              full);
    }
    const std::string subject = "layer " + std::to_string(layer.layer);
    if (!hungry.empty())
      found.push_back({"expert_starved", subject,
                       fmt::format("step {}: experts {} of {} have had less than {:.0f} % of the "
                                   "mean load for {} steps",
                                   step, hungry, layer.loads.size(), 100 * starved, expert_steps)});
    if (!full.empty())
      found.push_back({"router_collapsed", subject,
                       fmt::format("step {}: experts {} of {} have had more than {:.0f} % of all "
                                   "tokens for {} steps; raise train.router_balance_loss or "
                                   "train.router_bias_rate",
                                   step, full, layer.loads.size(), 100 * collapsed, expert_steps)});
  }
  return found;
}

}  // namespace simplescale
