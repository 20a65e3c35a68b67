// Which steps' batches a layout can divide among its trainers. Pure functions, any thread.
#pragma once

#include <cstdint>

#include "runtime/base/status.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/feed/sample_order.hpp"

namespace simplescale {

/// The first steps from `step` on (from 1) whose batch is no whole number of rows, or fewer rows than
/// there are groups; null: the layout can train all steps.
const BatchSchedule::Steps* undivided_from(const BatchLayout& layout, uint64_t step);

/// bad_config: the configured layout cannot divide the batch of a step behind `step`; the message
/// says which layouts can. Steps up to `step` are trained and do not matter: a run that is behind its
/// batch warm-up may use any layout.
Status check_batches(const Plan& plan, uint64_t step);

}  // namespace simplescale
