#include "actors/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "actors/essential.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/log.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/observe/trace.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

namespace {

// More threads would only spin while they wait for the file's lock: one thread hashes as fast as
// four write.
constexpr size_t kThreadsOfFile = 4;

struct WriterState {
  static inline const char* name = "checkpoint_writer";
};

caf::behavior writer_actor(caf::stateful_actor<WriterState>* self, caf::actor node,
                           CheckpointOptions options) {
  return {
      [self, node, options](local::WriteShard& job) {
        trace::Span span("write checkpoint shard", static_cast<int64_t>(job.shard));
        auto record = with_retries(options.retries, [&] {
          return write_shard(checkpoint_tmp_folder(options.folder, job.step, job.generation),
                             options.shape, job.shards, job.shard, job.state.side,
                             on_threads(job.threads), *options.files);
        });
        span.end();
        ShardSaved saved{job.generation, job.step, job.shard, "", "", job.shards};
        if (record.ok())
          saved.record = to_json(*record);
        else
          saved.error = record.status().message();
        self->send(node, std::move(saved));
        self->send(caf::actor_cast<caf::actor>(self->current_sender()),
                   local::WriterFree{job.shard});
      },
  };
}

/// Makes a private copy of a state, which then waits for a writer. Reports an error to the node.
void copy_state(caf::stateful_actor<CheckpointActorState>* self, const caf::actor& node,
                const local::SaveShard& job) {
  auto& waiting = self->state.waiting;
  const size_t cores = job.last ? all_cores() : cores_beside_training();
  trace::Span span("copy state", static_cast<int64_t>(job.shard));
  auto copy =
      job.pin ? job.pin->copy(on_threads(cores))
              : copy_of(job.segment, layout_of(job.shards, job.shard), job.step, on_threads(cores));
  span.end();
  if (!copy.ok()) {
    self->send(node, ShardSaved{job.generation, job.step, job.shard, "", copy.status().message(),
                                job.shards});
    return;
  }
  if (auto old = waiting.extract(job.shard); !old.empty())
    self->send(node, ShardSaved{old.mapped().generation, old.mapped().step, job.shard, "",
                                "the disk is too slow: a newer state has replaced this one",
                                old.mapped().shards});
  waiting.emplace(job.shard, local::WriteShard{job.generation, job.step, job.shard, copy.take(),
                                               job.shards, cores});
}

/// The threads for the next shard's file; 0: the shards being written use all cores. at_once: how
/// many shards share the cores.
size_t threads_of_shard(size_t cores, size_t at_once, const std::map<uint64_t, size_t>& writing) {
  size_t used = 0;
  for (const auto& [_, threads] : writing) used += threads;
  const size_t share = std::max<size_t>(1, cores / at_once);
  return std::min({kThreadsOfFile, share, cores - std::min(cores, used)});
}

void write_next(caf::stateful_actor<CheckpointActorState>* self, const caf::actor& node,
                const CheckpointOptions& options) {
  CheckpointActorState& s = self->state;
  const auto can_begin = [&s](uint64_t shard) { return !s.writing.contains(shard); };
  while (!s.free.empty()) {
    const auto waiting =
        std::ranges::find_if(s.waiting, [&](const auto& entry) { return can_begin(entry.first); });
    if (waiting != s.waiting.end()) {
      const size_t at_once =
          std::min(options.writers, s.writing.size() + s.waiting.size() + s.in_memory.size());
      size_t threads = threads_of_shard(waiting->second.cores, at_once, s.writing);
      const bool beside_training = waiting->second.cores < all_cores();
      if (threads == 0 && beside_training) return;  // the next free writer asks again
      threads = std::max<size_t>(1, threads);
      local::WriteShard job = std::move(s.waiting.extract(waiting).mapped());
      job.threads = threads;
      s.writing[job.shard] = threads;
      self->send(s.free.back(), std::move(job));
      s.free.pop_back();
      continue;
    }
    const auto next = std::ranges::find_if(s.in_memory, can_begin, &local::SaveShard::shard);
    if (next == s.in_memory.end()) return;
    const local::SaveShard job = std::move(*next);
    s.in_memory.erase(next);
    copy_state(self, node, job);
  }
}

void save(caf::stateful_actor<CheckpointActorState>* self, const caf::actor& node,
          const CheckpointOptions& options, const local::SaveShard& job) {
  if (job.pin)
    copy_state(self, node, job);
  else
    self->state.in_memory.push_back(job);
  write_next(self, node, options);
}

}  // namespace

caf::behavior checkpoint_actor(caf::stateful_actor<CheckpointActorState>* self, caf::actor node,
                               CheckpointOptions options) {
  for (size_t i = 0; i < options.writers; ++i)
    self->state.free.push_back(
        self->spawn<caf::detached + caf::linked>(writer_actor, node, options));
  return {
      [self, node, options](const local::SaveShard& job) { save(self, node, options, job); },
      [self, node, options](local::WriterFree done) {
        self->state.writing.erase(done.shard);
        self->state.free.push_back(caf::actor_cast<caf::actor>(self->current_sender()));
        write_next(self, node, options);
      },
  };
}

constexpr size_t kLossesMax = 1'000;  // of steps without a checkpoint yet

struct PublisherState {
  static inline const char* name = "publisher";
  struct Pending {
    std::vector<ShardRecord> records;
    std::set<uint64_t> reported;  // shards whose writers have finished
    bool failed = false;
  };
  uint64_t generation = 0;
  // By step, of this generation. Several steps may be pending, because each node writes at its own
  // speed.
  std::map<uint64_t, Pending> pending;
  std::map<uint64_t, double> val_losses;  // by step
};

namespace {

CheckpointInfo checkpoint_info(const PublisherOptions& options, const PublisherState& s,
                               const local::ShardWritten& shard) {
  CheckpointInfo info;
  info.step = shard.step;
  info.next_sample = shard.next_sample;
  info.tokens_seen = shard.next_sample * options.tokens_per_sample;
  info.seed = options.seed;
  info.shape = options.shape;
  info.precision = options.precision;
  info.state = options.state;
  info.shards = shard.shards;
  info.resume = options.resume_at(shard.next_sample);
  set_generation(info, shard.generation);
  if (const auto found = s.val_losses.find(shard.step);
      found != s.val_losses.end() && std::isfinite(found->second))
    info.val_loss = found->second;
  info.tokenizer = options.tokenizer;
  return info;
}

/// Removes the shards of checkpoints that will never be published.
void remove_dead(const PublisherOptions& options,
                 const std::function<bool(uint64_t step, uint64_t generation)>& dead) {
  LeaderFiles files(options.leads);
  if (Status status = remove_unpublished(options.folder, dead, files); !status.ok())
    log::warn("cannot remove shards that are not used: {}", status.message());
}

/// Removes the shards of a failed checkpoint once all its writers have finished.
void remove_failed(const PublisherOptions& options, const PublisherState& s, uint64_t step,
                   size_t shards) {
  const PublisherState::Pending& checkpoint = s.pending.at(step);
  if (!checkpoint.failed || checkpoint.reported.size() < shards) return;
  remove_dead(options, [&](uint64_t of_step, uint64_t generation) {
    return of_step == step && generation == s.generation;
  });
}

void collect(caf::stateful_actor<PublisherState>* self, const caf::actor& supervisor,
             const PublisherOptions& options, const local::ShardWritten& shard) {
  PublisherState& s = self->state;
  if (shard.generation < s.generation) return;
  if (shard.generation > s.generation) {  // the publisher uses no shards of older ones
    s.pending.clear();
    remove_dead(options,
                [&](uint64_t, uint64_t generation) { return generation < shard.generation; });
  }
  s.generation = shard.generation;
  PublisherState::Pending& checkpoint = s.pending[shard.step];
  checkpoint.reported.insert(shard.shard);
  if (checkpoint.failed) return remove_failed(options, s, shard.step, shard.shards);
  auto fail = [&](const std::string& reason) {
    checkpoint.failed = true;
    self->send(supervisor, local::Published{shard.step, "", reason, shard.generation});
    remove_failed(options, s, shard.step, shard.shards);
  };
  if (!shard.error.empty()) return fail(shard.error);
  auto record = parse_shard_record(shard.record);
  if (!record.ok()) return fail(record.status().message());
  // A node repeats its reports to a new supervisor.
  if (std::ranges::find(checkpoint.records, record->file, &ShardRecord::file) !=
      checkpoint.records.end())
    return;
  checkpoint.records.push_back(record.take());
  if (checkpoint.records.size() < shard.shards) return;
  const CheckpointInfo info = checkpoint_info(options, s, shard);
  LeaderFiles files(options.leads);
  auto folder = publish_checkpoint(options.folder,
                                   checkpoint_tmp_folder(options.folder, shard.step, s.generation),
                                   options.id, info, checkpoint.records, files, options.retries);
  if (!folder.ok()) return fail(folder.status().message());
  s.pending.erase(s.pending.begin(), s.pending.upper_bound(shard.step));
  s.val_losses.erase(s.val_losses.begin(), s.val_losses.upper_bound(shard.step));
  self->send(supervisor, local::Published{shard.step, *folder, "", shard.generation,
                                          text_of(signature_record_in(info.resume), "hash")});
}

std::vector<uint64_t> prune(const PublisherOptions& options, uint64_t until_step) {
  LeaderFiles files(options.leads);
  KeepRules rules = options.keep;
  rules.until_step = until_step;
  if (Status pruned = prune_checkpoints(options.folder, rules, Verify::sizes, files); !pruned.ok())
    log::warn("cannot remove old checkpoints: {}", pruned.message());
  return checkpoint_steps(options.folder);
}

void undo(PublisherState& s, const PublisherOptions& options, const local::StepsUndone& undone) {
  std::erase_if(s.pending, [&](const auto& entry) {
    return entry.first > undone.step && s.generation < undone.generation;
  });
  LeaderFiles files(options.leads);
  const Status status = set_aside_undone(
      options.folder, undone.step,
      [&](uint64_t, uint64_t generation) { return generation < undone.generation; }, files);
  if (!status.ok()) log::warn("cannot set undone checkpoints aside: {}", status.message());
}

caf::behavior publisher_actor(caf::stateful_actor<PublisherState>* self, caf::actor supervisor,
                              PublisherOptions options) {
  end_process_with(self, "publisher");
  return {
      [self, supervisor, options](const local::ShardWritten& shard) {
        collect(self, supervisor, options, shard);
      },
      [self](const local::StepValidated& step) {
        auto& losses = self->state.val_losses;
        losses[step.step] = step.loss;
        if (losses.size() > kLossesMax) losses.erase(losses.begin());
      },
      [self, options](const local::StepsUndone& undone) { undo(self->state, options, undone); },
      [self, supervisor, options](const local::PruneCheckpoints& order) {
        if (order.replaced && *order.replaced) return;
        std::vector<uint64_t> left = prune(options, order.step);
        if (!left.empty())  // else the folder is gone
          self->send(supervisor, local::CheckpointsLeft{std::move(left)});
      },
  };
}

}  // namespace

caf::actor spawn_publisher(caf::actor_system& system, caf::actor supervisor,
                           PublisherOptions options) {
  return system.spawn<caf::detached>(publisher_actor, std::move(supervisor), std::move(options));
}

}  // namespace simplescale
