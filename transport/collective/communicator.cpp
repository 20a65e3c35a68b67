#include "transport/collective/communicator.hpp"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "runtime/base/log.hpp"

namespace simplescale::collective {

namespace {
using std::chrono::milliseconds;

constexpr size_t kInFlight = 32;  // operations of one communicator
constexpr int kYields = 16;       // before sleeping, if spin_us is 0
constexpr size_t kOldBoards = 8;
constexpr milliseconds kPeerCheckInterval{50};  // between checks for dead peers while waiting
constexpr milliseconds kReadersTimeout{5000};

bool in_arena(const void* segment, const void* data, size_t bytes) {
  return static_cast<const Segment*>(segment)->contains(data, bytes);
}

/// The handle of an operation. May outlive the communicator, whose destructor finishes all
/// operations.
class Handle final : public Work {
 public:
  Handle(Communicator* communicator, std::shared_ptr<Operation> operation)
      : communicator_(communicator), operation_(std::move(operation)) {}
  ~Handle() override { (void)wait(); }
  Status wait() override {
    if (operation_->finished) return operation_->status;
    return communicator_->wait(*operation_);
  }

 private:
  Communicator* communicator_;
  std::shared_ptr<Operation> operation_;
};

std::string rank_names(const std::set<int>& ranks) {
  if (ranks.empty()) return "a rank";
  std::string names;
  for (const int rank : ranks) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  return (ranks.size() == 1 ? "rank " : "ranks ") + names;
}
}  // namespace

bool Shared::advance() {
  bool moved = false;
  for (Communicator* communicator : communicators) moved |= communicator->advance();
  return moved;
}

Communicator::Communicator(Shared& shared, Spec spec, Boards boards,
                           std::vector<std::unique_ptr<Link>> links,
                           std::vector<std::shared_ptr<PeerSegment>> peers,
                           std::vector<Attached> channels,
                           std::function<void(Communicator*)> forget)
    : shared_(shared),
      spec_(std::move(spec)),
      boards_(boards),
      outbox_(boards.blocks, boards.staging),
      links_(std::move(links)),
      peers_(std::move(peers)),
      channels_(std::move(channels)),
      forget_(std::move(forget)) {
  std::lock_guard turn(shared_.lock);
  shared_.communicators.push_back(this);
}

Communicator::~Communicator() {
  forget_(this);
  std::unique_lock turn(shared_.lock);
  wait_for_readers(turn);
  const bool graceful = dead_.ok() && active_.empty();
  shut_down(Status(Code::aborted, spec_.name + " has been destroyed"), graceful);
  std::erase(shared_.communicators, this);
  Segment& segment = *shared_.segment;
  for (std::byte* data : allocations_) segment.release(data);
  segment.release(boards_.blocks);
  segment.release(boards_.staging.data());
  segment.free_slot(boards_.slot);
  // Peers may still read this board's acknowledgements of their last pieces.
  shared_.old_boards.push_back(boards_.board);
  if (shared_.old_boards.size() <= kOldBoards) return;
  segment.release(shared_.old_boards.front());
  shared_.old_boards.pop_front();
}

// Waits for peers to finish reading this rank's buffers before they are freed.
void Communicator::wait_for_readers(std::unique_lock<std::mutex>& turn) {
  const auto limit = Clock::now() + std::min(kReadersTimeout, milliseconds(spec_.timeout_ms));
  while (dead_.ok() && !aborted_ && Clock::now() < limit) {
    const uint32_t seen = shared_.segment->header().doorbell.load();
    shared_.advance();
    const bool drained = std::ranges::all_of(links_, [](const auto& link) {
      return !link || link->drained() || !link->health(true).ok();
    });
    if (drained && active_.empty()) return;
    wait_for_doorbell(seen, 50, turn);
  }
}

Result<void*> Communicator::allocate(size_t bytes) {
  std::lock_guard turn(shared_.lock);
  SS_ASSIGN(std::byte * data, shared_.segment->allocate(bytes));
  allocations_.push_back(data);
  return static_cast<void*>(data);
}

// --- Starting ---

WorkPtr Communicator::start(Plan plan) {
  std::unique_lock turn(shared_.lock);
  while (dead_.ok() && active_.size() >= kInFlight) {
    const auto oldest = active_.front();
    (void)wait(*oldest, turn);
  }
  auto operation = std::make_shared<Operation>(++operations_, std::move(plan), std::span(links_),
                                               outbox_, &in_arena, shared_.segment.get());
  if (dead_.ok()) {
    if (trace::on() && size() > 1)
      operation->span = trace::Span({.number = static_cast<int64_t>(operations_),
                                     .a = operation->bytes_sent(),
                                     .b = operation->bytes_received(),
                                     .kind = trace::Kind::collective},
                                    operation->name(), spec_.name);
    active_.push_back(operation);
    last_start_ = Clock::now();
    shared_.advance();
  } else {
    operation->finish(dead_);
  }
  return std::make_unique<Handle>(this, std::move(operation));
}

WorkPtr Communicator::all_gather(const void* shard, void* full, size_t count, DType dtype) {
  return start(plan_all_gather(rank(), spec_.hosts, shard, full, count * bytes_of(dtype)));
}
WorkPtr Communicator::reduce_scatter(const void* full, void* shard, size_t count, DType dtype) {
  return start(plan_reduce_scatter(rank(), spec_.hosts, full, shard, count, dtype));
}
WorkPtr Communicator::all_reduce(void* data, size_t count, DType dtype) {
  return start(plan_all_reduce(rank(), spec_.hosts, data, count, dtype));
}
WorkPtr Communicator::broadcast(void* data, size_t count, DType dtype, int root) {
  return start(plan_broadcast(rank(), spec_.hosts, data, count * bytes_of(dtype), root));
}
WorkPtr Communicator::barrier() {
  return start(plan_barrier(rank(), size()));
}
WorkPtr Communicator::exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) {
  return start(plan_exchange(sends, receives));
}
WorkPtr Communicator::all_gather_bytes(const void* mine, void* all, size_t bytes) {
  return start(plan_all_gather(rank(), spec_.hosts, mine, all, bytes));
}
WorkPtr Communicator::reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                            std::span<const TreeNode> leaf_of_rank,
                                            PartialSum& slice) {
  return start(
      plan_reduce_scatter_leaves(rank(), spec_.hosts, full, count, dtype, leaf_of_rank, slice));
}
WorkPtr Communicator::all_reduce_partials(const PartialSum& mine,
                                          std::span<const std::vector<TreeNode>> nodes_of_rank,
                                          float* total) {
  return start(plan_all_reduce_partials(rank(), spec_.hosts, mine, nodes_of_rank, total));
}

// --- Progress ---

bool Communicator::advance() {
  if (!dead_.ok()) return false;
  if (aborted_) {
    fail(check_aborted());
    return true;
  }
  if (spec_.between_nodes && has_network_fault()) return false;
  bool moved = false, first = true;
  for (size_t i = 0; i < active_.size(); ++i) {
    Operation& operation = *active_[i];
    const auto result = operation.advance(first, aborted_);
    if (!result.ok()) {
      fail(result.status().in(spec_.name));
      return true;
    }
    moved |= *result;
    first = first && operation.finished.load();
  }
  std::erase_if(active_, [](const auto& operation) { return operation->finished.load(); });
  if (!moved) return false;
  last_progress_ = Clock::now();
  notify_all();
  return true;
}

bool Communicator::has_network_fault() const {
  const std::chrono::nanoseconds until{
      shared_.network_fault_until_ns.load(std::memory_order_relaxed)};
  if (until.count() == 0) return false;
  const auto now = Clock::now();
  if (now.time_since_epoch() >= until) return false;
  const std::chrono::nanoseconds delay{shared_.network_fault_delay_ns.load()};
  return delay.count() == 0 || now - last_start_ < delay;
}

void Communicator::notify_all() {
  for (const auto& link : links_)
    if (link) link->notify();
}

Status Communicator::wait(Operation& operation) {
  std::unique_lock turn(shared_.lock);
  return wait(operation, turn);
}

Status Communicator::wait(Operation& operation, std::unique_lock<std::mutex>& turn) {
  const trace::Span span(trace::on() ? std::string("wait for ") + operation.name() : "", -1,
                         spec_.name);
  const auto begun = Clock::now();
  const auto timeout = milliseconds(spec_.timeout_ms);
  auto next_check = begun + kPeerCheckInterval;
  for (;;) {
    const uint32_t seen = shared_.segment->header().doorbell.load();
    if (operation.finished) return operation.status;
    if (shared_.advance()) continue;
    const auto now = Clock::now();
    const auto deadline = std::max(begun, last_progress_) + timeout;
    const bool thorough = now >= next_check;
    if (thorough) next_check = now + kPeerCheckInterval;
    if (const Status lost = check_peers(operation, thorough); !lost.ok()) {
      // The peer may have sent the last piece just before it was lost.
      if (!shared_.advance()) fail(lost);
    } else if (now >= deadline) {
      fail(deadline_error(operation));
    } else {
      const auto limit = std::chrono::ceil<milliseconds>(
          std::min<Clock::duration>(deadline - now, kPeerCheckInterval));
      wait_for_doorbell(seen, static_cast<int>(limit.count()), turn);
    }
  }
}

// Releases the lock until the doorbell differs from `seen`, at most limit_ms. Spins for spin_us or
// yields, then sleeps.
void Communicator::wait_for_doorbell(uint32_t seen, int limit_ms,
                                     std::unique_lock<std::mutex>& turn) {
  turn.unlock();
  SegmentHeader& header = shared_.segment->header();
  if (spec_.spin_us > 0) {
    const auto until = Clock::now() + std::chrono::microseconds(spec_.spin_us);
    do {
      for (int i = 0; i < 64; ++i) {
        if (header.doorbell.load(std::memory_order_acquire) != seen) {
          turn.lock();
          return;
        }
        _mm_pause();
      }
    } while (Clock::now() < until);
  } else
    for (int i = 0; i < kYields; ++i) {
      sched_yield();
      if (header.doorbell.load(std::memory_order_acquire) != seen) {
        turn.lock();
        return;
      }
    }
  sleep_on(header, seen, limit_ms);
  turn.lock();
}

// --- Ending ---

Status Communicator::check_aborted() {
  std::lock_guard guard(reason_lock_);
  return Status(Code::aborted, spec_.name + ": " + reason_);
}

Status Communicator::check_peers(Operation& operation, bool thorough) {
  for (const int rank : operation.awaited_ranks()) {
    const Status status = links_[static_cast<size_t>(rank)]->health(thorough);
    if (!status.ok())
      return status.in(spec_.name + ", " + operation.name() + " (operation " +
                       std::to_string(operation.number()) + ")");
  }
  return {};
}

Status Communicator::deadline_error(Operation& operation) const {
  return Status(Code::deadline, spec_.name + ": " + rank_names(operation.absent_ranks()) +
                                    " did not take part in " + operation.name() + " (operation " +
                                    std::to_string(operation.number()) + ") within " +
                                    std::to_string(spec_.timeout_ms) + " ms");
}

void Communicator::fail(Status status) {
  shut_down(std::move(status), false);
}

// Finishes all operations with `status`. Closing the slot makes peers reject what they read from
// this rank (SHM-2), so the callers' memory is free to use. graceful: no operation was in flight.
void Communicator::shut_down(Status status, bool graceful) {
  if (!dead_.ok()) return;
  dead_ = std::move(status);
  shared_.segment->close_slot(boards_.slot);
  for (const Attached& each : channels_) each.worker->detach(each.channel, graceful);
  for (const auto& operation : std::exchange(active_, {})) operation->finish(dead_);
  for (const auto& peer : peers_) ring(peer->header());
}

void Communicator::abort(const std::string& reason) {
  {
    std::lock_guard guard(reason_lock_);
    if (aborted_) return;
    reason_ = reason;
    aborted_ = true;
  }
  shared_.segment->close_slot(boards_.slot);
  ring(shared_.segment->header());
  for (const auto& peer : peers_) ring(peer->header());
}

}  // namespace simplescale::collective
