// A supervisor that continues where its predecessor stopped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/carry_out.hpp"
#include "runtime/checkpoint/file_ops.hpp"

namespace simplescale::supervisor {

/// The checkpoints that the predecessor has left on disk.
struct LeftCheckpoints {
  std::optional<uint64_t> newest;
  std::vector<uint64_t> older;  // the newest last
  bool had = false;             // there were some, and none can be used: damaged, or set aside
};
/// Looks for checkpoints, also for those that the predecessor has published but not recorded in
/// its state, `from`. Sets those aside that `from` knows to be undone (JOB-3). Sizes are checked,
/// data is not: that could take minutes, and trainers check what they read. Blocks; before the
/// supervisor actor is spawned. Errors as FileOps, and io.
Result<LeftCheckpoints> find_left_checkpoints(const std::string& folder, const job::State& from,
                                              FileOps& files);

/// What `took_over` says: `leader`, the step that counts, and what the records have beyond it.
/// recorded: the newest step that counts; none: no step does. in_files: the newest step that the
/// records have; 0: none. The event `steps_undone` may have died with the predecessor, so this one
/// names the steps, too.
std::string taken_over(std::optional<uint64_t> recorded, uint64_t in_files,
                       const std::string& leader);

/// Run by the supervisor actor when it starts. Adopts the predecessor's state: the job, its steps,
/// its incident, planned faults and traces; then the checkpoints that were found. Nodes and
/// trainers report again by themselves.
void take_over(Self* self, SupervisorState from);

}  // namespace simplescale::supervisor
