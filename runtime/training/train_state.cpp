#include "runtime/training/train_state.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <new>

namespace simplescale {
namespace {

constexpr size_t kHeaderBytes = 4096;
constexpr size_t kCopiedPiece = size_t{1} << 20;  // floats that a thread copies at a time
constexpr uint64_t kNoStep = UINT64_MAX;          // step of a side that is empty or being written
static_assert(sizeof(StateHeader) <= kHeaderBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

// Readers and writer synchronize as in Dekker's algorithm, with sequentially consistent atomics: a
// reader pins a side and then checks that it still holds the step; the writer forgets the step and
// then checks for pins. At least one of them sees the other's change.

/// Sleeps while word == value, at most `timeout`. Not FUTEX_PRIVATE: processes share the word.
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  timespec relative{seconds.count(), (timeout - seconds).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &relative, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

const char* to_string(StateKind kind) {
  switch (kind) {
    case StateKind::params:
      return "params";
    case StateKind::exp_avg:
      return "exp_avg";
    case StateKind::exp_avg_sq:
      return "exp_avg_sq";
    case StateKind::ema:
      return "ema";
  }
  return "?";
}

size_t TrainState::Side::values() const {
  size_t values = 0;
  for (const auto& part : parts()) values += part.size();
  return values;
}

void TrainState::Side::copy_from(const Side& from, const Parallel& parallel) const {
  const auto to = parts(), of = from.parts();
  for (size_t i = 0; i < to.size(); ++i) {
    SS_ASSERT(to[i].size() == of[i].size());
    for_pieces(parallel, to[i].size(), kCopiedPiece, [&](size_t first, size_t count) {
      std::ranges::copy(of[i].subspan(first, count), to[i].subspan(first, count).begin());
    });
  }
}

StateFormat TrainState::Side::format() const {
  return {!ema.empty(), exp_avg.size() < params.size() ? DType::bf16 : DType::f32};
}

TrainState::Side TrainState::Side::over(std::span<float> values, size_t total, DType moments) {
  const size_t moment = total * bytes_of(moments) / sizeof(float), ema = total + 2 * moment;
  SS_ASSERT(values.size() == ema || values.size() == ema + total);
  return {values.first(total), values.subspan(total, moment),
          values.subspan(total + moment, moment), values.subspan(ema)};
}

size_t TrainState::bytes_for(size_t capacity, const StateFormat& format) {
  return kHeaderBytes + 2 * capacity * format.bytes();
}

StateFormat TrainState::format() const {
  return {header()->parts == state_parts(true),
          header()->moment_bytes == bytes_of(DType::bf16) ? DType::bf16 : DType::f32};
}

Result<TrainState> TrainState::create(const std::string& name, uint32_t layout, size_t total,
                                      const StateFormat& format, size_t capacity) {
  capacity = std::max(capacity, total);
  SS_ASSERT(format.moments == DType::f32 || (total % 2 == 0 && capacity % 2 == 0));
  const bool sparse = capacity > total;
  TrainState state;
  SS_ASSIGN(state.memory_, SharedMemory::create(name, bytes_for(capacity, format), sparse));
  if (sparse) SS_RETURN_IF_ERROR(state.memory_.reserve(0, kHeaderBytes));
  auto* header = new (state.memory_.data()) StateHeader{};
  header->capacity = capacity;
  header->parts = state_parts(format.ema);
  header->moment_bytes = bytes_of(format.moments);
  for (const uint32_t side : {0, 1}) {
    header->step[side] = kNoStep;
    header->layout[side] = layout;
    header->total[side] = total;
    if (sparse)
      SS_RETURN_IF_ERROR(state.memory_.reserve(state.offset_of(side), total * format.bytes()));
  }
  std::atomic_ref(header->magic).store(StateHeader::kMagic);
  return state;
}

Result<TrainState> TrainState::open(const std::string& name) {
  TrainState state;
  SS_ASSIGN(state.memory_, SharedMemory::open(name));
  auto refuse = [&](const std::string& why) {
    return Status(Code::bad_data, "shared memory " + name + ": " + why);
  };
  if (state.memory_.bytes() < kHeaderBytes || state.header()->magic != StateHeader::kMagic)
    return refuse("is no training state");
  const uint64_t parts = state.header()->parts;
  if (parts != state_parts(false) && parts != state_parts(true))
    return refuse("has " + std::to_string(parts) + " parts");
  const uint64_t moment_bytes = state.header()->moment_bytes;
  if (moment_bytes != bytes_of(DType::f32) && moment_bytes != bytes_of(DType::bf16))
    return refuse("has moments of " + std::to_string(moment_bytes) + " bytes");
  const uint64_t capacity = state.header()->capacity;
  if (capacity > state.memory_.bytes() || state.header()->total[0] > capacity ||
      state.header()->total[1] > capacity ||
      state.memory_.bytes() < bytes_for(capacity, state.format()))
    return refuse("is shorter than its header says");
  return state;
}

bool TrainState::has_step() const {
  return committed_step() != kNoStep;
}

uint64_t TrainState::step() const {
  const uint64_t step = committed_step();
  SS_ASSERT(step != kNoStep);
  return step;
}

std::optional<uint64_t> TrainState::step_if_any() const {
  const uint64_t step = committed_step();
  return step == kNoStep ? std::nullopt : std::optional(step);
}

uint64_t TrainState::committed_step() const {
  while (true) {  // repeat if a commit has changed the committed side meanwhile
    const uint32_t committed = header()->committed;
    if (committed != 1 && committed != 2) return kNoStep;
    const uint64_t step = header()->step[committed - 1];
    if (header()->committed == committed) return step;
  }
}

/// The side that holds the step, of two of them the committed one. layout: only a side that has it.
std::optional<int> TrainState::side_of(uint64_t step, std::optional<uint32_t> layout) const {
  if (step == kNoStep) return std::nullopt;
  const int first = header()->committed == 2 ? 1 : 0;
  for (const int side : {first, 1 - first})
    if (header()->step[side] == step && (!layout || header()->layout[side] == *layout)) return side;
  return std::nullopt;
}

Status TrainState::rewind(uint64_t step, std::optional<uint32_t> layout) {
  const std::optional<int> side = side_of(step, layout);
  if (!side)
    return {Code::not_found, "training state " + name() + " does not hold step " +
                                 std::to_string(step) + (layout ? " of that shard" : "")};
  header()->committed = static_cast<uint32_t>(*side) + 1;
  return {};
}

Status TrainState::begin_generation(uint64_t step, std::optional<uint32_t> layout, bool begun) {
  SS_RETURN_IF_ERROR(rewind(step, layout));
  const uint32_t side = header()->committed - 1, other = 1 - side;
  header()->begun[side] = begun;
  header()->generation[side] = generation_;
  if (header()->step[other] > step) header()->step[other] = kNoStep;
  return {};
}

int TrainState::committed_side() const {
  SS_ASSERT(has_step());
  return static_cast<int>(header()->committed.load()) - 1;
}

Hash128 TrainState::committed_hash() const {
  SS_ASSERT(has_step());
  return header()->hash[header()->committed - 1];
}

Status TrainState::wait_unpinned(uint32_t side, int timeout_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (const uint32_t pins = header()->pins[side]) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero())
      return {Code::deadline, "training state " + name() + ": " + std::to_string(pins) +
                                  " readers have pinned the side to be written for " +
                                  std::to_string(timeout_ms) + " ms"};
    futex_wait(header()->pins[side], pins, left);
  }
  return {};
}

Status TrainState::wait_unpinned(int timeout_ms) {
  SS_RETURN_IF_ERROR(wait_unpinned(uint32_t{0}, timeout_ms));
  return wait_unpinned(uint32_t{1}, timeout_ms);
}

Result<TrainState::Side> TrainState::begin_write(int timeout_ms) {
  const uint32_t of = header()->committed == 0 ? written() : header()->committed - 1;
  return begin_write(timeout_ms, header()->layout[of], header()->total[of]);
}

Result<TrainState::Side> TrainState::begin_write(int timeout_ms, uint32_t layout, size_t total) {
  const uint32_t other = written();
  // Wait also before forgetting the step: a process that copies a pinned side finds it by its step.
  SS_RETURN_IF_ERROR(wait_unpinned(other, timeout_ms));
  header()->step[other] = kNoStep;
  SS_RETURN_IF_ERROR(wait_unpinned(other, timeout_ms));
  SS_RETURN_IF_ERROR(lay_out(other, layout, total));
  return side(static_cast<int>(other));
}

size_t TrainState::offset_of(uint32_t side) const {
  return kHeaderBytes + side * header()->capacity * format().bytes();
}

/// Requires that the side holds no step.
Status TrainState::lay_out(uint32_t side, uint32_t layout, size_t total) {
  if (header()->total[side] != total) {
    if (total > header()->capacity)
      return {Code::io, "training state " + name() + " has no room for a shard of " +
                            std::to_string(total) + " elements"};
    memory_.release(offset_of(side), header()->total[side] * format().bytes());
    header()->total[side] = 0;
    SS_RETURN_IF_ERROR(memory_.reserve(offset_of(side), total * format().bytes()));
    header()->total[side] = total;
  }
  header()->layout[side] = layout;
  return {};
}

void TrainState::commit(uint64_t step, const Hash128& hash, bool begun) {
  const uint32_t side = written();
  SS_ASSERT(step != kNoStep);
  header()->hash[side] = hash;
  header()->generation[side] = generation_;
  header()->begun[side] = begun;
  header()->step[side] = step;
  header()->committed = side + 1;
}

void TrainState::forget(int side) {
  SS_ASSERT(side == 0 || side == 1);
  header()->committed = header()->step[1 - side] != kNoStep ? 2 - static_cast<uint32_t>(side) : 0;
  header()->step[side] = kNoStep;
}

Status TrainState::invalidate_as(int timeout_ms, uint32_t layout, size_t total) {
  SS_RETURN_IF_ERROR(wait_unpinned(timeout_ms));
  header()->committed = 0;
  for (auto& step : header()->step) step = kNoStep;
  SS_RETURN_IF_ERROR(wait_unpinned(timeout_ms));
  for (const uint32_t side : {0, 1}) SS_RETURN_IF_ERROR(lay_out(side, layout, total));
  return {};
}

Result<int> TrainState::pin(uint64_t step, std::optional<uint32_t> layout) {
  // Repeats if the writer has overwritten the side meanwhile: the other one may hold the step, too.
  for (int tries = 0; tries < 2; ++tries) {
    const std::optional<int> side = side_of(step, layout);
    if (!side) break;
    ++header()->pins[*side];
    if (header()->step[*side] == step && (!layout || header()->layout[*side] == *layout))
      return *side;
    unpin(*side);
  }
  return Status(Code::not_found,
                "training state " + name() + " does not hold step " + std::to_string(step));
}

uint32_t TrainState::layout(int side) const {
  SS_ASSERT(side == 0 || side == 1);
  return header()->layout[side];
}

TrainState::Side TrainState::side(int index) {
  SS_ASSERT(index == 0 || index == 1);
  const StateFormat now = format();
  const size_t total = header()->total[index], values = total * now.bytes() / sizeof(float);
  auto* first = reinterpret_cast<float*>(static_cast<char*>(memory_.data()) +
                                         offset_of(static_cast<uint32_t>(index)));
  return Side::over({first, values}, total, now.moments);
}

Hash128 TrainState::hash(int side) const {
  SS_ASSERT(side == 0 || side == 1);
  return header()->hash[side];
}

uint64_t TrainState::step_of(int side) const {
  SS_ASSERT(side == 0 || side == 1);
  return header()->step[side];
}

std::optional<StateCopy> TrainState::held(int side) const {
  while (true) {  // repeat if a commit has changed the step meanwhile
    const uint64_t step = step_of(side);
    const uint32_t layout = this->layout(side);
    const StateCopy copy{shard_of(layout), step, header()->generation[side], shards_of(layout),
                         header()->begun[side] != 0};
    if (copy.step != step_of(side)) continue;
    return copy.step == kNoStep ? std::nullopt : std::optional(copy);
  }
}

void TrainState::unpin(int side) {
  SS_ASSERT(side == 0 || side == 1);
  std::atomic<uint32_t>& pins = header()->pins[side];
  uint32_t value = pins;
  do {
    if (value == 0) return;  // clear_pins() has removed this pin
  } while (!pins.compare_exchange_weak(value, value - 1));
  if (value == 1) futex_wake(pins);
}

void TrainState::clear_pins() {
  for (auto& pins : header()->pins) {
    pins = 0;
    futex_wake(pins);
  }
}

}  // namespace simplescale
