#include "runtime/observe/trace.hpp"

#include <errno.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

namespace simplescale::trace {

namespace {

constexpr uint64_t kMagic = 0x31636172'74537353;  // "SsStrac1"
constexpr size_t kThreads = 64;                   // at a time; further threads are not recorded
constexpr size_t kNameWords = 2, kNameBytes = kNameWords * sizeof(uint64_t);
constexpr size_t kEventWords = sizeof(Event) / sizeof(uint64_t);
using EventWords = std::array<uint64_t, kEventWords>;
static_assert(sizeof(Event) == sizeof(EventWords) && std::is_trivially_copyable_v<Event>);
constexpr size_t kDurationWord = offsetof(Event, duration_ns) / sizeof(uint64_t);

/// A seqlock. sequence: number of the event it holds; 0: none; kBusy: a thread is writing to it. A
/// thread that finds it busy, because the writer was delayed for a whole round of the ring, drops
/// its event.
constexpr uint64_t kBusy = UINT64_MAX;
struct Slot {
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> words[kEventWords];
};
static_assert(sizeof(Slot) == 128 && std::atomic<uint64_t>::is_always_lock_free);

template <size_t size>
void copy_text(char (&to)[size], std::string_view from) {
  from.copy(to, size);
}

}  // namespace

struct Ring {
  std::atomic<uint64_t> magic;
  uint64_t slots;
  std::atomic<uint64_t> next;     // number of events so far, and of the newest one
  std::atomic<uint64_t> threads;  // bit i: index i belongs to a living thread
  std::atomic<uint64_t> names[kThreads][kNameWords];
  alignas(128) Slot first[1];
  Slot& slot(uint64_t sequence) { return first[(sequence - 1) % slots]; }
};

namespace {

size_t bytes_for(size_t slots) {
  return sizeof(Ring) + (slots - 1) * sizeof(Slot);
}

void set_name(Ring& ring, size_t index, const char* name) {
  char bytes[kNameBytes] = {};
  copy_text(bytes, name);
  for (size_t i = 0; i < kNameWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i * sizeof word, sizeof word);
    ring.names[index][i].store(word, std::memory_order_relaxed);
  }
}

/// A thread's place in the ring, from its first event until it ends.
class Thread {
 public:
  ~Thread() { leave(); }
  /// The thread's index in the ring; kThreads: none was free.
  size_t index(Ring& ring) {
    if (ring_ != &ring) take(ring);
    return index_;
  }

 private:
  void take(Ring& ring) {
    leave();
    uint64_t taken = ring.threads.load(std::memory_order_relaxed);
    do {
      index_ = static_cast<size_t>(std::countr_one(taken));
      if (index_ >= kThreads) return;
    } while (!ring.threads.compare_exchange_weak(taken, taken | uint64_t{1} << index_));
    ring_ = &ring;
    char name[kNameBytes] = {};
    pthread_getname_np(pthread_self(), name, sizeof name);
    // A thread without a name of its own has the program's name: it is one of CAF's workers.
    const bool named = std::strncmp(name, program_invocation_short_name, sizeof name - 1) != 0;
    set_name(ring, index_, named ? name : "actors");
  }
  void leave() {
    if (ring_) ring_->threads.fetch_and(~(uint64_t{1} << index_));
    ring_ = nullptr;
  }
  Ring* ring_ = nullptr;
  size_t index_ = kThreads;
};
thread_local Thread this_thread;

bool lock(Slot& slot, uint64_t known) {
  return slot.sequence.compare_exchange_strong(known, kBusy, std::memory_order_acquire,
                                               std::memory_order_relaxed);
}

/// Records an event; nullptr if it was dropped.
Slot* put(Ring& ring, const Event& event, uint64_t& sequence) {
  sequence = ring.next.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& slot = ring.slot(sequence);
  const uint64_t before = slot.sequence.load(std::memory_order_relaxed);
  if (before > sequence || !lock(slot, before)) return nullptr;  // kBusy is greater, too
  const auto words = std::bit_cast<EventWords>(event);
  // Release, so that a reader that sees one of the words also sees that the slot is busy.
  for (size_t i = 0; i < kEventWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.sequence.store(sequence, std::memory_order_release);
  return &slot;
}

std::string name_of(const Ring& ring, size_t index) {
  char bytes[kNameBytes];
  for (size_t i = 0; i < kNameWords; ++i) {
    const uint64_t word = ring.names[index][i].load(std::memory_order_relaxed);
    std::memcpy(bytes + i * sizeof word, &word, sizeof word);
  }
  return {bytes, strnlen(bytes, sizeof bytes)};
}

}  // namespace

Status start(size_t events, const std::string& segment) {
  // Never freed: threads may record until the process ends.
  static auto& mapped = *new std::vector<SharedMemory>();
  static auto& owned = *new std::vector<std::unique_ptr<std::byte[]>>();
  if (events == 0) {
    recorder = nullptr;
    return {};
  }
  if (events < 2 || events > size_t{1} << 24)
    return {Code::bad_config, std::to_string(events) + " events cannot be kept"};
  void* memory = nullptr;
  if (segment.empty()) {
    // 128 more bytes, for the alignment.
    owned.push_back(std::make_unique<std::byte[]>(bytes_for(events) + alignof(Ring)));
    const auto address = reinterpret_cast<uintptr_t>(owned.back().get());
    memory = owned.back().get() + (alignof(Ring) - address % alignof(Ring)) % alignof(Ring);
  } else {
    SS_ASSIGN(SharedMemory shared, SharedMemory::create(segment, bytes_for(events)));
    memory = shared.data();
    mapped.push_back(std::move(shared));
  }
  auto* ring = static_cast<Ring*>(memory);  // zeroed, which is the empty ring
  ring->slots = events;
  ring->magic.store(kMagic, std::memory_order_release);
  recorder.store(ring, std::memory_order_release);
  return {};
}

void name_thread(const char* name) {
  pthread_setname_np(pthread_self(), name);
  Ring* ring = recorder.load(std::memory_order_acquire);
  if (!ring) return;
  if (const size_t index = this_thread.index(*ring); index < kThreads) set_name(*ring, index, name);
}

void Span::begin(Event event, std::string_view name, std::string_view detail) {
  Ring* ring = recorder.load(std::memory_order_acquire);
  if (!ring) return;
  const size_t thread = this_thread.index(*ring);
  if (thread >= kThreads) return;
  event.thread = static_cast<uint16_t>(thread);
  copy_text(event.name, name);
  copy_text(event.detail, detail);
  event.begin_ns = begin_ns_ = now_ns();
  slot_ = put(*ring, event, sequence_);
}

void Span::finish() {
  auto& slot = *static_cast<Slot*>(std::exchange(slot_, nullptr));
  const int64_t duration_ns = now_ns() - begin_ns_;
  if (!lock(slot, sequence_)) return;  // the event has been overwritten
  slot.words[kDurationWord].store(static_cast<uint64_t>(duration_ns), std::memory_order_release);
  slot.sequence.store(sequence_, std::memory_order_release);
}

void instant(std::string_view name, std::string_view detail) {
  Ring* ring = recorder.load(std::memory_order_acquire);
  if (!ring) return;
  const size_t thread = this_thread.index(*ring);
  if (thread >= kThreads) return;
  Event event{.duration_ns = 0, .thread = static_cast<uint16_t>(thread), .kind = Kind::instant};
  copy_text(event.name, name);
  copy_text(event.detail, detail);
  event.begin_ns = now_ns();
  uint64_t sequence = 0;
  put(*ring, event, sequence);
}

int64_t wall_offset_ns() {
  int64_t offset = 0, shortest = INT64_MAX;
  for (int i = 0; i < 5; ++i) {  // take the shortest try: it was not interrupted
    const int64_t before = now_ns();
    const auto wall = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::system_clock::now().time_since_epoch());
    const int64_t took = now_ns() - before;
    if (took < shortest) shortest = took, offset = wall.count() - before - took / 2;
  }
  return offset;
}

Result<std::shared_ptr<const Reader>> Reader::own() {
  std::shared_ptr<Reader> reader(new Reader());
  reader->ring_ = recorder.load(std::memory_order_acquire);
  if (!reader->ring_) return Status(Code::not_found, "this process records no events");
  reader->slots_ = reader->ring_->slots;
  return std::shared_ptr<const Reader>(std::move(reader));
}

Result<std::shared_ptr<const Reader>> Reader::open(const std::string& segment) {
  std::shared_ptr<Reader> reader(new Reader());
  SS_ASSIGN(reader->memory_, SharedMemory::open(segment));
  reader->ring_ = static_cast<const Ring*>(reader->memory_.data());
  const size_t bytes = reader->memory_.bytes();
  if (bytes < bytes_for(1) || reader->ring_->magic.load(std::memory_order_acquire) != kMagic)
    return Status(Code::bad_data, segment + " holds no events");
  reader->slots_ = reader->ring_->slots;
  if (reader->slots_ < 1 || reader->slots_ > bytes / sizeof(Slot) ||
      bytes_for(reader->slots_) > bytes)
    return Status(Code::bad_data, segment + " is damaged");
  return std::shared_ptr<const Reader>(std::move(reader));
}

Recording Reader::read() const {
  Recording recording;
  recording.read_ns = now_ns();
  const uint64_t newest = ring_->next.load(std::memory_order_acquire);
  const uint64_t count = std::min<uint64_t>(newest, slots_);
  recording.full = newest > slots_;
  recording.events.reserve(count);
  for (uint64_t sequence = newest - count + 1; sequence <= newest; ++sequence) {
    const Slot& slot = ring_->first[(sequence - 1) % slots_];
    if (slot.sequence.load(std::memory_order_acquire) != sequence) continue;
    EventWords words;
    for (size_t i = 0; i < kEventWords; ++i)
      words[i] = slot.words[i].load(std::memory_order_acquire);
    if (slot.sequence.load(std::memory_order_relaxed) != sequence) continue;
    auto event = std::bit_cast<Event>(words);
    if (event.begin_ns < 0 || event.begin_ns > recording.read_ns || event.kind > Kind::received ||
        event.thread >= kThreads)
      continue;
    // An event that ended after read_ns counts as unfinished, so that spans nest.
    if (event.duration_ns < 0 || event.duration_ns > recording.read_ns - event.begin_ns)
      event.duration_ns = Event::kUnfinished;
    recording.events.push_back(event);
  }
  for (size_t i = 0; i < kThreads; ++i) recording.threads.push_back(name_of(*ring_, i));
  return recording;
}

}  // namespace simplescale::trace
