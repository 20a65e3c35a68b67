// Failover: a new supervisor continues where its predecessor stopped.
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
  bool had = false;             // there were some, but none is usable: damaged or set aside
};
/// Finds the checkpoints on disk, including those that the predecessor has published but not
/// recorded in its state, `from`. Sets those aside that `from` has rolled back (JOB-3). Checks
/// sizes but not data: that could take minutes, and trainers check what they read. Blocks; call it
/// before the supervisor actor is spawned. Errors as FileOps, and io.
Result<LeftCheckpoints> find_left_checkpoints(const std::string& folder, const job::State& from,
                                              FileOps& files);

/// Text of the event `took_over`: `leader`, the newest step that counts, and the steps in the
/// records that do not count. recorded: the newest step that counts; none: no step counts.
/// in_files: the newest step in the records; 0: none. The predecessor may have died before it wrote
/// the event `steps_undone`, so this event names those steps, too.
std::string taken_over(std::optional<uint64_t> recorded, uint64_t in_files,
                       const std::string& leader);

/// Run by the supervisor actor when it starts. Adopts the predecessor's state: the job, its steps,
/// its incident, planned faults and traces. Then adopts the checkpoints that were found. Nodes and
/// trainers report again without being asked.
void take_over(Self* self, SupervisorState from);

}  // namespace simplescale::supervisor
