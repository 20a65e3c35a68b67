#include "runtime/feed/token_sources.hpp"

namespace simplescale {

MixedOrder::MixedOrder(Mixture mixture, std::vector<SampleOrder> orders, SkippedSamples skipped)
    : orders_(std::move(orders)), skipped_(std::move(skipped)) {
  SS_ASSERT(orders_.size() == mixture.names.size());
  schedule_ = std::make_shared<const MixtureSchedule>(std::move(mixture));
}

DrawnSample MixedOrder::sample(uint64_t index) const {
  if (!schedule_) return {0, orders_.front().position(index)};
  const auto [source, rank] = schedule_->at(index);
  return {source, orders_[source].position(rank)};
}

DrawnSample MixedOrder::at_place(uint64_t place) const {
  if (!schedule_) return {0, orders_.front().position_at(place)};
  return sample(skipped_.sample_at(place));
}

Status TokenSources::reopen() {
  Status first;
  for (TokenSource& source : sources_)
    if (Status status = source.reopen(); first.ok() && !status.ok()) first = std::move(status);
  return first;
}

}  // namespace simplescale
