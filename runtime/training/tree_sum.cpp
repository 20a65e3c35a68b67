#include "runtime/training/tree_sum.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/base/status.hpp"

// The loops below add independent elements, so the vector width changes no bit. Each loop is
// compiled for three instruction sets, and the loader picks one. -O2 would not vectorise them.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SS_VECTORISED __attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default")))
#else
#define SS_VECTORISED __attribute__((optimize("O3")))
#endif

namespace simplescale {
namespace {

// --- Kernels; `to` may be one of the sources at the same offset, hence ivdep ---

SS_VECTORISED void add(float* to, const float* a, const float* b, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
}

SS_VECTORISED void add(float* to, const float* a, const uint16_t* b, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = a[i] + bf16_to_f32(b[i]);
}

SS_VECTORISED void add(float* to, const uint16_t* a, const uint16_t* b, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = bf16_to_f32(a[i]) + bf16_to_f32(b[i]);
}

SS_VECTORISED void widen(float* to, const uint16_t* from, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = bf16_to_f32(from[i]);
}

SS_VECTORISED void narrow(uint16_t* to, const float* from, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = f32_to_bf16(from[i]);
}

// --- The plan: the additions and their order; computed once per call, run once per chunk ---

/// A source, or a scratch buffer that holds one chunk.
struct Operand {
  bool scratch;
  uint32_t index;
  size_t born = 0;  // of a source: how many additions were planned before it was pushed
};

/// to = left + right; if `copy`, to = left.
struct Addition {
  Operand left, right;
  bool copy;
  bool to_sink;
  uint32_t to;  // scratch or sink
};

bool siblings(const TreeNode& left, const TreeNode& right) {
  return left.level == right.level && left.index % 2 == 0 && right.index == left.index + 1;
}

TreeNode parent(const TreeNode& node) {
  return {node.level + 1, node.index / 2};
}

uint64_t end_of(const TreeNode& node) {
  return (node.index + 1) << node.level;
}

/// Pushes a node and merges siblings at the top of the stack. Calls on_merge(depth) when it merges
/// entries depth and depth + 1.
template <class OnMerge>
void push(std::vector<TreeNode>& stack, const TreeNode& node, OnMerge on_merge) {
  SS_ASSERT(stack.empty() || node.first() >= end_of(stack.back()));
  stack.push_back(node);
  while (stack.size() > 1 && siblings(stack[stack.size() - 2], stack.back())) {
    stack.pop_back();
    on_merge(stack.size() - 1);
    stack.back() = parent(stack.back());
  }
}

class Plan {
 public:
  explicit Plan(std::span<const TreeSource> sources) : sources_(sources) {
    std::vector<TreeNode> nodes;
    for (uint32_t i = 0; i < sources.size(); ++i) {
      stack_.push_back({false, i, additions_.size()});
      push(nodes, sources[i].node, [&](size_t) { add_top(); });
    }
  }

  /// Writes each remaining node to its own sink.
  void write_nodes() {
    for (uint32_t i = static_cast<uint32_t>(stack_.size()); i-- > 0;) write(stack_[i], i);
  }

  /// Adds the remaining nodes right to left and writes the total to the only sink.
  void write_total() {
    for (size_t i = 1; i < sources_.size(); ++i)
      SS_ASSERT(sources_[i].node.first() == end_of(sources_[i - 1].node));
    while (stack_.size() > 1) add_top();
    write(stack_[0], 0);
  }

  size_t nodes() const { return stack_.size(); }

  /// Runs the additions on `count` elements. narrowed: the only sink is bf16.
  void run(void* const* sinks, bool narrowed, size_t count) {
    // Scratch leaves room in the L1 cache for one chunk of two sources.
    alignas(64) float scratch[4096];
    const size_t chunk = std::min<size_t>(4096 / (scratch_ + 1) / 64 * 64, 1024);
    SS_ASSERT(chunk > 0);
    for (size_t first = 0; first < count; first += chunk) {
      const size_t n = std::min(chunk, count - first);
      for (const Addition& addition : additions_) {
        auto at = [&](uint32_t index) { return scratch + index * chunk; };
        if (!addition.to_sink) {
          apply(addition, at(addition.to), scratch, chunk, first, n);
        } else if (!narrowed) {
          apply(addition, static_cast<float*>(sinks[addition.to]) + first, scratch, chunk, first,
                n);
        } else {
          apply(addition, at(scratch_), scratch, chunk, first, n);
          narrow(static_cast<uint16_t*>(sinks[addition.to]) + first, at(scratch_), n);
        }
      }
    }
  }

 private:
  void add_top() {
    const Operand right = stack_.back();
    stack_.pop_back();
    const Operand left = stack_.back();
    uint32_t to;
    if (left.scratch) {
      to = left.index;
      if (right.scratch) free_.push_back(right.index);
    } else if (right.scratch) {
      to = right.index;
    } else if (!free_.empty()) {
      to = free_.back();
      free_.pop_back();
    } else {
      to = scratch_++;
    }
    additions_.push_back({left, right, false, false, to});
    stack_.back() = {true, to};
  }

  /// Redirects the last addition of a node to its sink. A node that is a single source is copied.
  void write(Operand operand, uint32_t sink) {
    for (size_t i = additions_.size(); operand.scratch && i-- > 0;) {
      Addition& addition = additions_[i];
      if (addition.to_sink || addition.to != operand.index) continue;
      addition.to_sink = true;
      addition.to = sink;
      return;
    }
    // Copies are planned in the order of nodes, because a sink may be the source of an earlier
    // node.
    const auto at = additions_.begin() + static_cast<ptrdiff_t>(operand.born);
    additions_.insert(at, {operand, operand, true, true, sink});
  }

  void apply(const Addition& addition, float* to, const float* scratch, size_t chunk, size_t first,
             size_t n) const {
    auto f32 = [&](Operand o) {
      return o.scratch ? scratch + o.index * chunk
                       : static_cast<const float*>(sources_[o.index].data) + first;
    };
    auto bf16 = [&](Operand o) {
      return static_cast<const uint16_t*>(sources_[o.index].data) + first;
    };
    auto narrow_source = [&](Operand o) {
      return !o.scratch && sources_[o.index].dtype == DType::bf16;
    };
    const bool left = narrow_source(addition.left), right = narrow_source(addition.right);
    if (addition.copy) {
      if (left)
        widen(to, bf16(addition.left), n);
      else if (to != f32(addition.left))
        std::memcpy(to, f32(addition.left), n * sizeof(float));
    } else if (left && right) {
      add(to, bf16(addition.left), bf16(addition.right), n);
    } else if (right) {
      add(to, f32(addition.left), bf16(addition.right), n);
    } else if (left) {  // a + b = b + a, bit for bit
      add(to, f32(addition.right), bf16(addition.left), n);
    } else {
      add(to, f32(addition.left), f32(addition.right), n);
    }
  }

  std::span<const TreeSource> sources_;
  std::vector<Operand> stack_;
  std::vector<Addition> additions_;
  std::vector<uint32_t> free_;
  uint32_t scratch_ = 0;
};

}  // namespace

std::vector<TreeNode> merged(std::span<const TreeNode> nodes) {
  std::vector<TreeNode> stack;
  for (const TreeNode& node : nodes) push(stack, node, [](size_t) {});
  return stack;
}

std::vector<TreeNode> nodes_of_run(uint64_t first, uint64_t count) {
  std::vector<TreeNode> nodes;
  const uint64_t end = first + count;
  while (first < end) {
    uint32_t level = 0;
    while ((first >> level) % 2 == 0 && first + (uint64_t{2} << level) <= end) ++level;
    nodes.push_back({level, first >> level});
    first += uint64_t{1} << level;
  }
  return nodes;
}

void tree_sum(std::span<const TreeSource> sources, std::span<float* const> sinks, size_t count) {
  Plan plan(sources);
  SS_ASSERT(plan.nodes() == sinks.size());
  plan.write_nodes();
  plan.run(reinterpret_cast<void* const*>(sinks.data()), false, count);
}

void tree_total(std::span<const TreeSource> sources, void* total, DType dtype, size_t count) {
  SS_ASSERT(!sources.empty());
  Plan plan(sources);
  plan.write_total();
  plan.run(&total, dtype == DType::bf16, count);
}

double tree_total(std::span<const TreeNode> nodes, std::span<const double> values) {
  SS_ASSERT(nodes.size() == values.size());
  if (nodes.empty()) return 0;
  std::vector<TreeNode> stack;
  std::vector<double> sums;
  for (size_t i = 0; i < nodes.size(); ++i) {
    SS_ASSERT(i == 0 || nodes[i].first() == end_of(nodes[i - 1]));
    sums.push_back(values[i]);
    push(stack, nodes[i], [&](size_t at) {
      sums[at] += sums[at + 1];
      sums.pop_back();
    });
  }
  double total = sums.back();
  for (size_t i = sums.size() - 1; i-- > 0;) total = sums[i] + total;
  return total;
}

PartialSum::PartialSum(std::vector<float*> buffers, size_t count)
    : buffers_(std::move(buffers)), count_(count) {}

void PartialSum::add(std::span<const TreeSource> sources) {
  add_range(sources, 0, count_);
  std::vector<TreeNode> nodes;
  for (const TreeSource& source : sources) nodes.push_back(source.node);
  added(nodes);
}

void PartialSum::add_range(std::span<const TreeSource> sources, size_t begin, size_t count) {
  SS_ASSERT(begin <= count_ && count <= count_ - begin);
  std::vector<TreeSource> all;
  for (size_t i = 0; i < nodes_.size(); ++i)
    all.push_back({nodes_[i], buffers_[i] + begin, DType::f32});
  all.insert(all.end(), sources.begin(), sources.end());
  std::vector<TreeNode> nodes;
  for (const TreeSource& source : all) push(nodes, source.node, [](size_t) {});
  SS_ASSERT(nodes.size() <= buffers_.size());
  std::vector<float*> sinks;
  for (size_t i = 0; i < nodes.size(); ++i) sinks.push_back(buffers_[i] + begin);
  tree_sum(all, sinks, count);
}

void PartialSum::added(std::span<const TreeNode> nodes) {
  nodes_.insert(nodes_.end(), nodes.begin(), nodes.end());
  nodes_ = merged(nodes_);
}

}  // namespace simplescale
