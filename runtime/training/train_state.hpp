// One shard's training state, twice ("sides"), in shared memory that the node owns. The optimizer
// reads the committed side and writes the other side; then commit() flips them. So every step
// leaves a snapshot without a copy, and the snapshot survives the death of the trainer.
//
//   STATE-1  The committed side is never written. A writer that dies leaves it intact.
//   STATE-2  Each side carries the hash of what was committed (state_hash.hpp), which every user of
//            a copy checks, and its generation, so that a copy of a step that was undone and
//            computed again is not mistaken for the new one.
//
//
// A side also says which shard it holds, of how many (its layout). Both sides may hold the same step
// as shards of different cuts while a generation moves the state from one cut to the other.
//
// Segment:
//   StateHeader   4096 bytes
//   side 0        params, exp_avg, exp_avg_sq, and ema if the state has it: `total` elements each,
//                 fp32; the moments, exp_avg and exp_avg_sq, may be bf16 (StateFormat)
//   side 1        the same. Each has room for `capacity` elements; only the pages of its shard exist
//
// Threads: one writer, which is the trainer's compute thread, or the node while no trainer is
// attached. Any number of readers in any process; each pins the side that it reads.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/dtype.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/parallel.hpp"
#include "runtime/base/shared_memory.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/state_version.hpp"

namespace simplescale {

/// The parts of a state, in the order in which they are stored, hashed and sent. ema is the
/// exponential moving average of the parameters; a state has it only with train.ema_decay.
enum class StateKind : uint8_t { params, exp_avg, exp_avg_sq, ema };
inline constexpr StateKind kStateKinds[] = {StateKind::params, StateKind::exp_avg,
                                            StateKind::exp_avg_sq, StateKind::ema};
const char* to_string(StateKind kind);
/// The number of parts, and the parts, of a state with or without ema.
constexpr size_t state_parts(bool ema) {
  return std::size(kStateKinds) - (ema ? 0 : 1);
}
constexpr std::span<const StateKind> state_kinds(bool ema) {
  return {kStateKinds, state_parts(ema)};
}

/// The parts of a state and their dtypes.
struct StateFormat {
  bool ema = false;            // the state has an average of the parameters (train.ema_decay)
  DType moments = DType::f32;  // of exp_avg and exp_avg_sq (train.moments_precision)
  bool operator==(const StateFormat&) const = default;
  constexpr DType dtype(StateKind kind) const {
    return kind == StateKind::exp_avg || kind == StateKind::exp_avg_sq ? moments : DType::f32;
  }
  /// Bytes of one parameter in all parts.
  constexpr size_t bytes() const {
    size_t bytes = 0;
    for (const StateKind kind : state_kinds(ema)) bytes += bytes_of(dtype(kind));
    return bytes;
  }
};

/// The elements of a bf16 part; each float of its span has two.
inline std::span<uint16_t> bf16_elements(std::span<float> part) {
  return {reinterpret_cast<uint16_t*>(part.data()), 2 * part.size()};
}

struct StateHeader {
  static constexpr uint64_t kMagic = 0x3353'5453'4c50'4d53;
  uint64_t magic;
  std::atomic<uint32_t> layout[2];      // of a side: layout_of()
  std::atomic<uint64_t> total[2];       // elements of a side's params
  uint64_t capacity;                    // the most elements
  uint64_t parts;                       // state_parts()
  std::atomic<uint32_t> committed;      // 0: no side is valid; else 1 + the committed side
  std::atomic<uint64_t> step[2];        // the step whose result a side holds; 0: initial values
  std::atomic<uint64_t> generation[2];  // StateVersion::generation of a side; set before its step
  std::atomic<uint32_t> begun[2];       // StateCopy::begun of a side; set before its step
  std::atomic<uint32_t> pins[2];        // readers of a side (checkpoint writer, sender); a futex
  Hash128 hash[2];                      // state_hash() of a side; set before its step; 0: unknown
  uint64_t moment_bytes;                // of an element of exp_avg and exp_avg_sq: 4 or 2
};

class TrainState {
 public:
  /// Bytes of a segment with room for `capacity` parameters.
  static size_t bytes_for(size_t capacity, const StateFormat& format);
  /// Creates a segment without any step, whose sides have this layout. total: elements of params, a
  /// multiple of 1024 if another layout will follow, and even with moments in bf16. capacity: the
  /// most elements of any layout; 0: `total`. io: no room. Called by the node.
  static Result<TrainState> create(const std::string& name, uint32_t layout, size_t total,
                                   const StateFormat& format = {}, size_t capacity = 0);
  /// Maps an existing segment of any layout. bad_data: it is none, or damaged; io.
  static Result<TrainState> open(const std::string& name);
  uint32_t layout(int side) const;
  StateFormat format() const;

  /// Parts that the state does not have are empty. A moment in bf16 has half as many floats:
  /// bf16_elements(). These floats are not numbers; they are copied, sent and hashed as bits.
  struct Side {
    std::span<float> params, exp_avg, exp_avg_sq;
    std::span<float> ema = {};
    /// By StateKind.
    std::array<std::span<float>, std::size(kStateKinds)> parts() const {
      return {params, exp_avg, exp_avg_sq, ema};
    }
    StateFormat format() const;
    size_t values() const;  // floats of all parts
    /// Copies all parts of `from`, which must have the same parts.
    void copy_from(const Side& from, const Parallel& parallel = {}) const;
    /// The parts in `values`, one after the other, with `total` elements each. moments: their
    /// dtype.
    static Side over(std::span<float> values, size_t total, DType moments = DType::f32);
  };
  /// True if one side holds a committed step.
  bool has_step() const;
  /// The committed step. Requires has_step() and exclusive access: no other process may invalidate
  /// the step meanwhile.
  uint64_t step() const;
  /// The committed step if there is one. Needs no exclusive access.
  std::optional<uint64_t> step_if_any() const;
  /// True if a side holds this step: the committed step, or the one before it until that is
  /// overwritten.
  bool holds(uint64_t step) const { return side_of(step, std::nullopt).has_value(); }
  bool holds(uint64_t step, uint32_t layout) const { return side_of(step, layout).has_value(); }
  /// Makes the side that holds `step` the committed one, which rolls back at most one step. Of two
  /// such sides, the committed one stays. Only the writer. not_found.
  Status rewind(uint64_t step, std::optional<uint32_t> layout = std::nullopt);
  /// The generation that commit() and begin_generation() record. A member of this
  /// object, not of the segment.
  void set_generation(uint64_t generation) { generation_ = generation; }
  /// Begins a generation with `step`: calls rewind(), marks the copy with this generation, and
  /// forgets a copy of a newer step, which is rolled back. begun: as in StateCopy. not_found.
  Status begin_generation(uint64_t step, std::optional<uint32_t> layout = std::nullopt,
                          bool begun = true);
  /// The committed side. Requires has_step(); only the writer.
  Side committed() { return side(committed_side()); }
  int committed_side() const;
  /// The hash of the committed side, as given to commit().
  Hash128 committed_hash() const;
  /// Blocks until no reader pins either side. Call it before forgetting a step, because a process
  /// that copies a pinned side finds it by its step. deadline.
  Status wait_unpinned(int timeout_ms);
  /// The side for the next step. Waits until no reader pins it, then forgets its old step.
  /// deadline: a reader kept its pin for timeout_ms.
  Result<Side> begin_write(int timeout_ms);
  /// The same, with this layout. If it has another number of elements, the side's memory is given
  /// back first and is zero afterwards. io: no room; the side then has none.
  Result<Side> begin_write(int timeout_ms, uint32_t layout, size_t total);
  /// Makes the side that begin_write() returned the committed state of `step`. hash: its
  /// state_hash(); zero: unknown, so the side cannot be checked. The other side keeps its step. begun: as
  /// in StateCopy.
  void commit(uint64_t step, const Hash128& hash = {}, bool begun = false);
  /// Forgets the steps of a side, because it is damaged: readers no longer find it. Only the writer.
  void forget(int side);
  /// Forgets both sides and gives them this layout. Errors as begin_write().
  Status invalidate_as(int timeout_ms, uint32_t layout, size_t total);

  /// Pins the side that holds `step` and returns its index; of two such sides, that of `layout`, or
  /// without one the committed side. The writer does not overwrite the side until unpin().
  /// not_found. Any process.
  Result<int> pin(uint64_t step, std::optional<uint32_t> layout = std::nullopt);
  Side side(int index);
  /// The hash at commit. Requires that the side is pinned, or that there is no writer.
  Hash128 hash(int side) const;
  /// The step that a side holds; UINT64_MAX: none.
  uint64_t step_of(int side) const;
  /// What a side holds; nothing if it holds no step.
  std::optional<StateCopy> held(int side) const;
  void unpin(int side);
  /// Removes all pins; for use after a reader has died.
  void clear_pins();
  const std::string& name() const { return memory_.name(); }

 private:
  Status wait_unpinned(uint32_t side, int timeout_ms);
  StateHeader* header() const { return static_cast<StateHeader*>(memory_.data()); }
  uint64_t committed_step() const;
  std::optional<int> side_of(uint64_t step, std::optional<uint32_t> layout) const;
  uint32_t written() const { return header()->committed == 1 ? 1 : 0; }
  size_t offset_of(uint32_t side) const;
  Status lay_out(uint32_t side, uint32_t layout, size_t total);
  SharedMemory memory_;
  uint64_t generation_ = 0;
};

}  // namespace simplescale
