// Trace recorder: what the threads of this process do, and when. Keeps the newest events in a ring
// of fixed size.
//
// Every process of a run records all the time. The supervisor decides which part is written to a
// file, and when (actors/supervisor/trace_plan.hpp). A trainer's ring lies in shared memory, so
// that its node's agent can read it without asking the trainer, even one that hangs or was just
// killed, and no trainer waits for a disk.
//
// Any thread records, without locks, in tens of nanoseconds; without start() a span costs one
// relaxed load. Times are those of the monotonic clock, which the processes of a host share;
// wall_offset_ns() converts them to the wall clock. Wall clocks of hosts differ;
// tools/trace/trace_merge.hpp corrects that by the times at which messages were sent and
// received.
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
  span,        // an activity of a thread; the spans of a thread nest
  instant,     // a moment
  collective,  // an operation from its start until a thread sees it complete; need not nest
  sent,        // a message was handed to the network
  received,    // a message was handled
};

struct Event {
  static constexpr int64_t kUnfinished = -1;
  int64_t begin_ns = 0;  // monotonic
  int64_t duration_ns = kUnfinished;
  int64_t number = -1;    // block, step, ...; of a message its bytes; -1: none
  uint64_t a = 0, b = 0;  // collective: bytes sent, received; message: connection, number on it
  uint16_t thread = 0;
  Kind kind = Kind::span;
  char name[40] = {};    // truncated to fit; NUL-terminated only if shorter than the field
  char detail[32] = {};  // communicator, peer or operation; the same
};

struct Ring;  // trace.cpp

/// Starts recording into a ring of `events` events (2 to 2^24) of 128 bytes each; 0: records
/// nothing. segment: name of the shared memory to create for it; "": memory of this process. At
/// most once per process. bad_config, io.
Status start(size_t events, const std::string& segment = "");
/// The ring of this process; null if it does not record.
inline std::atomic<Ring*> recorder{nullptr};
inline bool on() {
  return recorder.load(std::memory_order_relaxed) != nullptr;
}
/// Names the calling thread, for the system and in traces. By default its name for the system.
void name_thread(const char* name);

/// Records an activity from its construction until end() or its destruction, as one of the
/// constructing thread; another thread may end it. Until then the ring holds it as unfinished.
class Span {
 public:
  Span() = default;
  explicit Span(std::string_view name, int64_t number = -1, std::string_view detail = {}) {
    if (on()) begin({.number = number}, name, detail);
  }
  /// event: its kind, number, a and b are recorded.
  Span(const Event& event, std::string_view name, std::string_view detail) {
    if (on()) begin(event, name, detail);
  }
  Span(Span&& other) noexcept { *this = std::move(other); }
  /// The span that is replaced should have ended before the other one began.
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
/// Current difference of wall clock and monotonic clock.
int64_t wall_offset_ns();

/// Contents of a ring at one moment.
struct Recording {
  /// That moment, by the monotonic clock: events that began later are left out, and events that
  /// ended later are unfinished.
  int64_t read_ns = 0;
  bool full = false;                 // older events have been overwritten
  std::vector<std::string> threads;  // names of threads, indexed by Event::thread
  std::vector<Event> events;         // nearly in the order of their beginnings
};

/// Reads a ring while threads write to it. Any thread.
class Reader {
 public:
  /// The ring of this process. not_found: it does not record.
  static Result<std::shared_ptr<const Reader>> own();
  /// The ring of another process. The mapping outlives that process and the segment's name. io;
  /// bad_data: the segment is not a ring.
  static Result<std::shared_ptr<const Reader>> open(const std::string& segment);
  Recording read() const;

 private:
  Reader() = default;
  SharedMemory memory_;
  const Ring* ring_ = nullptr;
  size_t slots_ = 0;
};

}  // namespace simplescale::trace
