// Tells tokens in a bucket which samples are read next, so that they are fetched meanwhile. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "runtime/data/token_file.hpp"

namespace simplescale {

class SamplesAhead {
 public:
  /// position: where sample `index` of those that are read lies in `source`, which must outlive this.
  /// samples: how many are read. most: how many are announced at a time.
  SamplesAhead(const TokenSource& source, int64_t block_size, uint64_t samples, uint64_t most,
               std::function<uint64_t(uint64_t index)> position)
      : source_(source),
        block_size_(block_size),
        samples_(source.files().in_bucket() ? samples : 0),
        most_(most),
        position_(std::move(position)) {}

  /// Samples from `index` on are read next. Announces as many as the cache may hold.
  void announce_from(uint64_t index) {
    next_ = std::max(next_, index);
    while (next_ < std::min(samples_, index + most_) &&
           source_.read_ahead(position_(next_), block_size_))
      ++next_;
  }

 private:
  const TokenSource& source_;
  const int64_t block_size_;
  const uint64_t samples_, most_;
  const std::function<uint64_t(uint64_t)> position_;
  uint64_t next_ = 0;
};

}  // namespace simplescale
