// What the ledger of a run with data.blend says of its sources, and whether the newest checkpoint
// agrees. No I/O; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/mixture_record.hpp"
#include "tools/verify/verify_samples.hpp"

namespace simplescale {

struct NewestCheckpoint {
  uint64_t step = 0;  // 0: there is none
  uint64_t next_sample = 0;
  std::optional<MixtureRecord> mixture;
};

class SourcesSeen {
 public:
  /// mixture: of config.toml; may be empty, then nothing is counted.
  SourcesSeen(const Mixture& mixture, NewestCheckpoint newest);
  /// Step `number` was committed. step: its runs are places, after check_cover(). Steps come in
  /// their order.
  void add(uint64_t number, const LedgerStep& step, const SkippedSamples& skipped);
  /// A line for each source: samples, share, and epochs if the checkpoint records their length.
  std::vector<std::string> notes() const;
  /// Where the newest checkpoint records another mixture, or other counts.
  std::vector<std::string> problems() const;

 private:
  std::optional<MixtureSchedule> schedule_;  // none: no mixture
  NewestCheckpoint newest_;
  uint64_t first_ = 0;                   // the first step; 0: none
  std::vector<uint64_t> seen_;           // of each source
  std::vector<uint64_t> at_checkpoint_;  // seen_ up to the newest checkpoint's step
};

}  // namespace simplescale
