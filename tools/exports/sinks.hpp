// The two file formats of the exporter. Neither reads what it wrote: each new sink writes all rows
// again, and its file then replaces those of earlier sinks.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "tools/report/records.hpp"

namespace simplescale {

/// One file format. Used from one thread. After an error (io) a new sink has to be opened.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  /// Appends rows of increasing steps.
  virtual Status write(std::span<const MetricsRow> rows) = 0;
  /// Call once the rows of earlier sinks are written: the file takes the place of theirs.
  virtual Status replace_older() = 0;
  /// The run has ended; it may be resumed later.
  virtual Status finish(int exit_code) = 0;
};

/// TensorBoard's event files: TFRecords of Event messages. A new file begins with a SessionLog of
/// START: readers then drop all that they have read before. The folder `by_tokens` has the same
/// values over the tokens trained so far. The folder is created if necessary.
///
///   record: u64 length, u32 masked crc32c of it, data, u32 masked crc32c of data; little-endian
Result<std::unique_ptr<MetricsSink>> open_tensorboard(const std::string& folder);

/// A Weights & Biases offline run: FOLDER/offline-run-<time>-<id>/run-<id>.wandb, which `wandb sync`
/// uploads. There is one run of this kind in the folder; it is created if necessary. The file has
/// the configuration of the newest start. A deposed supervisor that still writes has only an old,
/// unlinked file. start_s: when the run began, since 1970.
///
///   file      ":W&B", u16 0xbee1, u8 0, then records cut into fragments that do not cross blocks of
///             32,768 bytes
///   fragment  u32 crc32 of type and data, u16 length, u8 type (1 whole, 2 first, 3 middle, 4 last),
///             data; the last bytes of a block are 0 if fewer than 7 are left
///   record    a Record message of wandb_internal.proto
Result<std::unique_ptr<MetricsSink>> open_wandb(const std::string& folder, const Config& config,
                                                double start_s);

}  // namespace simplescale
