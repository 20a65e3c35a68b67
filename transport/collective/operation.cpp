#include "transport/collective/operation.hpp"

#include <immintrin.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace simplescale::collective {

namespace {

// Copies between large buffers.

/// An operation that writes at least this many bytes uses `past_cache` (measured: twice as fast at
/// 64 MiB, a fifth slower at 16 MiB).
constexpr size_t kPastCacheBytes = size_t{24} << 20;

__attribute__((target("avx"))) void stream(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t head = (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64;
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + 128 <= bytes; i += 128) {
    const auto* source = reinterpret_cast<const __m256i*>(from + i);
    auto* target = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1),
                  c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  _mm_sfence();
  std::memcpy(to + i, from + i, bytes - i);
}

/// Copies like memcpy. past_cache: use streaming stores (AVX), which bypass the cache and save
/// reading the destination first; for results larger than the cache.
void copy_bytes(void* to, const void* from, size_t bytes, bool past_cache) {
  static const bool can_stream = __builtin_cpu_supports("avx");
  if (past_cache && can_stream && bytes >= 4096)
    stream(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
  else
    std::memcpy(to, from, bytes);
}

constexpr size_t kSumElements = size_t{64} << 10;  // summed between two checks of `stop`
constexpr size_t kCopyBytes = size_t{1} << 20;     // copied between two checks of `stop`
constexpr size_t kCachedBytes = size_t{32} << 10;
constexpr size_t kResultBytes = size_t{256} << 10;  // least part of a result to send at a time
constexpr size_t kHostSumBytes = size_t{4} << 20;   // for all sums of a host, if that is enough
constexpr size_t kTinyBytes = 64;                   // a link copies so small a stream
}  // namespace

// --- Outbox ---

Outbox::Outbox(std::byte* blocks, std::span<std::byte> staging) : staging_(staging) {
  for (size_t i = kBlocks; i-- > 0;) free_.push_back(blocks + i * kBlockBytes);
}

std::byte* Outbox::take_block() {
  if (free_.empty()) {
    std::erase_if(lent_, [&](const Lent& lent) {
      for (const auto& [link, ticket] : lent.readers)
        if (!link->is_released(ticket)) return false;
      free_.push_back(lent.block);
      return true;
    });
    if (free_.empty()) return nullptr;
  }
  std::byte* block = free_.back();
  free_.pop_back();
  return block;
}

void Outbox::give_block(std::byte* block, std::vector<std::pair<Link*, Ticket>> readers) {
  lent_.push_back({block, std::move(readers)});
}

// --- Operation ---

Operation::Operation(uint64_t number, Plan plan, std::span<const std::unique_ptr<Link>> links,
                     Outbox& outbox, InArena in_arena, const void* context)
    : number_(number),
      plan_(std::move(plan)),
      links_(links),
      outbox_(outbox),
      in_arena_(in_arena),
      context_(context) {
  std::erase_if(plan_.sends,
                [&](const Outgoing& out) { return out.bytes == 0 || receivers(out).empty(); });
  sending_.resize(plan_.sends.size());
  copied_.resize(plan_.copies.size());
  summed_.resize(plan_.host_sums.size() + 1);
  size_t written = plan_.local_bytes;
  for (const Incoming& in : plan_.copies) written += in.bytes;
  past_cache_ = written >= kPastCacheBytes;
  for (const Incoming& in : plan_.copies)
    if (in.bytes > 0) link(in.from).expect(key(in.phase));
  for (size_t number = 0; number < summed_.size(); ++number)
    if (sum(number).count > 0)
      for (const Summand& summand : sum(number).summands)
        if (!summand.data) link(summand.from).expect(key(summand.phase));
}

uint64_t Operation::bytes_sent() const {
  uint64_t bytes = 0;
  for (const Outgoing& out : plan_.sends) bytes += out.bytes * receivers(out).size();
  return bytes;
}

uint64_t Operation::bytes_received() const {
  uint64_t bytes = 0;
  for (const Incoming& in : plan_.copies) bytes += in.bytes;
  for (size_t number = 0; number < summed_.size(); ++number)
    for (const Summand& summand : sum(number).summands)
      if (!summand.data) bytes += sum(number).count * bytes_of(summand.dtype);
  return bytes;
}

std::vector<int> Operation::receivers(const Outgoing& out) const {
  if (out.to >= 0) return {out.to};
  std::vector<int> ranks;
  for (size_t rank = 0; rank < links_.size(); ++rank)
    if (links_[rank] &&
        (out.to == kOthers || (out.to == kNeighbours) == links_[rank]->reads_arena()))
      ranks.push_back(static_cast<int>(rank));
  return ranks;
}

bool Operation::reads_arena(const Outgoing& out) const {
  return std::ranges::any_of(receivers(out), [&](int rank) { return link(rank).reads_arena(); });
}

// Decides from which memory every stream is sent. False: there is no room yet.
bool Operation::begin(bool first) {
  size_t total = 0, staged = 0, host_sums = 0;
  bool shared = false;
  for (const Outgoing& out : plan_.sends) {
    total += out.bytes;
    if (out.after == After::host_sum) ++host_sums;
    const bool read = reads_arena(out);
    shared = shared || read;
    if (read && !in_arena_(context_, out.data, out.bytes)) ++staged;
  }
  small_ = total <= kBlockBytes;
  staged_ = !small_ && staged > 0;
  if (small_ && shared && !(block_ = outbox_.take_block())) return false;
  if (staged_ && !first) return false;  // COLLECTIVE-2
  const size_t half = staged ? outbox_.staging().size() / staged / 2 / 64 * 64 : 0;
  SS_ASSERT(!staged_ || half > 0);
  const size_t piece = host_sums == 0 ? 0
                                      : std::clamp(kHostSumBytes / host_sums / 2 / 64 * 64,
                                                   kBlockBytes, kResultBytes);
  host_sums_ = std::make_unique_for_overwrite<std::byte[]>(2 * piece * host_sums);
  sending_of_.resize(plan_.host_sums.size());
  std::byte* room = block_;
  size_t stage = 0;
  for (size_t i = 0; i < sending_.size(); ++i) {
    const Outgoing& out = plan_.sends[i];
    Sending& state = sending_[i];
    state.data = out.data;
    if (out.after == After::host_sum) {
      sending_of_[out.index] = i;
      state.stage = {host_sums_.get() + 2 * piece * --host_sums, 2 * piece};
    } else if (block_) {
      state.data = room;
      if (out.after == After::start) std::memcpy(room, out.data, out.bytes);
      room += out.bytes;
    } else if (staged_ && reads_arena(out) && !in_arena_(context_, out.data, out.bytes)) {
      state.stage = outbox_.staging().subspan(2 * half * stage++, 2 * half);
    }
  }
  return true;
}

Result<bool> Operation::advance(bool first, const std::atomic<bool>& stop) {
  bool moved = false;
  if (!begun_) {
    if (!begin(first)) return false;
    begun_ = moved = true;
  }
  moved |= advance_sends(first);
  if (plan_.local_bytes > 0) {
    if (plan_.local_to != plan_.local_from)
      copy_bytes(plan_.local_to, plan_.local_from, plan_.local_bytes, past_cache_);
    plan_.local_bytes = 0;
  }
  SS_ASSIGN(const bool added, advance_sums(first, stop));
  SS_ASSIGN(const bool copied, advance_copies(first, stop));
  moved |= added | copied;
  const bool received = std::ranges::equal(
      copied_, plan_.copies, [](size_t have, const Incoming& in) { return have == in.bytes; });
  if (sum_done_ && received && all_sent(true) && all_released()) finish({});
  return moved || finished;
}

void Operation::finish(Status with) {
  for (const Incoming& in : plan_.copies) link(in.from).forget(key(in.phase));
  for (size_t number = 0; number < summed_.size(); ++number)
    for (const Summand& summand : sum(number).summands)
      if (!summand.data) link(summand.from).forget(key(summand.phase));
  if (block_) outbox_.give_block(block_, std::move(block_readers_));
  block_ = nullptr;
  span.end();
  status = std::move(with);
  finished = true;
}

// --- Sending ---

bool Operation::advance_sends(bool first) {
  bool moved = false;
  for (size_t i = 0; i < sending_.size(); ++i)
    moved |= advance_send(plan_.sends[i], sending_[i], first);
  // Wake the peers now, so that they work while this rank sums and copies.
  if (moved)
    for (const auto& to : links_)
      if (to) to->notify();
  return moved;
}

size_t Operation::ready_bytes(const Outgoing& out) const {
  switch (out.after) {
    case After::start:
      return out.bytes;
    case After::sum:
      return summed_.back() * bytes_of(plan_.sum.dtype);
    case After::copy:
      return copied_[out.index];
    case After::host_sum:
      break;
  }
  return summed_[out.index] * sizeof(float);
}

// Sets state.piece to the next piece. False: there is none to send now.
bool Operation::next_piece(const Outgoing& out, Sending& state) {
  const size_t ready = ready_bytes(out);
  const size_t half = state.stage.size() / 2;
  const size_t least = out.after == After::host_sum ? half : kResultBytes;
  if (ready < out.bytes && (small_ || ready - state.sent < least)) return false;
  size_t length = ready - state.sent;
  if (length == 0) return false;
  const std::byte* from = state.data + state.sent;
  if (out.after == After::host_sum) {
    length = std::min(length, half);
    from = state.stage.data() + state.pieces % 2 * half;
  } else if (!state.stage.empty()) {
    if (!is_released(state, state.pieces % 2)) return false;
    length = std::min(length, half);
    std::byte* to = state.stage.data() + state.pieces % 2 * half;
    std::memcpy(to, from, length);
    from = to;
  } else if (block_ && out.after != After::start) {
    std::memcpy(const_cast<std::byte*>(from), out.data + state.sent, length);
  }
  state.piece = Bytes(from, length);
  state.piece_to = receivers(out);
  return true;
}

bool Operation::advance_send(const Outgoing& out, Sending& state, bool first) {
  bool moved = false;
  while (state.sent < out.bytes) {
    if (state.piece.empty() && !next_piece(out, state)) break;
    std::erase_if(state.piece_to, [&](int rank) {
      Link& to = link(rank);
      const bool copy = (small_ || out.bytes <= kTinyBytes) && !to.reads_arena();
      const auto ticket = to.send(key(out.phase), state.sent, state.piece, copy, first);
      if (!ticket) return false;
      moved = true;
      if (block_ && to.reads_arena())
        block_readers_.emplace_back(&to, *ticket);
      else if (!small_)
        state.tickets[state.stage.empty() ? 0 : state.pieces % 2].emplace_back(rank, *ticket);
      return true;
    });
    if (!state.piece_to.empty()) break;
    state.sent += state.piece.size();
    state.piece = {};
    ++state.pieces;
  }
  return moved;
}

bool Operation::all_sent(bool results_too) const {
  for (size_t i = 0; i < sending_.size(); ++i)
    if (sending_[i].sent < plan_.sends[i].bytes &&
        (results_too || plan_.sends[i].after == After::start))
      return false;
  return true;
}

/// Drops the tickets of this half that are released; true if that were all.
bool Operation::is_released(Sending& state, size_t half) {
  auto& tickets = state.tickets[half];
  std::erase_if(tickets,
                [&](const auto& entry) { return link(entry.first).is_released(entry.second); });
  return tickets.empty();
}

bool Operation::all_released() {
  return std::ranges::all_of(
      sending_, [&](Sending& state) { return is_released(state, 0) && is_released(state, 1); });
}

// --- Receiving ---

Result<bool> Operation::advance_sums(bool first, const std::atomic<bool>& stop) {
  if (sum_done_ && plan_.host_sums.empty()) return false;
  // A small sum may be in place: send the source before the sum overwrites it.
  if (small_ && !all_sent(false)) return false;
  bool moved = false;
  for (size_t number = 0; number < summed_.size(); ++number) {
    SS_ASSIGN(const bool added, advance_sum(number, first, stop));
    moved |= added;
  }
  if (!sum_done_ && summed_.back() == plan_.sum.count) {
    sum_done_ = moved = true;
    if (plan_.sum.partial) {
      std::vector<TreeNode> nodes;
      for (const Summand& summand : plan_.sum.summands) nodes.push_back(summand.node);
      plan_.sum.partial->added(nodes);
    }
    advance_sends(first);
  }
  return moved;
}

Result<bool> Operation::advance_sum(size_t number, bool first, const std::atomic<bool>& stop) {
  const Sum& sum = this->sum(number);
  size_t& summed = summed_[number];
  const size_t before = summed;
  while (summed < sum.count && !stop.load(std::memory_order_relaxed)) {
    size_t ready = std::min({sum.count - summed, kSumElements, room_for(number)});
    for (const Summand& summand : sum.summands) {
      if (ready == 0) break;
      if (!summand.data)
        ready = std::min(
            ready, link(summand.from).front(key(summand.phase)).size() / bytes_of(summand.dtype));
    }
    if (ready == 0) break;
    add_range(number, ready);
    for (const Summand& summand : sum.summands)
      if (!summand.data)
        SS_RETURN_IF_ERROR(
            link(summand.from).pop(key(summand.phase), ready * bytes_of(summand.dtype)));
    summed += ready;
    advance_sends(first);
  }
  return summed > before;
}

/// How many elements of a host's sum fit where they wait to be sent; no limit for plan_.sum.
size_t Operation::room_for(size_t number) {
  if (number == plan_.host_sums.size()) return plan_.sum.count;
  Sending& state = sending_[sending_of_[number]];
  const size_t half = state.stage.size() / 2, written = summed_[number] * sizeof(float);
  const size_t piece = written / half;
  if (piece >= 2 && (state.pieces < piece - 1 || !is_released(state, piece % 2))) return 0;
  return (half - written % half) / sizeof(float);
}

/// Adds the next `count` elements of a sum.
void Operation::add_range(size_t number, size_t count) {
  const Sum& sum = this->sum(number);
  const size_t summed = summed_[number];
  std::vector<TreeSource> sources;
  for (const Summand& summand : sum.summands) {
    const std::byte* data = summand.data ? summand.data + summed * bytes_of(summand.dtype)
                                         : link(summand.from).front(key(summand.phase)).data();
    sources.push_back({summand.node, data, summand.dtype});
  }
  if (sum.partial) return sum.partial->add_range(sources, summed, count);
  if (number < plan_.host_sums.size()) {
    const std::span<std::byte> stage = sending_[sending_of_[number]].stage;
    return tree_total(sources, stage.data() + summed * sizeof(float) % stage.size(), DType::f32,
                      count);
  }
  const size_t element = bytes_of(sum.dtype);
  std::byte* total = sum.total + summed * element;
  const bool in_place =
      std::ranges::any_of(sources, [&](const auto& s) { return s.data == total; });
  if (in_place || sum.count * element < kPastCacheBytes)
    return tree_total(sources, total, sum.dtype, count);
  // Sum in a buffer that fits the cache, then write the result around the cache.
  alignas(64) thread_local std::byte cached[kCachedBytes];
  for (size_t done = 0; done < count;) {
    const size_t now = std::min(count - done, kCachedBytes / element);
    tree_total(sources, cached, sum.dtype, now);
    copy_bytes(total + done * element, cached, now * element, true);
    for (auto& source : sources)
      source.data = static_cast<const std::byte*>(source.data) + now * bytes_of(source.dtype);
    done += now;
  }
}

Result<bool> Operation::advance_copies(bool first, const std::atomic<bool>& stop) {
  bool moved = false;
  for (size_t i = 0; i < copied_.size(); ++i) {
    const Incoming& in = plan_.copies[i];
    while (copied_[i] < in.bytes && !stop.load(std::memory_order_relaxed)) {
      const Bytes front = link(in.from).front(key(in.phase));
      const size_t length = std::min({front.size(), in.bytes - copied_[i], kCopyBytes});
      if (length == 0) break;
      copy_bytes(in.to + copied_[i], front.data(), length, past_cache_);
      SS_RETURN_IF_ERROR(link(in.from).pop(key(in.phase), length));
      copied_[i] += length;
      moved = true;
    }
  }
  if (moved) advance_sends(first);  // what is passed on
  return moved;
}

std::set<int> Operation::awaited_ranks() {
  std::set<int> ranks;
  for (size_t i = 0; i < copied_.size(); ++i)
    if (copied_[i] < plan_.copies[i].bytes) ranks.insert(plan_.copies[i].from);
  for (size_t number = 0; number < summed_.size(); ++number)
    if (summed_[number] < sum(number).count)
      for (const Summand& summand : sum(number).summands)
        if (!summand.data && link(summand.from).front(key(summand.phase)).empty())
          ranks.insert(summand.from);
  for (Sending& state : sending_) {
    ranks.insert(state.piece_to.begin(), state.piece_to.end());
    for (const size_t half : {0, 1})
      if (!is_released(state, half))
        for (const auto& [rank, ticket] : state.tickets[half]) ranks.insert(rank);
  }
  return ranks;
}

std::set<int> Operation::absent_ranks() {
  const std::set<int> awaited = awaited_ranks();
  std::set<int> absent = awaited;
  for (size_t i = 0; i < copied_.size(); ++i)
    if (copied_[i] > 0) absent.erase(plan_.copies[i].from);
  for (size_t number = 0; number < summed_.size(); ++number)
    for (const Summand& summand : sum(number).summands)
      if (!summand.data &&
          (summed_[number] > 0 || !link(summand.from).front(key(summand.phase)).empty()))
        absent.erase(summand.from);
  return absent.empty() ? awaited : absent;
}

}  // namespace simplescale::collective
