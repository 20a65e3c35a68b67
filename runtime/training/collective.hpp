// The room runtime/training: what model/ and transport/ share, so that neither includes the other:
// the model's shape, shards, training state, the summation tree, and the Collective interface.
//
// This file: collectives over flat buffers. The model uses this interface; transport/ implements
// it.
//
// All ranks of a communicator call the same operations in the same order. A call starts an
// operation, and wait() finishes it. In between, its buffers belong to the operation. Operations
// may complete in any order. One thread of each rank (the compute thread) starts and waits; any
// thread may call abort().
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

/// A started operation. The destructor waits for it if wait() was not called.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until the operation is complete. aborted; deadline: names a rank that has not joined
  /// in; unavailable: a rank is gone. On device memory, an operation that another rank aborts may
  /// return ok with wrong numbers. A later barrier or exchange of records then fails.
  virtual Status wait() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

constexpr int kRanksMax = 1024;  ///< of a Collective

/// Bytes for, or from, another rank.
struct Parcel {
  int rank = 0;
  void* data = nullptr;
  size_t bytes = 0;
};

class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Allocates memory that peers on this host can read directly; operations first copy sources that
  /// are elsewhere. Zeroed, 64-byte aligned, valid as long as the communicator.
  virtual Result<void*> allocate(size_t bytes) = 0;

  /// full: size() * count elements; `shard` (count elements) of rank r is copied to full + r *
  /// count. In place if shard == full + rank() * count.
  virtual WorkPtr all_gather(const void* shard, void* full, size_t count, DType dtype) = 0;

  /// full: size() * count elements on every rank; shard (count elements) becomes the sum over ranks
  /// of part rank() of full. Summed in fp32 as a tree with leaf = rank (tree_sum.hpp), rounded
  /// once.
  virtual WorkPtr reduce_scatter(const void* full, void* shard, size_t count, DType dtype) = 0;

  /// data (count elements) becomes the sum over ranks, with the same tree and rounding.
  virtual WorkPtr all_reduce(void* data, size_t count, DType dtype) = 0;

  virtual WorkPtr broadcast(void* data, size_t count, DType dtype, int root) = 0;
  virtual WorkPtr barrier() = 0;

  /// all_gather of small records (votes, norms, losses): `all` gets `bytes` bytes of each rank, in
  /// rank order.
  virtual WorkPtr all_gather_bytes(const void* mine, void* all, size_t bytes) = 0;

  /// Sends parcels to other ranks and receives some of them. The i-th one for a rank has as many bytes as
  /// the i-th that it expects of this one. Host memory; a Collective of device memory has no such call.
  virtual WorkPtr exchange(std::span<const Parcel> /*sends*/,
                           std::span<const Parcel> /*receives*/) {
    SS_ASSERT(!"no exchange of parcels on this device");
    return {};
  }

  /// The layout-independent reduce-scatter. full (size() * count elements) is leaf
  /// `leaf_of_rank[rank()]` of the step's tree. Adds part rank() (count elements) of all ranks'
  /// leaves to `slice`, in leaf order and as one PartialSum::add(), so slice needs buffers only for
  /// the nodes that remain after that call. leaf_of_rank: of the first ranks, at least one; they
  /// come after those in slice. Further ranks have no leaf: their `full` is zero.
  virtual WorkPtr reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                        std::span<const TreeNode> leaf_of_rank,
                                        PartialSum& slice) = 0;

  /// The layout-independent all-reduce. `mine` has the nodes `nodes_of_rank[rank()]`. total
  /// (mine.count() fp32 elements) becomes tree_total() of all ranks' nodes, with the same bits on
  /// every rank. With one rank, total may be the buffer of the first node.
  virtual WorkPtr all_reduce_partials(const PartialSum& mine,
                                      std::span<const std::vector<TreeNode>> nodes_of_rank,
                                      float* total) = 0;

  /// True: reduce_scatter_leaves() keeps one node in a slice, for any leaves, and
  /// all_reduce_partials() may use the buffer of that node as its total. The bits then depend on
  /// the layout.
  virtual bool native_sums() const { return false; }

  /// Device memory: an operation that is started from now on begins after all work that is already
  /// enqueued on `stream` (a cudaStream_t of the same device), so the caller need not synchronize
  /// with the stream. Host memory: no effect.
  virtual void follow(void* /*stream*/) {}

  /// Ends every started and every future operation of this rank at once, with Code::aborted and
  /// this reason. Any thread.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace simplescale
