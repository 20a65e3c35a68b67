// Where the exporter writes a run's metrics, beside the run's own records. One thread uses it.
#pragma once

#include <optional>
#include <span>

#include "runtime/base/status.hpp"
#include "runtime/exports/records.hpp"

namespace simplescale {

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  /// The newest row that it holds, also from supervisors before this one.
  virtual std::optional<Position> position() const = 0;
  /// Rows after position(). A step that is there already is written again. io: the sink is to be
  /// opened anew; what it holds is whole.
  virtual Status write(std::span<const MetricsRow> rows) = 0;
  /// The run has ended for now.
  virtual Status finish(int exit_code) = 0;
};

}  // namespace simplescale
