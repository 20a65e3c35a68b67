// The token sources of a run and the samples that it draws from them: one source, or those of a
// mixture.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/token_file.hpp"
#include "runtime/feed/sample_order.hpp"
#include "runtime/training/mixture.hpp"

namespace simplescale {

/// A sample by its source and its position in it.
struct DrawnSample {
  size_t source = 0;
  uint64_t position = 0;
  bool operator==(const DrawnSample&) const = default;
};

/// Which samples are trained, in which order. Pure functions of mixture, sizes and seeds.
class MixedOrder {
 public:
  /// Of one source.
  MixedOrder(SampleOrder order) : orders_{std::move(order)} {}  // NOLINT: an order is a mixed one
  /// The sources are drawn as the mixture says; within each its own order. orders: without skipped
  /// samples, one for each name of the mixture.
  MixedOrder(Mixture mixture, std::vector<SampleOrder> orders, SkippedSamples skipped);

  /// Global sample `index`, counted from the start of training.
  DrawnSample sample(uint64_t index) const;
  /// The sample that is trained at a place (skipped_samples.hpp).
  DrawnSample at_place(uint64_t place) const;
  const std::vector<SampleOrder>& orders() const { return orders_; }

 private:
  std::vector<SampleOrder> orders_;
  std::shared_ptr<const MixtureSchedule> schedule_;  // null: one source
  SkippedSamples skipped_;                           // unused with one source, whose order has them
};

/// Reads samples of several sources. As TokenSource.
class TokenSources {
 public:
  TokenSources(TokenSource source) : sources_{std::move(source)} {}  // NOLINT: as above
  explicit TokenSources(std::vector<TokenSource> sources) : sources_(std::move(sources)) {}

  size_t size() const { return sources_.size(); }
  const TokenSource& operator[](size_t source) const { return sources_[source]; }
  Status read_sample(DrawnSample sample, int64_t block_size, int32_t* out) const {
    return sources_[sample.source].read_sample(sample.position, block_size, out);
  }
  std::string place_of(DrawnSample sample, int64_t block_size) const {
    return sources_[sample.source].place_of(sample.position, block_size);
  }
  /// As TokenSource::read_ahead().
  bool read_ahead(DrawnSample sample, int64_t block_size) const {
    return sources_[sample.source].read_ahead(sample.position, block_size);
  }
  /// Of all sources.
  const DataFiles& files() const { return sources_.front().files(); }
  /// Reopens all sources. Returns the first error.
  Status reopen();

 private:
  std::vector<TokenSource> sources_;
};

}  // namespace simplescale
