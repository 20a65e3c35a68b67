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

size_t TrainState::bytes_for(size_t total, const StateFormat& format) {
  return kHeaderBytes + 2 * total * format.bytes();
}

StateFormat TrainState::format() const {
  return {header()->parts == state_parts(true),
          header()->moment_bytes == bytes_of(DType::bf16) ? DType::bf16 : DType::f32};
}

Result<TrainState> TrainState::create(const std::string& name, uint64_t layout_hash, size_t total,
                                      const StateFormat& format) {
  SS_ASSERT(format.moments == DType::f32 || total % 2 == 0);
  TrainState state;
  SS_ASSIGN(state.memory_, SharedMemory::create(name, bytes_for(total, format)));
  auto* header = new (state.memory_.data()) StateHeader{};
  header->layout_hash = layout_hash;
  header->total = total;
  header->parts = state_parts(format.ema);
  header->moment_bytes = bytes_of(format.moments);
  for (auto& step : header->step) step = kNoStep;
  std::atomic_ref(header->magic).store(StateHeader::kMagic);
  return state;
}

Result<TrainState> TrainState::open(const std::string& name, uint64_t layout_hash, size_t total) {
  SS_ASSIGN(TrainState state, open(name, total));
  if (state.layout_hash() != layout_hash)
    return Status(Code::bad_data, "shared memory " + name +
                                      ": holds the training state of another model or layout");
  return state;
}

Result<TrainState> TrainState::open(const std::string& name, size_t total) {
  TrainState state;
  SS_ASSIGN(state.memory_, SharedMemory::open(name));
  auto refuse = [&](const std::string& why) {
    return Status(Code::bad_data, "shared memory " + name + ": " + why);
  };
  if (state.memory_.bytes() < kHeaderBytes || state.header()->magic != StateHeader::kMagic)
    return refuse("is no training state");
  if (state.header()->total != total)
    return refuse("holds the training state of another model or layout");
  const uint64_t parts = state.header()->parts;
  if (parts != state_parts(false) && parts != state_parts(true))
    return refuse("has " + std::to_string(parts) + " parts");
  const uint64_t moment_bytes = state.header()->moment_bytes;
  if (moment_bytes != bytes_of(DType::f32) && moment_bytes != bytes_of(DType::bf16))
    return refuse("has moments of " + std::to_string(moment_bytes) + " bytes");
  if (state.memory_.bytes() < bytes_for(total, state.format()))
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

bool TrainState::holds(uint64_t step) const {
  return step != kNoStep && (header()->step[0] == step || header()->step[1] == step);
}

Status TrainState::rewind(uint64_t step) {
  for (uint32_t side = 0; side < 2 && step != kNoStep; ++side) {
    if (header()->step[side] != step) continue;
    header()->committed = side + 1;
    return {};
  }
  return {Code::not_found,
          "training state " + name() + " does not hold step " + std::to_string(step)};
}

Status TrainState::begin_generation(uint64_t step) {
  SS_RETURN_IF_ERROR(rewind(step));
  const uint32_t side = header()->committed - 1, other = 1 - side;
  header()->generation[side] = generation_;
  if (header()->step[other] > step) header()->step[other] = kNoStep;
  return {};
}

TrainState::Side TrainState::committed() {
  SS_ASSERT(has_step());
  return side(static_cast<int>(header()->committed.load()) - 1);
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
  const uint32_t other = header()->committed == 1 ? 1 : 0;
  // Wait also before forgetting the step: a process that copies a pinned side finds it by its step.
  SS_RETURN_IF_ERROR(wait_unpinned(other, timeout_ms));
  header()->step[other] = kNoStep;
  SS_RETURN_IF_ERROR(wait_unpinned(other, timeout_ms));
  return side(static_cast<int>(other));
}

void TrainState::flip_to(uint32_t side, uint64_t step, const Hash128& hash) {
  SS_ASSERT(step != kNoStep);
  header()->hash[side] = hash;
  header()->generation[side] = generation_;
  header()->step[side] = step;
  header()->committed = side + 1;
}

void TrainState::commit(uint64_t step, const Hash128& hash) {
  flip_to(header()->committed == 1 ? 1 : 0, step, hash);
}

void TrainState::commit_as(uint64_t layout_hash, uint64_t step, const Hash128& hash) {
  const uint32_t written = header()->committed == 1 ? 1 : 0;
  invalidate_as(layout_hash);
  flip_to(written, step, hash);
}

void TrainState::forget(uint64_t step) {
  for (uint32_t side = 0; side < 2 && step != kNoStep; ++side) {
    if (header()->step[side] != step) continue;
    header()->committed = header()->step[1 - side] != kNoStep ? 2 - side : 0;
    header()->step[side] = kNoStep;
  }
}

void TrainState::invalidate_as(uint64_t layout_hash) {
  invalidate();
  header()->layout_hash = layout_hash;
}

void TrainState::invalidate() {
  header()->committed = 0;
  for (auto& step : header()->step) step = kNoStep;
}

Result<int> TrainState::pin(uint64_t step) {
  for (int side = 0; side < 2 && step != kNoStep; ++side) {
    if (header()->step[side] != step) continue;
    ++header()->pins[side];
    if (header()->step[side] == step) return side;
    unpin(side);
  }
  return Status(Code::not_found,
                "training state " + name() + " does not hold step " + std::to_string(step));
}

TrainState::Side TrainState::side(int index) {
  SS_ASSERT(index == 0 || index == 1);
  const StateFormat now = format();
  const size_t total = header()->total, values = total * now.bytes() / sizeof(float);
  auto* first = reinterpret_cast<float*>(static_cast<char*>(memory_.data()) + kHeaderBytes) +
                static_cast<size_t>(index) * values;
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

std::optional<StateVersion> TrainState::held(int side) const {
  while (true) {  // repeat if a commit has changed the step meanwhile
    const StateVersion copy{step_of(side), header()->generation[side]};
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
