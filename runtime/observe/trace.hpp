// What the threads of this process do, and when: the newest events, in a ring of fixed size.
//
// Every process of a run keeps such a ring all the time, like an aircraft its recorder; which part
// of it is written to a file, and when, others decide (actors/supervisor/trace_plan.hpp). A trainer's ring
// lies in shared memory, so that its node's agent reads it without asking: also one that hangs, or
// of a process that was killed a moment ago, and without a trainer ever waiting for a disk.
//
// Any thread records; without locks, and in tens of nanoseconds. Without start() a span costs a
// relaxed load. Events are stamped with the monotonic clock, which the processes of a host share;
// wall_offset_ns() takes that to the wall clock. Between hosts, times are as far apart as their
// wall clocks are; runtime/exports/trace_merge.hpp takes out what messages tell of that.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/shared_memory.hpp"
#include "runtime/base/status.hpp"

namespace simplescale::trace {

enum class Kind : uint8_t {
  span,        // a thread does something; spans of a thread nest
  instant,     // something happens
  collective,  // from its start until it is seen to be complete, beside what the threads do
  sent,        // a message is handed to the network
  received,    // a message is handled
};

struct Event {
  static constexpr int64_t kUnfinished = -1;
  int64_t begin_ns = 0;  // monotonic
  int64_t duration_ns = kUnfinished;
  int64_t number = -1;    // which block, step, ...; bytes of a message; -1: none
  uint64_t a = 0, b = 0;  // collective: bytes sent, received. Messages: connection, number on it
  uint16_t thread = 0;
  Kind kind = Kind::span;
  char name[40] = {};    // cut off where too long; no end mark if it fills the field
  char detail[32] = {};  // communicator, peer, operation; the same
};

struct Ring;  // trace.cpp

/// Begins to record: at most `events` of them (2 to 2^24), of 128 bytes; 0: nothing. segment: the
/// shared memory to be made for it; "": memory of this process. Once a process.
Status start(size_t events, const std::string& segment = "");
/// Whether this process records.
inline std::atomic<Ring*> recorder{nullptr};
inline bool on() {
  return recorder.load(std::memory_order_relaxed) != nullptr;
}
/// The calling thread's name from now on; by default its name for the system.
void name_thread(const char* name);

/// Lasts from its construction until end() or its destruction, which may be another thread's; it
/// belongs to the thread that made it. While it lasts, the ring has it as unfinished.
class Span {
 public:
  Span() = default;
  explicit Span(std::string_view name, int64_t number = -1, std::string_view detail = {}) {
    if (on()) begin({.number = number}, name, detail);
  }
  /// event: kind, number, a and b.
  Span(const Event& event, std::string_view name, std::string_view detail) {
    if (on()) begin(event, name, detail);
  }
  Span(Span&& other) noexcept { *this = std::move(other); }
  /// One that is replaced should have ended before the other began.
  Span& operator=(Span&& other) noexcept {
    std::swap(slot_, other.slot_);
    std::swap(sequence_, other.sequence_);
    std::swap(begin_ns_, other.begin_ns_);
    return *this;
  }
  ~Span() { end(); }
  void end() {
    if (slot_) finish();
  }

 private:
  void begin(Event event, std::string_view name, std::string_view detail);
  void finish();
  void* slot_ = nullptr;
  uint64_t sequence_ = 0;
  int64_t begin_ns_ = 0;
};

void instant(std::string_view name, std::string_view detail = {});

inline int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}
/// Wall clock minus monotonic clock, now.
int64_t wall_offset_ns();

/// What a ring held at one moment.
struct Recording {
  int64_t read_ns = 0;               // monotonic; what began later is left out, what ended later
                                     // is unfinished
  bool full = false;                 // older events have been overwritten
  std::vector<std::string> threads;  // names, by Event::thread
  std::vector<Event> events;         // in order of their beginning, as good as
};

/// Reads a ring while others write to it. Any thread.
class Reader {
 public:
  /// Of this process. not_found: it does not record.
  static Result<std::shared_ptr<const Reader>> own();
  /// Of another one; the mapping outlives the process and the segment's name. io; bad_data: not a
  /// ring.
  static Result<std::shared_ptr<const Reader>> open(const std::string& segment);
  Recording read() const;

 private:
  Reader() = default;
  SharedMemory memory_;
  const Ring* ring_ = nullptr;
  size_t slots_ = 0;
};

}  // namespace simplescale::trace
