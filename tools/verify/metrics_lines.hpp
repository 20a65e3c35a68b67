// The rule for the lines of metrics.jsonl, one after the other. Plain data; one thread at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace simplescale {

/// The losses of the lines so far. A deposed supervisor may have repeated lines: a line that is not
/// newer than every line before it does not count, but it must not contradict the line it repeats. A
/// successor writes the lines again that the ledger lacks, and names its newest generation in them.
class MetricsLines {
 public:
  using Position = std::pair<uint64_t, uint64_t>;  // generation, step
  /// Returns "" or what is wrong with the next line.
  std::string add(const Position& at, double loss) {
    const auto [seen, first] = losses_.emplace(at, loss);
    if (std::isnan(seen->second)) seen->second = loss;
    if (!first && seen->second != loss && !std::isnan(loss))
      return text(at) + " again, with another loss";
    const auto known = of_steps_.find(at.second);
    const bool repeats = known != of_steps_.end() && (known->second == loss || std::isnan(loss));
    if (at > last_) {
      last_ = at;
      of_steps_[at.second] = loss;
    } else if (first && !repeats && at.first == last_.first) {  // it made its steps in their order
      return text(at) + " after " + text(last_);
    }
    return "";
  }
  const Position& last() const { return last_; }

 private:
  static std::string text(const Position& at) {
    return "step " + std::to_string(at.second) + " of generation " + std::to_string(at.first);
  }
  std::map<Position, double> losses_;    // NaN: null
  std::map<uint64_t, double> of_steps_;  // of the line that counts
  Position last_;
};

}  // namespace simplescale
