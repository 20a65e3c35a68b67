// A Collective between threads of one process, for tests; simple and slow. An operation runs only
// when all ranks have started it and a rank waits for it, so that a missing wait() gives wrong
// numbers.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/training/collective.hpp"

namespace simplescale {

class ThreadCommunicator {
 public:
  ThreadCommunicator(int size, int timeout_ms) : size_(size), timeout_(timeout_ms) {
    for (int rank = 0; rank < size; ++rank) ranks_.push_back(std::make_unique<Rank>(*this, rank));
  }
  Collective& rank(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  /// Bytes that a rank has allocated.
  size_t allocated(int rank) const { return ranks_[static_cast<size_t>(rank)]->allocated; }
  /// Number of operations of one kind ("all_gather", ...) that a rank has started.
  size_t started(int rank, const std::string& kind) {
    return ranks_[static_cast<size_t>(rank)]->started[kind];
  }

 private:
  struct Post {
    std::string kind;
    const void* in = nullptr;
    void* out = nullptr;
    size_t count = 0;
    DType dtype = DType::f32;
    std::vector<std::vector<TreeNode>> nodes;  // per rank
    std::vector<Parcel> sends, receives;
    PartialSum* slice = nullptr;
    const PartialSum* mine = nullptr;
  };

  struct Operation {
    std::vector<std::optional<Post>> posts;
    int posted = 0;
    bool done = false;
    bool broken = false;  // a rank left without completing it
  };

  struct ThreadWork : Work {
    ThreadWork(ThreadCommunicator& c, int r, std::shared_ptr<Operation> o)
        : communicator(c), rank(r), operation(o) {}
    ~ThreadWork() override {
      if (!waited) (void)wait();
    }
    Status wait() override {
      waited = true;
      return communicator.wait(rank, *operation);
    }
    ThreadCommunicator& communicator;
    int rank;
    std::shared_ptr<Operation> operation;
    bool waited = false;
  };

  struct Rank : Collective {
    Rank(ThreadCommunicator& c, int r) : communicator(c), index(r) {}
    int rank() const override { return index; }
    int size() const override { return communicator.size_; }
    Result<void*> allocate(size_t bytes) override {
      allocated += bytes;
      memory.push_back(std::make_unique<std::vector<double>>(bytes / 8 + 9));
      auto address = reinterpret_cast<uintptr_t>(memory.back()->data());
      return reinterpret_cast<void*>((address + 63) / 64 * 64);
    }
    WorkPtr all_gather(const void* shard, void* full, size_t count, DType dtype) override {
      return post({.kind = "all_gather", .in = shard, .out = full, .count = count, .dtype = dtype});
    }
    WorkPtr reduce_scatter(const void* full, void* shard, size_t count, DType dtype) override {
      return post(
          {.kind = "reduce_scatter", .in = full, .out = shard, .count = count, .dtype = dtype});
    }
    WorkPtr all_reduce(void* data, size_t count, DType dtype) override {
      return post({.kind = "all_reduce", .in = data, .out = data, .count = count, .dtype = dtype});
    }
    WorkPtr broadcast(void* data, size_t count, DType dtype, int root) override {
      return post({.kind = "broadcast",
                   .in = index == root ? data : nullptr,
                   .out = data,
                   .count = count,
                   .dtype = dtype});
    }
    WorkPtr barrier() override { return post({.kind = "barrier"}); }
    WorkPtr all_gather_bytes(const void* mine, void* all, size_t bytes) override {
      return post({.kind = "all_gather_bytes", .in = mine, .out = all, .count = bytes});
    }
    WorkPtr exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) override {
      return post({.kind = "exchange",
                   .sends = {sends.begin(), sends.end()},
                   .receives = {receives.begin(), receives.end()}});
    }
    WorkPtr reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                  std::span<const TreeNode> leaves, PartialSum& slice) override {
      Post made{.kind = "reduce_scatter_leaves",
                .in = full,
                .count = count,
                .dtype = dtype,
                .slice = &slice};
      for (const TreeNode& leaf : leaves) made.nodes.push_back({leaf});
      return post(std::move(made));
    }
    WorkPtr all_reduce_partials(const PartialSum& mine,
                                std::span<const std::vector<TreeNode>> nodes,
                                float* total) override {
      Post made{.kind = "all_reduce_partials", .out = total, .count = mine.count(), .mine = &mine};
      made.nodes.assign(nodes.begin(), nodes.end());
      return post(std::move(made));
    }
    void abort(const std::string& reason) override {
      const std::lock_guard lock(communicator.mutex_);
      if (aborted.empty()) aborted = reason;
      communicator.changed_.notify_all();
    }
    WorkPtr post(Post made) {
      const std::lock_guard lock(communicator.mutex_);
      ++started[made.kind];
      std::shared_ptr<Operation>& operation = communicator.operations_[next++];
      if (!operation) operation = std::make_shared<Operation>(Operation{{}, 0, false, false});
      operation->posts.resize(static_cast<size_t>(size()));
      operation->posts[static_cast<size_t>(index)] = std::move(made);
      ++operation->posted;
      if (!aborted.empty()) operation->broken = true;  // an aborted rank starts nothing
      communicator.changed_.notify_all();
      return std::make_unique<ThreadWork>(communicator, index, operation);
    }
    ThreadCommunicator& communicator;
    int index;
    uint64_t next = 0;
    size_t allocated = 0;
    std::map<std::string, size_t> started;
    std::string aborted;
    std::vector<std::unique_ptr<std::vector<double>>> memory;
  };

  Status wait(int rank, Operation& operation) {
    std::unique_lock lock(mutex_);
    const std::string& aborted = ranks_[static_cast<size_t>(rank)]->aborted;
    const bool woken = changed_.wait_for(lock, timeout_, [&] {
      return operation.done || operation.broken || operation.posted == size_ || !aborted.empty();
    });
    if (operation.done) return {};
    if (aborted.empty() && !operation.broken && woken) {
      run(operation);
      operation.done = true;
      changed_.notify_all();
      return {};
    }
    const bool broken = operation.broken;
    operation.broken = true;  // the caller may now reuse this rank's buffers
    changed_.notify_all();
    if (!aborted.empty()) return {Code::aborted, aborted};
    if (broken) return {Code::unavailable, "another rank has left"};
    return {Code::deadline, "a rank did not start the operation"};
  }

  void run(Operation& operation) {
    std::vector<Post> posts;
    for (auto& post : operation.posts) posts.push_back(*post);
    const Post& first = posts[0];
    for (const Post& post : posts)
      SS_ASSERT(post.kind == first.kind && post.count == first.count && post.nodes == first.nodes);
    const size_t bytes =
        first.count * (first.kind == "all_gather_bytes" ? 1 : bytes_of(first.dtype));
    auto at = [&](const void* data, size_t part) {
      return static_cast<const char*>(data) + part * bytes;
    };
    auto sources = [&](size_t part) {
      std::vector<TreeSource> result;
      for (size_t r = 0; r < posts.size(); ++r)
        result.push_back({{0, r}, at(posts[r].in, part), first.dtype});
      return result;
    };
    if (first.kind == "all_gather" || first.kind == "all_gather_bytes") {
      for (const Post& to : posts)
        for (size_t r = 0; r < posts.size(); ++r)
          if (at(to.out, r) != posts[r].in)
            std::memcpy(const_cast<char*>(at(to.out, r)), posts[r].in, bytes);
    } else if (first.kind == "exchange") {
      std::map<std::pair<int, int>, std::vector<Parcel>> sent;  // by sender and receiver, in order
      for (size_t r = 0; r < posts.size(); ++r)
        for (const Parcel& parcel : posts[r].sends) sent[{int(r), parcel.rank}].push_back(parcel);
      std::map<std::pair<int, int>, size_t> received;
      for (size_t r = 0; r < posts.size(); ++r)
        for (const Parcel& parcel : posts[r].receives) {
          const std::pair way{parcel.rank, int(r)};
          const size_t number = received[way]++;
          SS_ASSERT(number < sent[way].size() && sent[way][number].bytes == parcel.bytes);
          std::memcpy(parcel.data, sent[way][number].data, parcel.bytes);
        }
      for (const auto& [way, parcels] : sent) SS_ASSERT(received[way] == parcels.size());
    } else if (first.kind == "reduce_scatter") {
      for (size_t r = 0; r < posts.size(); ++r)
        tree_total(sources(r), posts[r].out, first.dtype, first.count);
    } else if (first.kind == "all_reduce") {
      std::vector<char> total(bytes);
      tree_total(sources(0), total.data(), first.dtype, first.count);
      for (const Post& to : posts) std::memcpy(to.out, total.data(), bytes);
    } else if (first.kind == "broadcast") {
      for (const Post& from : posts)
        for (const Post& to : posts)
          if (from.in && to.out != from.in) std::memcpy(to.out, from.in, bytes);
    } else if (first.kind == "reduce_scatter_leaves") {
      for (size_t r = 0; r < posts.size(); ++r) {
        std::vector<TreeSource> leaves = sources(r);
        leaves.resize(first.nodes.size());
        for (size_t i = 0; i < leaves.size(); ++i) leaves[i].node = first.nodes[i][0];
        posts[r].slice->add(leaves);
      }
    } else if (first.kind == "all_reduce_partials") {
      std::vector<TreeSource> nodes;
      for (size_t r = 0; r < posts.size(); ++r) {
        const auto held = posts[r].mine->nodes();
        SS_ASSERT(std::vector<TreeNode>(held.begin(), held.end()) == first.nodes[r]);
        for (size_t i = 0; i < held.size(); ++i)
          nodes.push_back({held[i], posts[r].mine->data(i), DType::f32});
      }
      std::ranges::sort(nodes, {}, [](const TreeSource& s) { return s.node.first(); });
      for (const Post& to : posts) tree_total(nodes, to.out, DType::f32, first.count);
    }
  }

  int size_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::shared_ptr<Operation>> operations_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

/// Forwards every call to another collective; a test overrides what it wants to change.
class ForwardingCollective : public Collective {
 public:
  explicit ForwardingCollective(Collective& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Result<void*> allocate(size_t bytes) override { return inner_.allocate(bytes); }
  WorkPtr all_gather(const void* shard, void* full, size_t count, DType dtype) override {
    return inner_.all_gather(shard, full, count, dtype);
  }
  WorkPtr reduce_scatter(const void* full, void* shard, size_t count, DType dtype) override {
    return inner_.reduce_scatter(full, shard, count, dtype);
  }
  WorkPtr all_reduce(void* data, size_t count, DType dtype) override {
    return inner_.all_reduce(data, count, dtype);
  }
  WorkPtr broadcast(void* data, size_t count, DType dtype, int root) override {
    return inner_.broadcast(data, count, dtype, root);
  }
  WorkPtr barrier() override { return inner_.barrier(); }
  WorkPtr all_gather_bytes(const void* mine, void* all, size_t bytes) override {
    return inner_.all_gather_bytes(mine, all, bytes);
  }
  WorkPtr exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) override {
    return inner_.exchange(sends, receives);
  }
  WorkPtr reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                std::span<const TreeNode> leaves, PartialSum& slice) override {
    return inner_.reduce_scatter_leaves(full, count, dtype, leaves, slice);
  }
  WorkPtr all_reduce_partials(const PartialSum& mine, std::span<const std::vector<TreeNode>> nodes,
                              float* total) override {
    return inner_.all_reduce_partials(mine, nodes, total);
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }

 private:
  Collective& inner_;
};

}  // namespace simplescale
