// Interface of the exporter to one file format. Used from one thread.
#pragma once

#include <optional>
#include <span>

#include "runtime/base/status.hpp"
#include "tools/report/records.hpp"

namespace simplescale {

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  /// Position of the newest row in the sink, including rows of earlier supervisors.
  virtual std::optional<Position> position() const = 0;
  /// Writes rows after position(). A repeated step replaces the old one. io: open the sink again;
  /// its file is not damaged.
  virtual Status write(std::span<const MetricsRow> rows) = 0;
  /// The run has ended; it may be resumed later.
  virtual Status finish(int exit_code) = 0;
};

}  // namespace simplescale
