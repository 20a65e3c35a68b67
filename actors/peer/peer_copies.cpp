#include "actors/peer/peer_copies.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "runtime/base/log.hpp"
#include "runtime/training/state_hash.hpp"
#include "runtime/training/state_transfer.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

namespace {

constexpr int kNice = 10;                                  // of the threads that send and receive
constexpr auto kOfferTimeout = std::chrono::seconds(120);  // the receiver takes one copy at a time
constexpr int kConnectTimeoutMs = 10'000;                  // both sides have agreed to connect
constexpr size_t kStagedSteps = 2;                         // of a trainer

/// A private copy of a shard's state, kept until the supervisor orders to send it.
struct Staged {
  uint64_t generation = 0, step = 0;
  StateStore::Copy copy;
};

/// The staging actor sends this to the sender, or to the receiver if this node keeps the copy.
struct SendCopy {
  CopyTask task;
  uint64_t generation, step, keep;
  std::shared_ptr<Staged> staged;
};

}  // namespace

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::SendCopy)

namespace simplescale {

namespace {

void lower_priority() {
  setpriority(PRIO_PROCESS, 0, kNice);  // of this thread; a failure does no harm
}

/// The communicator of the two nodes of a transfer. rank: 0 sends, 1 receives.
Result<std::unique_ptr<Collective>> connect(PeerTier& tier, uint64_t generation, uint32_t shard,
                                            uint64_t step, int rank,
                                            const std::vector<uint8_t>& other) {
  CommunicatorSpec spec;
  spec.generation = generation;
  spec.name = "peer-" + std::to_string(shard) + "-" + std::to_string(step);
  spec.rank = rank;
  spec.members = {tier.plane->address(), other};
  if (rank == 1) std::swap(spec.members[0], spec.members[1]);
  spec.timeout_ms = std::min(tier.timeout_ms, kConnectTimeoutMs);
  spec.host_memory = true;
  return tier.plane->join(spec);
}

// --- Sending ---

Status send_copy(caf::actor_system& system, const PeerCopiesOptions& o, const SendCopy& job) {
  if (!o.tier->is_current(job.generation, job.step))
    return {Code::aborted, "a newer order to copy has come"};
  SS_ASSIGN(const caf::actor keeper, o.find(job.task.address));
  OfferCopy offer{o.node,         job.generation,           job.step,       job.keep,
                  job.task.shard, o.tier->plane->address(), job.task.shards};
  AcceptCopy answer;
  caf::scoped_actor self{system};
  self->request(keeper, kOfferTimeout, std::move(offer))
      .receive([&](AcceptCopy& accept) { answer = std::move(accept); },
               [&](const caf::error&) { answer.error = "the agent of that node does not answer"; });
  if (!answer.error.empty()) return {Code::unavailable, answer.error};
  if (answer.held) return {};
  SS_ASSIGN(const auto to_keeper,
            connect(*o.tier, job.generation, job.task.shard, job.step, 0, answer.data_address));
  StateStore::Copy& copy = job.staged->copy;
  return send_state(*to_keeper, copy.side, job.step, copy.hash);
}

caf::behavior sender(caf::event_based_actor* self, caf::actor node, PeerCopiesOptions o) {
  return {[self, node, o](const SendCopy& job) {
    lower_priority();
    const auto begun = std::chrono::steady_clock::now();
    const Status status = send_copy(self->system(), o, job).in("to " + job.task.node);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
    if (!status.ok())
      log::warn("no peer copy of shard {} of step {} was made: {}", job.task.shard, job.step,
                status.message());
    self->send(node,
               CopySent{job.generation, job.step, job.task.shard, status.message(), took.count()});
  }};
}

// --- Receiving ---

/// Returns the memory to receive an offered copy into. Error: this node refuses the offer.
Result<TrainState*> accept_offer(PeerTier& tier, const OfferCopy& offer) {
  if (!tier.is_current(offer.generation, offer.step))  // GEN-1
    return Status(Code::aborted, "a newer generation or order to copy is known");
  tier.ordered(offer.generation, offer.step);  // this node may not have got the order yet
  return tier.store.prepare(layout_of(offer.shards, offer.shard), offer.keep);
}

Status receive_copy(PeerTier& tier, TrainState& state, const OfferCopy& offer) {
  SS_ASSIGN(const auto from,
            connect(tier, offer.generation, offer.shard, offer.step, 1, offer.data_address));
  SS_ASSIGN(const Hash128 hash,
            receive_state(*from, state, offer.step, offer.from, tier.timeout_ms));
  return tier.commit(state, offer.generation, offer.step, hash);
}

/// Puts a copy of one of this node's own shards into the peer store (PEER-1).
Status keep_own_copy(PeerTier& tier, const SendCopy& job) {
  if (!tier.is_current(job.generation, job.step))
    return {Code::aborted, "a newer order to copy has come"};
  SS_ASSIGN(TrainState* const state,
            tier.store.prepare(layout_of(job.task.shards, job.task.shard), job.keep));
  if (verify_or_forget(*state, {job.step, job.generation})) return {};
  SS_ASSIGN(const TrainState::Side side, state->begin_write(tier.timeout_ms));
  StateStore::Copy& copy = job.staged->copy;
  side.copy_from(copy.side);
  SS_RETURN_IF_ERROR(check_copy(side, job.step, copy.hash));
  return tier.commit(*state, job.generation, job.step, copy.hash);
}

caf::behavior receiver(caf::event_based_actor* self, caf::actor node, PeerCopiesOptions o) {
  auto report = [self, node, o] { self->send(node, PeerCopies{o.node, o.tier->store.held()}); };
  return {
      [self, node, o, report](const OfferCopy& offer) {
        lower_priority();
        auto answer = self->make_response_promise();
        const Result<TrainState*> state = accept_offer(*o.tier, offer);
        if (!state.ok()) return answer.deliver(AcceptCopy{false, state.status().message(), {}});
        if (verify_or_forget(**state, {offer.step, offer.generation})) {
          report();
          return answer.deliver(AcceptCopy{true, "", {}});
        }
        answer.deliver(AcceptCopy{false, "", o.tier->plane->address()});
        const Status status = receive_copy(*o.tier, **state, offer);
        report();
        if (status.ok()) return;  // its sender reports it
        log::warn("could not receive the copy of shard {} of step {} from {}: {}", offer.shard,
                  offer.step, offer.from, status.message());
        self->send(node, CopySent{offer.generation, offer.step, offer.shard, status.message(), 0});
      },
      [self, node, o, report](const SendCopy& job) {
        lower_priority();
        const Status status = keep_own_copy(*o.tier, job);
        report();
        self->send(node, CopySent{job.generation, job.step, job.task.shard, status.message(), 0});
      },
      [self, o, report](const CopyToPeers& order) {
        if (!o.tier->is_current(order.generation, order.step)) return;
        std::set<uint32_t> assigned;
        for (const CopyTask& task : order.copies)
          if (task.node == o.node) assigned.insert(layout_of(task.shards, task.shard));
        if (o.tier->store.drop_unassigned(assigned, order.keep)) report();
      },
  };
}

// --- Staging ---

struct StagingState {
  static inline const char* name = "peer_copies";
  caf::actor sender, receiver;
  // By trainer and step. Keeps two steps of each trainer: the supervisor orders a step once the
  // next one is committed.
  std::map<std::string, std::map<uint64_t, std::shared_ptr<Staged>>> staged;
};

caf::behavior staging(caf::stateful_actor<StagingState>* self, caf::actor node,
                      PeerCopiesOptions o) {
  self->state.sender = self->spawn<caf::detached + caf::linked>(sender, node, o);
  self->state.receiver = self->spawn<caf::detached + caf::linked>(receiver, node, o);
  return {
      [self](const local::StageCopy& job) {
        auto copy = job.pin->copy();
        if (!copy.ok()) {
          log::warn("cannot stage a copy for a peer node: {}", copy.status().message());
          return;
        }
        auto& staged = self->state.staged[job.trainer];
        std::erase_if(staged,
                      [&](const auto& old) { return old.second->generation != job.generation; });
        staged[job.step] = std::make_shared<Staged>(job.generation, job.step, copy.take());
        while (staged.size() > kStagedSteps) staged.erase(staged.begin());
      },
      [self, node, o](const CopyToPeers& order) {
        for (const CopyTask& task : order.copies) {
          if (!o.states->has(task.source)) continue;
          auto& staged = self->state.staged[task.source];
          staged.erase(staged.begin(), staged.lower_bound(order.step));
          const auto found = staged.find(order.step);
          if (found == staged.end() || found->second->generation != order.generation) {
            self->send(node, CopySent{order.generation, order.step, task.shard,
                                      "step " + std::to_string(order.step) + " of " + task.source +
                                          " is not staged",
                                      0});
            continue;
          }
          const caf::actor& by = task.node == o.node ? self->state.receiver : self->state.sender;
          self->send(by, SendCopy{task, order.generation, order.step, order.keep, found->second});
        }
        for (const CopyTask& task : order.copies)  // the tasks keep it as long as they need it
          if (const auto found = self->state.staged.find(task.source);
              found != self->state.staged.end())
            found->second.erase(order.step);
        self->send(self->state.receiver, order);
      },
      [self](const OfferCopy& offer) { return self->delegate(self->state.receiver, offer); },
  };
}

}  // namespace

void PeerTier::fence(uint64_t newer) {
  {
    std::lock_guard lock(mutex_);
    if (newer > generation_) generation_ = newer, newest_step_ = 0;
  }
  if (newer > 0) plane->abort(newer - 1, "a new generation begins");
}

void PeerTier::ordered(uint64_t its_generation, uint64_t step) {
  fence(its_generation);
  std::lock_guard lock(mutex_);
  if (its_generation == generation_) newest_step_ = std::max(newest_step_, step);
}

bool PeerTier::is_current(uint64_t its_generation, uint64_t step) const {
  std::lock_guard lock(mutex_);
  return its_generation > generation_ || (its_generation == generation_ && step >= newest_step_);
}

Status PeerTier::commit(TrainState& state, uint64_t its_generation, uint64_t step,
                        const Hash128& hash) {
  std::lock_guard lock(mutex_);
  if (its_generation < generation_)
    return {Code::aborted, "generation " + std::to_string(its_generation) + " is over"};
  state.set_generation(its_generation);
  state.commit(step, hash);
  return {};
}

caf::actor spawn_peer_copies(caf::event_based_actor* node, PeerCopiesOptions options) {
  return node->spawn<caf::detached + caf::monitored>(staging, caf::actor_cast<caf::actor>(node),
                                                     std::move(options));
}

}  // namespace simplescale
