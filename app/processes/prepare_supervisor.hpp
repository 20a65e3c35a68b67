// What a supervisor actor begins with. Its process reads that from the run's folder.
#pragma once

#include <cstdint>

#include "actors/supervisor/job_options.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "app/processes/supervisor_process.hpp"
#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/run/term.hpp"

namespace simplescale {

/// The run that a process supervises, or will supervise.
struct SupervisedRun {
  SupervisorOptions options;
  Config config;
  Plan plan;
  RunData data;
  TermFiles files;
  RunFolder run() const { return {options.run}; }
};

/// Prepares a supervisor: reads the checkpoints, the records and the learning rates, and stops what
/// a predecessor may still publish. Called by the process that has claimed the term `term`.
/// generation: the highest known. from: the predecessor's state; null: the run starts. The caller
/// sets leadership, journal, notify, diagnosis_failed and generation_floor. io: a file cannot be
/// read or written; aborted: another supervisor leads; bad_config, bad_data: the run cannot
/// continue. Blocks on the disk. One thread.
Result<JobOptions> prepare_supervisor(const SupervisedRun& p, uint64_t term, uint64_t generation,
                                      const SupervisorState* from);

}  // namespace simplescale
