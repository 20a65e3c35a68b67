// Checkpoints on the shared disk: agents write shards, the publisher of a supervisor publishes them
// in steps. A publisher looks at the term files before each rename; it may be frozen after the
// look, and wake when another supervisor leads. The protocol is that of actors/checkpoint,
// runtime/checkpoint/checkpoint_write.cpp and checkpoint_folder.cpp.
#include <algorithm>
#include <iterator>

#include "actors/supervisor/unpublished_shards.hpp"
#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

namespace {
constexpr size_t checkpoints_kept = 2;
constexpr size_t reports_kept = 64;  // of shards, by an agent

bool is_whole(const std::map<uint32_t, StoredCopy>& shards) {
  return !shards.empty() && shards.size() == shards.begin()->second.of.shards;
}
}  // namespace

// --- Agents ---

/// The agent of `node` writes a shard into the temporary folder of its step and generation.
void Cluster::save_shard(const StoredCopy& copy, int node) {
  after(std::max<Time>(random.between(10, 400) * ms, disk.hung_until - now),
        [this, copy, node, pid = nodes[node].pid] {
          if (!nodes[node].up || nodes[node].pid != pid) return;
          if (std::max(disk.hung_until, nodes[node].folder_hung_until) > now)
            return save_shard(copy, node);
          ShardSaved saved{copy.generation, copy.step, copy.of.shard, "", "", copy.of.shards};
          if (disk.failing_until > now)
            saved.error = "no space left";
          else
            disk.folders[{copy.step, copy.generation}].shards[copy.of.shard] = copy;
          nodes[node].saved.push_back(saved);
          if (nodes[node].saved.size() > reports_kept) nodes[node].saved.pop_front();
          shard_saved(node, std::move(saved));
        });
}

/// As save_from_memory() of actors/node/node_copies.cpp.
void Cluster::save_from_memory(int node, const Generation& g) {
  for (const job::Move& move : g.moves) {
    if (move.source != nodes[node].name) continue;
    const StoredCopy* held = copy_of_node(node, move, g);
    if (held && held->content == held->checksum) {
      if (held->of.shards != static_cast<uint32_t>(options.trainers * options.domain_nodes))
        ++faults["other_cut_saved"];
      StoredCopy copy = *held;
      copy.generation = g.number;
      save_shard(copy, node);
      continue;
    }
    rejected.insert({move.source, move.step});
    forget_damaged(node, move);
    shard_saved(node,
                {g.number, move.step, move.shard, "", "there is no intact copy", move.shards});
  }
}

/// The agent has found that a copy is damaged.
void Cluster::forget_damaged(int node, const job::Move& move) {
  const auto is_it = [&](const StoredCopy& c) {
    return c.of == Shard{move.shard, move.shards} && c.step == move.step && c.content != c.checksum;
  };
  for (auto& [of, copies] : nodes[node].peer) std::erase_if(copies, is_it);
  for (int slot = 0; slot < options.trainers; ++slot)
    std::erase_if(trainers[node * options.trainers + slot].copies, is_it);
}

void Cluster::shard_saved(int node, ShardSaved saved) {
  if (!nodes[node].link.up) return;
  send(node, 0, [this, supervisor = nodes[node].link.supervisor, saved = std::move(saved)] {
    supervisor->unpublished.push_back(saved);
    publish_shards(*supervisor);
  });
}

// --- The publisher ---

void Cluster::publish_shards(Supervisor& by) {
  if (by.unpublished.empty()) return;
  const uint64_t recorded =
      options.bug == Bug::unrecorded_published ? UINT64_MAX : by.journal.marked;
  std::optional<job::State> mistaken;
  if (options.bug == Bug::unknown_shards_published) {
    mistaken = by.job;
    mistaken->trainers.begin()->second.generation = UINT64_MAX;
  }
  for (const ShardSaved& saved :
       take_publishable(by.unpublished, mistaken ? *mistaken : by.job, recorded)) {
    by.publisher.jobs.push_back(
        {{saved.step, saved.generation}, saved.shard, saved.shards, saved.error});
    if (by.written.add(saved)) handle(by, job::CheckpointWritten{saved.step, saved.generation});
  }
  run_publisher(by);
}

void Cluster::run_publisher(Supervisor& by) {
  while (!by.publisher.busy && !by.publisher.jobs.empty()) {
    const PublisherJob job = std::move(by.publisher.jobs.front());
    by.publisher.jobs.pop_front();
    if (job.kind == PublisherJob::Kind::undo)
      undo_published(by, job.saved, std::nullopt);
    else if (job.kind == PublisherJob::Kind::prune)
      prune(by, job.saved.step, false);
    else
      collect(by, job);
  }
}

void Cluster::collect(Supervisor& by, const PublisherJob& job) {
  Publisher& p = by.publisher;
  const SavedStep& saved = job.saved;
  if (saved.generation < p.generation) return;
  if (saved.generation > p.generation) {  // shards of older ones are not used
    p.pending.clear();
    std::erase_if(disk.folders,
                  [&](const auto& entry) { return entry.first.generation < saved.generation; });
  }
  p.generation = saved.generation;
  Publisher::Pending& checkpoint = p.pending[saved.step];
  if (checkpoint.failed) return;
  if (!job.error.empty()) {
    checkpoint.failed = true;
    after(1, [this, &by, saved, error = job.error] {
      handle(by, job::CheckpointFailed{saved.step, error, saved.generation});
    });
    return;
  }
  if (!checkpoint.shards.insert(job.shard).second) return;  // reported again
  if (checkpoint.shards.size() < job.shards) return;
  p.busy = true;
  publish(by, saved, PublishStep::take, false);
}

Time Cluster::wakes_at(const Supervisor& by) const {
  const Node& host = nodes[by.host];
  return std::max({by.hung_until, host.hung_until, disk.hung_until, host.folder_hung_until});
}

bool Cluster::may_rename(const Supervisor& by) const {
  return by.term == disk.newest_term || options.bug == Bug::publisher_goes_on;  // LEAD-1
}

/// One step of publishing. looked: the term files have been read.
void Cluster::publish(Supervisor& by, const SavedStep& saved, PublishStep step, bool looked) {
  if (!by.up || ended) return;
  const bool half_way = step == PublishStep::place && disk.replaced.contains(saved.step);
  if (looked && freeze_publisher_due && &by == leader() && (half_way || random.chance(25))) {
    freeze_publisher_due = false;
    hang_supervisor(random.between(1, 8) * second);
    const Time power_fails = random.between(0, 9000) * ms;
    if (random.chance(50))  // what the next supervisor reads then comes from the disk
      for (int n = 0; n < options.nodes; ++n)
        after(power_fails + random.between(0, 300) * ms,
              [this, n] { kill_node(n, random.between(200, 3000) * ms); });
  }
  const Time wakes = wakes_at(by);
  if (wakes > now) {
    after(wakes - now + random.between(1, 60) * ms,
          [this, &by, saved, step, looked] { publish(by, saved, step, looked); });
  } else if (!looked) {
    if (!may_rename(by)) return end_publishing(by, saved, "another supervisor leads");
    after(random.between(100, 10'000),
          [this, &by, saved, step] { publish(by, saved, step, true); });
  } else if (disk.failing_until > now && step == PublishStep::take) {  // the manifest
    disk.folders.erase(saved);
    end_publishing(by, saved, "no space left");
  } else if (publish_step(by, saved, step)) {
    const auto next = static_cast<PublishStep>(static_cast<int>(step) + 1);
    after(random.between(1, step == PublishStep::take ? 100 : 20) * ms,
          [this, &by, saved, next] { publish(by, saved, next, false); });
  }
  invariants->disk_changed();
}

/// True if another step follows.
bool Cluster::publish_step(Supervisor& by, const SavedStep& saved, PublishStep step) {
  const bool own_names = options.bug != Bug::publisher_goes_on;
  const uint64_t number = saved.step;
  const auto folder = disk.folders.find(saved);
  const bool there = folder != disk.folders.end() &&
                     (step == PublishStep::take || !own_names || folder->second.owner == by.term);
  const auto placed = disk.steps.find(number);
  switch (step) {
    case PublishStep::take:
      if (there && !is_whole(folder->second.shards)) {
        end_publishing(by, saved, "a shard is missing");  // removed as older, then written again
        return false;
      }
      if (there && own_names) folder->second.owner = by.term;
      if (there) return true;
      if (placed != disk.steps.end() && placed->second.generation == saved.generation)
        publish(by, saved, PublishStep::clean, false);  // its predecessor has published it
      else
        end_publishing(by, saved, "the folder of the shards is missing");
      return false;
    case PublishStep::replace:
      if (placed == disk.steps.end()) return true;
      disk.replaced.insert_or_assign(number, std::move(placed->second));
      disk.steps.erase(placed);
      return true;
    case PublishStep::place:
      if (!there || placed != disk.steps.end()) {  // rename() replaces no folder
        const auto old = disk.replaced.find(number);
        if (own_names && old != disk.replaced.end() && placed == disk.steps.end())
          disk.steps.insert(disk.replaced.extract(old));  // rename_back()
        end_publishing(by, saved, "it cannot be renamed");
        return false;
      }
      disk.steps.insert_or_assign(number,
                                  Checkpoint{saved.generation, std::move(folder->second.shards)});
      disk.ever_published = true;
      disk.folders.erase(folder);
      invariants->checkpoint_placed(by, saved);
      return true;
    case PublishStep::clean:
      if (disk.steps.contains(number)) disk.replaced.erase(number);
      end_publishing(by, saved, "");
      return false;
  }
  return false;
}

/// Removes the checkpoints that are not kept, one after the other. looked: as in publish().
void Cluster::prune(Supervisor& by, uint64_t until_step, bool looked) {
  if (!by.up || ended) return;
  Publisher& p = by.publisher;
  p.busy = true;
  const Time wakes = wakes_at(by);
  const bool looks = looked || (wakes <= now && may_rename(by));
  if (wakes <= now && looks && (!looked || remove_one(until_step))) {
    after(random.between(1, 20) * ms,
          [this, &by, until_step, looked] { prune(by, until_step, !looked); });
  } else if (wakes > now) {
    after(wakes - now + random.between(1, 60) * ms,
          [this, &by, until_step, looked] { prune(by, until_step, looked); });
  } else {
    p.busy = false;
    if (looks && !disk.steps.empty()) handle(by, job::CheckpointsLeft{checkpoint_steps()});
    after(random.between(1, 20) * ms, [this, &by] { run_publisher(by); });
  }
  invariants->disk_changed();
}

std::vector<uint64_t> Cluster::checkpoint_steps() const {
  std::vector<uint64_t> steps;
  for (const auto& [step, checkpoint] : disk.steps) steps.push_back(step);
  return steps;
}

/// Removes one checkpoint that is not needed any more; false if there is none. Later ones than
/// until_step are neither counted nor removed.
bool Cluster::remove_one(uint64_t until_step) {
  const size_t kept = options.bug == Bug::pruned_early ? 0 : checkpoints_kept;
  const auto end =
      options.bug == Bug::pruned_for_later ? disk.steps.end() : disk.steps.upper_bound(until_step);
  if (std::distance(disk.steps.begin(), end) > static_cast<std::ptrdiff_t>(kept)) {
    disk.replaced.erase(disk.steps.begin()->first);
    disk.steps.erase(disk.steps.begin());
    return true;
  }
  if (end == disk.steps.begin()) return false;
  return std::erase_if(disk.folders, [&](const auto& entry) {
           return entry.first.step <= std::prev(end)->first;
         }) > 0;
}

/// The publisher has ended a step, and the supervisor hears of it. error: why it failed, or "".
void Cluster::end_publishing(Supervisor& by, const SavedStep& saved, const std::string& error) {
  Publisher& p = by.publisher;
  p.busy = false;
  if (error.empty())
    p.pending.erase(p.pending.begin(), p.pending.upper_bound(saved.step));
  else if (const auto found = p.pending.find(saved.step); found != p.pending.end())
    found->second.failed = true;
  if (logging())
    log_line("supervisor " + std::to_string(by.term) + ": step " + std::to_string(saved.step) +
             " of generation " + std::to_string(saved.generation) +
             (error.empty() ? " is published" : " is not published: " + error));
  if (!error.empty())
    handle(by, job::CheckpointFailed{saved.step, error, saved.generation});
  else if (options.bug == Bug::undone_checkpoint)
    handle(by, job::CheckpointSaved{saved.step});
  else
    handle(by, job::CheckpointSaved{saved.step, saved.generation});
  if (error.empty() && options.bug == Bug::pruned_unheard)
    p.jobs.push_front({.saved = saved, .error = "", .kind = PublisherJob::Kind::prune});
  after(random.between(50, 2000), [this, &by] { run_publisher(by); });
}

/// Sets checkpoints of steps aside that a generation undoes, which begins with undone.step. found:
/// they were listed before the term files were read, so those that a successor publishes are not
/// among them; null: neither has happened.
void Cluster::undo_published(Supervisor& by, const SavedStep& undone,
                             const std::optional<std::set<SavedStep>>& found) {
  if (!by.up || ended) return;
  Publisher& p = by.publisher;
  p.busy = true;
  std::erase_if(p.pending, [&](const auto& entry) {
    return entry.first > undone.step && p.generation < undone.generation;
  });
  const Time wakes = wakes_at(by);
  if (wakes > now || !found) {
    const bool looks = found || (wakes <= now && may_rename(by));
    if (wakes <= now && !looks) {  // LEAD-1
      p.busy = false;
      return;
    }
    auto list = found;
    if (looks && !list) {
      list.emplace();
      for (const auto* placed : {&disk.steps, &disk.replaced})
        for (const auto& [step, checkpoint] : *placed)
          if (step > undone.step && checkpoint.generation < undone.generation)
            list->insert({step, checkpoint.generation});
    }
    after(std::max<Time>(wakes - now, 0) + random.between(100, 5000),
          [this, &by, undone, list] { undo_published(by, undone, list); });
    return;
  }
  if (options.bug != Bug::undone_checkpoint)
    for (auto* list : {&disk.steps, &disk.replaced})
      std::erase_if(*list, [&](const auto& entry) {
        return found->contains({entry.first, entry.second.generation});
      });
  p.busy = false;
  run_publisher(by);
}

// --- A new supervisor ---

/// CHECKPOINT-4: a deposed publisher finds nothing to rename.
void Cluster::revoke_publishers() {
  for (auto& [saved, folder] : disk.folders) folder.owner = 0;
}

/// The steps of all checkpoints, the newest last; as find_left_checkpoints() of
/// actors/supervisor/take_over.cpp. job: of the predecessor; null: there is none.
std::vector<uint64_t> Cluster::find_checkpoints(const job::State* job) {
  const uint64_t known = job && job->has_checkpoint ? job->checkpoint_step : 0;
  auto distrusted = [&](const auto& entry) {
    return job && options.bug != Bug::undone_checkpoint && entry.first > known &&
           !job::trusted(*job, entry.first, entry.second.generation);
  };
  std::erase_if(disk.steps, distrusted);
  std::erase_if(disk.replaced, distrusted);
  if (options.bug != Bug::publisher_goes_on && options.bug != Bug::replaced_not_read)
    disk.steps.merge(disk.replaced);  // put_back_replaced()
  std::set<uint64_t> steps;
  for (const auto* list : {&disk.steps, &disk.replaced})
    for (const auto& [step, checkpoint] : *list) steps.insert(step);
  return {steps.begin(), steps.end()};
}

/// What a trainer opens.
const Checkpoint* Cluster::checkpoint_of(uint64_t step) const {
  if (const auto found = disk.steps.find(step); found != disk.steps.end()) return &found->second;
  if (options.bug == Bug::replaced_not_read || options.bug == Bug::publisher_goes_on)
    return nullptr;
  const auto found = disk.replaced.find(step);
  return found == disk.replaced.end() ? nullptr : &found->second;
}

void Cluster::damage_checkpoint() {
  if (!disk.steps.empty()) disk.steps.rbegin()->second.readable = false;
}

}  // namespace simplescale::simulation
