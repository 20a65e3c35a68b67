#include "tools/verify/verify_mixture.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

namespace simplescale {

namespace {

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// What the record says of the source; 0: it does not know it.
uint64_t of_source(const MixtureRecord& record, const std::vector<uint64_t>& counts,
                   const std::string& name) {
  const auto found = std::ranges::find(record.mixture.names, name);
  if (found == record.mixture.names.end()) return 0;
  return counts[static_cast<size_t>(found - record.mixture.names.begin())];
}

}  // namespace

SourcesSeen::SourcesSeen(const Mixture& mixture, NewestCheckpoint newest)
    : newest_(std::move(newest)), seen_(mixture.names.size()) {
  if (!mixture.empty()) schedule_.emplace(mixture);
}

void SourcesSeen::add(uint64_t number, const LedgerStep& step, const SkippedSamples& skipped) {
  if (!schedule_) return;
  if (first_ == 0) first_ = number;
  for (const LedgerRun& run : step.runs) {
    const std::vector<uint64_t> trained = schedule_->trained(run.first, run.count, skipped);
    for (size_t source = 0; source < seen_.size(); ++source) seen_[source] += trained[source];
  }
  if (number == newest_.step) at_checkpoint_ = seen_;
}

std::vector<std::string> SourcesSeen::notes() const {
  std::vector<std::string> lines;
  if (!schedule_) return lines;
  const auto all = static_cast<double>(std::accumulate(seen_.begin(), seen_.end(), uint64_t{0}));
  for (size_t i = 0; i < seen_.size(); ++i) {
    const std::string& name = schedule_->mixture().names[i];
    const auto samples = static_cast<double>(seen_[i]);
    std::string line = name + ": " + std::to_string(seen_[i]) + " samples seen, " +
                       fixed(all > 0 ? 100 * samples / all : 0, 2) + " %";
    const uint64_t epoch =
        newest_.mixture ? of_source(*newest_.mixture, newest_.mixture->epoch, name) : 0;
    if (epoch > 0)
      line += ", " + fixed(samples / static_cast<double>(epoch), 3) + " epochs of " +
              std::to_string(epoch) + " samples";
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> SourcesSeen::problems() const {
  if (!schedule_ || !newest_.mixture) return {};
  const MixtureRecord& record = *newest_.mixture;
  const std::string at = "the checkpoint of step " + std::to_string(newest_.step);
  if (const std::string change =
          mixture_change(record.mixture, schedule_->mixture(), newest_.next_sample);
      !change.empty())
    return {at + " was made with another mixture than config.toml has: " + change};
  std::vector<std::string> lines;
  // A run with run.with_optimizer begins behind its parent's steps, which its ledger lacks.
  if (first_ != 1 || at_checkpoint_.empty()) return lines;
  for (size_t i = 0; i < seen_.size(); ++i) {
    const std::string& name = schedule_->mixture().names[i];
    const uint64_t recorded = of_source(record, record.trained, name);
    if (recorded != at_checkpoint_[i])
      lines.push_back(at + " records " + std::to_string(recorded) + " samples of " + name +
                      ", the ledger has " + std::to_string(at_checkpoint_[i]));
  }
  return lines;
}

}  // namespace simplescale
