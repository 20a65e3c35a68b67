// Collectives over flat buffers, as the model sees them; the implementations live in transport/.
//
// All ranks of a communicator call the same operations in the same order. An operation starts when
// called and is finished by wait(); buffers belong to the operation in between. Operations of one
// communicator complete in any order. One thread (the compute thread) starts and waits; abort() may
// come from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/tree_sum.hpp"

namespace simplescale {

/// One started operation. Destroying it without wait() waits for it.
class Work {
 public:
  virtual ~Work() = default;
  /// Ends with ok, Code::aborted, Code::deadline (a rank did not come; says which) or
  /// Code::unavailable (a rank is gone).
  virtual Status wait() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Memory that peers on this host read directly. Sources of the operations below that lie
  /// elsewhere are copied first. Valid as long as the communicator. 64-byte aligned, zeroed.
  virtual Result<void*> allocate(size_t bytes) = 0;

  /// full: size() * count elements; rank r's `shard` (count elements) lands at full + r * count. In
  /// place if shard == full + rank() * count.
  virtual WorkPtr all_gather(const void* shard, void* full, size_t count, DType dtype) = 0;

  /// full: size() * count elements on every rank; shard (count): the sum over ranks of part rank(),
  /// a tree with rank = leaf, summed in fp32, rounded once.
  virtual WorkPtr reduce_scatter(const void* full, void* shard, size_t count, DType dtype) = 0;

  /// data (count) becomes the sum over ranks, tree with rank = leaf, fp32, rounded once.
  virtual WorkPtr all_reduce(void* data, size_t count, DType dtype) = 0;

  virtual WorkPtr broadcast(void* data, size_t count, DType dtype, int root) = 0;
  virtual WorkPtr barrier() = 0;

  /// all_gather of small records: `bytes` of every rank, in rank order. For votes, norms and
  /// losses.
  virtual WorkPtr all_gather_bytes(const void* mine, void* all, size_t bytes) = 0;

  /// The layout-independent reduce-scatter: full is leaf `leaf_of_rank[rank()]` of the step's tree;
  /// when it is done, this rank's part (count elements) of all ranks' leaves has been added to
  /// `slice` in leaf order. leaf_of_rank: size() consecutive leaves that follow what slice holds.
  /// All are added together (one PartialSum::add): slice has buffers for what is left after that,
  /// not for every prefix.
  virtual WorkPtr reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                        std::span<const TreeNode> leaf_of_rank,
                                        PartialSum& slice) = 0;

  /// The layout-independent all-reduce: `mine` holds the nodes `nodes_of_rank[rank()]`; total
  /// (mine.count() fp32 elements) becomes the collapsed sum over all ranks' nodes. The same bits on
  /// every rank.
  virtual WorkPtr all_reduce_partials(const PartialSum& mine,
                                      std::span<const std::vector<TreeNode>> nodes_of_rank,
                                      float* total) = 0;

  /// Device memory: operations started from now on begin once what `stream` (a cudaStream_t of the
  /// same device) has been given by their start is done, so that nobody has to wait for it before.
  /// Host memory: nothing.
  virtual void follow(void* /*stream*/) {}

  /// Every operation, started or future, ends with Code::aborted and this reason, on this rank, at
  /// once. Any thread.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace simplescale
