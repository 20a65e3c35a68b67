// Replays programs without computing: which buffers they take, and when each task runs. Pure
// functions, any thread.
#pragma once

#include <functional>

#include "runtime/program/program.hpp"

namespace simplescale {

/// The bytes of the buffers that a step's program of a trainer takes, each of them as large as the
/// most that it ever holds; without the optimizer's (muon, state) and the exchange's. With sums in tree
/// order.
/// layout: of the model's units. shares: of the step.
BufferBytes replayed_bytes(const Program& program, const ShardLayout& layout, DType precision,
                           const Shares& shares, uint64_t group);

/// What executes a task: the compute thread of a trainer, a queue of one of its collectives, its
/// downloads, or the host's threads that hash a state in host memory.
enum class Lane : unsigned char { compute, gather, reduce, exchange, download, hash };

struct TimedTask {
  Lane lane = Lane::compute;
  double begin_s = 0, end_s = 0;
};
/// When each task of each rank runs, in the programs' order. A task that waits runs while it waits.
using Timeline = std::vector<std::vector<TimedTask>>;

/// Seconds that a task takes once it runs; those of a task that only waits do not count.
using Cost = std::function<double(const Task&)>;

/// Replays the programs of all ranks, rank = group * shards + shard, at the same time. A compute
/// thread executes its tasks in order; a collective begins when all its ranks have started it, after
/// the one before on its axis: gathers and reductions of a group, exchanges of a shard's replicas. A
/// trainer's downloads follow each other, and its update waits for them.
/// internal: the ranks of an axis start different collectives, or a rank waits for one that another
/// rank never starts; says which.
Result<Timeline> replay(const std::vector<const Program*>& program_of_rank, size_t shards,
                        const Cost& cost);

}  // namespace simplescale
