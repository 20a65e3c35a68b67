#include "runtime/feed/token_ring.hpp"

#include <algorithm>
#include <cstring>

namespace simplescale {

struct TokenRings::Header {
  static constexpr uint64_t magic_value = 0x31474E49524B5453;  // "STKRING1"
  uint64_t magic;
  RingShape shape;
  alignas(64) std::atomic<uint32_t> doorbell;  // the producer sleeps on it
};

struct TokenRings::RingHeader {
  static constexpr uint32_t open = 0, closing = 1, closed = 2;
  alignas(64) std::atomic<uint64_t> head;  // slots filled so far; written by the producer
  std::atomic<uint64_t> generation;
  std::atomic<uint32_t> changed;  // the consumer sleeps on it
  alignas(64)
      std::atomic<uint64_t> tail;  // slots released so far; written by the consumer and by reset()
  alignas(64) std::atomic<uint32_t> state;
  std::atomic<uint32_t> code;  // Code given to close()
  char reason[512];            // its message, NUL-terminated
};

struct TokenRings::SlotHeader {
  BatchKey key;
  uint64_t first_sample;
  uint64_t position;  // in the ring: distinguishes this round of the ring from the one before
};

namespace {

std::string show(const BatchKey& key) {
  return "step " + std::to_string(key.step) + ", accumulation " + std::to_string(key.accumulation) +
         ", generation " + std::to_string(key.generation);
}

Status check(const RingShape& shape) {
  // Bounds that keep every product below 2^63, far above any real ring.
  const auto within = [](uint64_t value, uint64_t most) { return value > 0 && value <= most; };
  if (within(shape.rings, 4096) && within(shape.slots, 65536) &&
      within(shape.micro_batch_size, 1 << 20) && within(shape.block_size, 1 << 24) &&
      shape.tokens() <= uint64_t{1} << 32)
    return {};
  return Status(Code::bad_config,
                "impossible shape of token rings: " + std::to_string(shape.rings) + " rings of " +
                    std::to_string(shape.slots) + " slots of " +
                    std::to_string(shape.micro_batch_size) + " x " +
                    std::to_string(shape.block_size) + " tokens");
}

}  // namespace

TokenRings::Header* TokenRings::header() const {
  return static_cast<Header*>(memory_.data());
}

TokenRings::RingHeader* TokenRings::ring_header(uint64_t ring) const {
  static_assert(sizeof(Header) <= 4096 && sizeof(RingHeader) <= 4096 && sizeof(SlotHeader) <= 64);
  SS_ASSERT(ring < shape_.rings);
  return reinterpret_cast<RingHeader*>(static_cast<char*>(memory_.data()) + 4096 * (1 + ring));
}

TokenRings::SlotHeader* TokenRings::slot(uint64_t ring, uint64_t position) const {
  const uint64_t index = ring * shape_.slots + position % shape_.slots;
  return reinterpret_cast<SlotHeader*>(static_cast<char*>(memory_.data()) +
                                       4096 * (1 + shape_.rings) + index * shape_.slot_bytes());
}

Result<TokenRings> TokenRings::create(const std::string& name, const RingShape& shape) {
  SS_RETURN_IF_ERROR(check(shape));
  TokenRings rings;
  SS_ASSIGN(rings.memory_, SharedMemory::create(name, shape.segment_bytes()));
  rings.shape_ = shape;
  rings.held_.assign(shape.rings, 0);
  rings.header()->shape = shape;  // all other fields start as zero
  rings.header()->magic = Header::magic_value;
  return rings;
}

Result<TokenRings> TokenRings::open(const std::string& name) {
  TokenRings rings;
  SS_ASSIGN(rings.memory_, SharedMemory::open(name));
  if (rings.memory_.bytes() < 4096 || rings.header()->magic != Header::magic_value)
    return Status(Code::bad_data, "shared memory " + name + " holds no token rings");
  rings.shape_ = rings.header()->shape;
  if (!check(rings.shape_).ok() || rings.shape_.segment_bytes() != rings.memory_.bytes())
    return Status(Code::bad_data, "shared memory " + name + " holds token rings of a wrong size");
  rings.held_.assign(rings.shape_.rings, 0);
  return rings;
}

Result<MicroBatch> TokenRings::acquire(uint64_t ring, const BatchKey& key, int timeout_ms) {
  RingHeader* r = ring_header(ring);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  held_[ring] = 0;
  for (bool in_time = true;;) {
    const uint32_t seen = r->changed.load();
    // Read the generation first: reset() empties and reopens the ring before it changes the
    // generation, so a consumer that sees the new generation sees neither an old slot nor an old
    // close().
    const uint64_t generation = r->generation.load();
    if (generation > key.generation)
      return Status(Code::aborted, "token ring is at generation " + std::to_string(generation) +
                                       ", wanted " + show(key));
    // A close() of an earlier generation does not concern the awaited one.
    if (generation == key.generation) SS_RETURN_IF_ERROR(closed(ring));
    const uint64_t tail = r->tail.load(), head = r->head.load();
    if (generation == key.generation && tail != head) {
      const SlotHeader* slot_header = slot(ring, tail);
      if (slot_header->key == key && slot_header->position == tail) {
        held_[ring] = tail + 1;
        return MicroBatch{
            reinterpret_cast<const int32_t*>(reinterpret_cast<const char*>(slot_header) + 64),
            slot_header->first_sample};
      }
      // If a reset came after the generation was read, the slot may be being rewritten: try again.
      if (r->tail.load() == tail && r->generation.load() == generation)
        return Status(Code::aborted,
                      "token ring holds " + show(slot_header->key) + ", wanted " + show(key));
      continue;
    }
    if (!in_time)
      return Status(Code::deadline,
                    "no tokens for " + show(key) + " within " + std::to_string(timeout_ms) + " ms");
    // RING-2: an earlier consumer may have died between releasing a slot and ringing the doorbell.
    ring_doorbell();
    in_time = futex_wait(r->changed, seen, deadline);
  }
}

Status TokenRings::release(uint64_t ring) {
  RingHeader* r = ring_header(ring);
  SS_ASSERT(held_[ring] > 0);
  uint64_t expected = held_[ring] - 1;
  held_[ring] = 0;
  if (!r->tail.compare_exchange_strong(expected, expected + 1))  // RING-1
    return Status(Code::aborted, "token ring was reset while the trainer read a micro-batch");
  ring_doorbell();
  return {};
}

int32_t* TokenRings::begin_fill(uint64_t ring) {
  RingHeader* r = ring_header(ring);
  const uint64_t head = r->head.load();
  if (head - r->tail.load() >= shape_.slots) return nullptr;
  return reinterpret_cast<int32_t*>(reinterpret_cast<char*>(slot(ring, head)) + 64);
}

void TokenRings::commit_fill(uint64_t ring, uint64_t step, uint64_t accumulation,
                             uint64_t first_sample) {
  RingHeader* r = ring_header(ring);
  const uint64_t head = r->head.load();
  SS_ASSERT(head - r->tail.load() < shape_.slots);
  *slot(ring, head) = SlotHeader{{r->generation.load(), step, accumulation}, first_sample, head};
  r->head.store(head + 1);
  futex_bump(r->changed);
}

void TokenRings::reset(uint64_t ring, uint64_t generation) {
  RingHeader* r = ring_header(ring);
  r->tail.store(r->head.load());
  r->state.store(RingHeader::open);
  r->generation.store(generation);
  futex_bump(r->changed);
}

uint32_t TokenRings::doorbell() const {
  return header()->doorbell.load();
}

bool TokenRings::wait_for_work(uint32_t seen, TimePoint deadline) {
  return futex_wait(header()->doorbell, seen, deadline);
}

void TokenRings::ring_doorbell() {
  futex_bump(header()->doorbell);
}

void TokenRings::close(uint64_t ring, const Status& reason) {
  SS_ASSERT(!reason.ok());
  RingHeader* r = ring_header(ring);
  uint32_t expected = RingHeader::open;
  if (r->state.compare_exchange_strong(expected, RingHeader::closing)) {
    const size_t bytes = std::min(reason.message().size(), sizeof r->reason - 1);
    std::memcpy(r->reason, reason.message().data(), bytes);
    r->reason[bytes] = '\0';
    r->code.store(static_cast<uint32_t>(reason.code()));
    expected = RingHeader::closing;
    r->state.compare_exchange_strong(expected, RingHeader::closed);
  }
  futex_bump(r->changed);
  ring_doorbell();
}

Status TokenRings::closed(uint64_t ring) const {
  const RingHeader* r = ring_header(ring);
  const uint32_t state = r->state.load();
  if (state == RingHeader::open) return {};
  if (state != RingHeader::closed) return Status(Code::aborted, "token ring closed");
  const uint32_t code = r->code.load();
  const bool known = code != 0 && is_code(code);
  return Status(known ? static_cast<Code>(code) : Code::aborted,
                std::string(r->reason, strnlen(r->reason, sizeof r->reason)));
}

uint64_t TokenRings::filled(uint64_t ring) const {
  const RingHeader* r = ring_header(ring);
  return r->head.load() - r->tail.load();
}

}  // namespace simplescale
