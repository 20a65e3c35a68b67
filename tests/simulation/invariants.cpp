#include "tests/simulation/invariants.hpp"

#include <algorithm>

#include "actors/supervisor/decision/placement.hpp"
#include "actors/supervisor/decision/queries.hpp"
#include "runtime/training/sharding.hpp"
#include "tools/verify/metrics_lines.hpp"

namespace simplescale::simulation {

namespace {

constexpr Time patience = 90 * second;     // for a step, once faults have ended
constexpr Time leaving_time = 3 * second;  // for a node to leave a deposed supervisor

[[noreturn]] void broken(const char* invariant, const std::string& text) {
  throw Violation{invariant, text};
}
/// The generation number that an action uses; 0: none.
uint64_t number_of(const job::Action& action) {
  if (const auto* fence = std::get_if<job::Fence>(&action)) return fence->generation;
  if (const auto* join = std::get_if<job::Join>(&action)) return join->generation;
  return 0;
}

}  // namespace

void Invariants::after_event() {
  if (cluster_.now < cluster_.quiet_at || cluster_.now < checked_at_ + second) return;
  if (checked_at_ < cluster_.quiet_at) progress_at_ = grows_since_ = cluster_.now;
  checked_at_ = cluster_.now;
  require(cluster_.now - progress_at_ < patience, "JOB-4",
          "no step for " + number(static_cast<uint64_t>(patience / second)) +
              " s although all faults have ended; the newest is " + number(committed_));
  // A node that is up and not drained must not be left out forever.
  for (const auto& supervisor : cluster_.supervisors) {
    if (!supervisor->up || supervisor->term != cluster_.disk.newest_term) continue;
    const job::State& s = supervisor->job;
    if (s.phase != job::Phase::training || s.leaving || s.paused || !grows(s))
      grows_since_ = cluster_.now;
    require(cluster_.now - grows_since_ < patience / 3, "JOB-4",
            "nodes are up for more groups, or for better ones, and do not train");
    for (const auto& [name, node] : s.nodes) {
      if (node.state != job::NodeState::suspect && node.state != job::NodeState::absent &&
          node.state != job::NodeState::lost) {
        suspect_since_[name] = cluster_.now;
        continue;
      }
      Time& since = suspect_since_.try_emplace(name, cluster_.now).first->second;
      require(cluster_.now - since < patience / 3, "JOB-4",
              name + " is " + job::to_string(node.state) + " forever: " + node.reason);
    }
  }
}

void Invariants::at_end() {
  require(cluster_.ended.has_value(), "JOB-4", "no events are left, but the run has not ended");
  require(!cluster_.ended->reason.empty(), "JOB-5", "the run ends without a reason");
  if (cluster_.ended->exit == Code::mismatch || cluster_.refused) return;
  check_records();
  const Supervisor* newest = nullptr;
  for (const auto& supervisor : cluster_.supervisors)
    if (supervisor->term == cluster_.disk.newest_term) newest = supervisor.get();
  if (cluster_.ended->exit == Code::ok && !(newest->job.stop_requested && stop_asked_))
    require(committed_ == cluster_.options.steps, "JOB-2",
            "finished after step " + number(committed_) + ": " + cluster_.ended->reason);
  if (cluster_.ended->exit == Code::ok || cluster_.now < cluster_.quiet_at + 30 * second) return;
  const auto& steps = cluster_.disk.steps;
  if (cluster_.ended->exit == Code::bad_data &&
      std::ranges::none_of(steps, [](const auto& entry) { return entry.second.readable; }))
    return;
  size_t fit = 0;
  for (const auto& [name, node] : newest->job.nodes)
    fit +=
        node.state != job::NodeState::drained && !cluster_.kept_down(cluster_.node_index.at(name));
  int least = cluster_.options.domain_nodes;
  for (const int size : cluster_.options.sizes)
    if (tries(newest->job, newest->job.layout, size)) least = std::min(least, size);
  require(fit < static_cast<size_t>(least), "JOB-4",
          "gave up although enough nodes are there: " + cluster_.ended->reason);
}

// --- Training ---

void Invariants::step_written(const Generation& g, uint64_t step) {
  if (g.number >= joined_) made_[step] = g.number;
  ++written_[{g.number, step}];
  newest_maker_ = std::max(newest_maker_, g.number);
}

void Invariants::step_committed(const Generation& g, uint64_t step) {
  const size_t ranks = written_[{g.number, step}];
  require(ranks == g.trainers, "JOB-2",
          "step " + number(step) + " counts after " + number(ranks) + " of " + number(g.trainers) +
              " ranks have applied it");
  std::erase_if(written_,
                [&](const auto& w) { return w.first.first == g.number && w.first.second < step; });
  auto [known, first] = by_generation_.try_emplace(g.number, g.begun_at);
  require(step == known->second + 1, "JOB-2",
          "generation " + number(g.number) + " commits step " + number(step) + " after step " +
              number(known->second));
  known->second = step;
  if (g.number >= joined_) {
    // A generation that the leader does not know may be behind the one that counts.
    committed_ = is_unknown(g.number) ? std::max(committed_, step) : step;
    if (step >= distrusted_) distrusted_ = UINT64_MAX;
  }
  if (cluster_.now >= cluster_.quiet_at && step > quiet_step_) {
    quiet_step_ = step;
    progress_at_ = cluster_.now;
  }
}

void Invariants::step_distrusted(const std::set<uint64_t>& wrong) {
  found_.insert(wrong.begin(), wrong.end());
}

void Invariants::state_restored(const Generation& g) {
  if (g.begun_at < distrusted_)
    made_again_ = true;
  else if (made_again_)
    distrusted_ = UINT64_MAX;  // the step was made again, and what was made is checked below
  require(
      g.groups * g.cut == g.trainers, "JOB-3",
      number(g.trainers) + " trainers are not " + number(g.groups) + " groups of " + number(g.cut));
  std::vector<uint32_t> dealt_by;
  Shares leaves = Shares::even(leaves_of(cluster_.options), g.groups, g.cut);
  std::vector<int> trained(leaves.leaves());
  for (const Generation::Member& m : g.members) {
    if (m.helper) continue;
    if (m.weights != dealt_by) {
      dealt_by = m.weights;
      leaves = Shares::by_weight(leaves.leaves(), dealt_by, g.groups, g.cut);
    }
    for (uint64_t k = 0; k < leaves.count(m.group, m.shard); ++k)
      ++trained[leaves.leaf(m.group, m.shard, k)];
    const Trainer& t = cluster_.trainers[m.trainer];
    const StoredCopy* copy = t.copies.empty() ? nullptr : &t.copies.back();
    require(copy && copy->of == Shard{m.shard, g.cut} && copy->step == g.begun_at, "JOB-3",
            t.name + " begins generation " + number(g.number) + " without shard " +
                number(m.shard) + " of " + number(g.cut) + " at step " + number(g.begun_at));
    require(std::ranges::all_of(t.copies,
                                [&](const StoredCopy& have) { return have.of.shards == g.cut; }),
            "JOB-3", t.name + " begins generation " + number(g.number) + " with two cuts");
    if (const auto made = made_.find(g.begun_at);
        made != made_.end() && g.number == joined_ && !is_unknown(made->second))
      require(copy->made == made->second, "JOB-3",
              t.name + " begins generation " + number(g.number) + " with step " +
                  number(g.begun_at) + " as generation " + number(copy->made) +
                  " made it, before generation " + number(made->second) + " made it again");
    if (copy->good()) continue;
    // A wrong result that no comparison has found yet is allowed: the next comparison finds it.
    const uint64_t difference = copy->difference() >> 8;
    const bool undetected = difference > 0 && difference <= cluster_.wrong_made &&
                            copy->content == copy->checksum && !detected_.contains(copy->content);
    require(undetected, "JOB-3",
            t.name + " begins generation " + number(g.number) + " with a wrong state of shard " +
                number(m.shard) + " at step " + number(g.begun_at));
  }
  require(std::ranges::all_of(trained, [](int n) { return n == 1; }), "JOB-2",
          "generation " + number(g.number) + " does not train all leaves once");
}

// --- Supervisors ---

void Invariants::supervisor_started(const Supervisor& supervisor, const SupervisorState* from,
                                    Time claimed, bool missed) {
  check_records();
  newest_known_[supervisor.term] = from ? job::newest_joined(from->job) : 0;
  std::erase_if(removed_, [&](int32_t pid) {  // those of which it does not know
    return std::ranges::find(supervisor.job.removed, pid, &job::RemovedAgent::pid) ==
           supervisor.job.removed.end();
  });
  if (!from) {
    balanced_at_.reset();
    failures_.clear();  // a supervisor without a replica cannot know them
    distrusted_ = UINT64_MAX;
    detected_.clear();
    found_.clear();
    return;
  }
  // A disk that is full takes no state page; then a death of supervisor and standby loses decisions.
  const auto& before = cluster_.supervisors;
  const bool lost = missed || std::ranges::any_of(before, [&](const auto& previous) {
                      const auto& page = previous->journal.page;
                      return previous->term < supervisor.term && page && is_newer(*page, *from);
                    });
  // What the predecessor decided after the claim is lost, and perhaps its last decision, and with
  // them failures that it counted.
  for (auto& [name, f] : failures_) {
    const auto node = supervisor.job.nodes.find(node_of(name));
    const size_t known = node == supervisor.job.nodes.end() ? 0 : node->second.failures_ms.size();
    while (f.at_ms.size() > known &&
           (lost || f.at_ms.back() >= claimed / ms || f.at_ms.size() == known + 1))
      f.at_ms.pop_back();
  }
  if (lost) {
    balanced_at_.reset();
    distrusted_ = UINT64_MAX;
    detected_.clear();
    found_.clear();
    joined_ = job::newest_joined(supervisor.job);
    // The generation before the lost decision counts again. Its trainers may have made steps since.
    const auto known = by_generation_.find(joined_);
    committed_ = std::max(
        committed_, known == by_generation_.end() ? supervisor.job.joined_step : known->second);
    unknown_.emplace_back(joined_, supervisor.job.generation_floor);
    return;
  }
  for (const auto& previous : before)
    if (previous->term < supervisor.term && previous->acted > 0 && !cluster_.options.large())
      require(std::pair(previous->term, previous->acted) <= std::pair(from->term, from->sequence),
              "LEAD-1",
              "supervisor " + number(supervisor.term) + " knows decisions up to " +
                  number(from->sequence) + ", the one before acted on " + number(previous->acted));
}

void Invariants::event_received(const Supervisor& supervisor, const job::Event& event) {
  waiting_since_ms_ = supervisor.job.waiting_since_ms;
  adopts_ = false;
  if (cluster_.options.joining > 0)
    for (const auto& [name, node] : supervisor.job.nodes) agents_[supervisor.term][name] = node.pid;
  // Steps that are undone and made again count as steps since a failure.
  if (supervisor.term == cluster_.disk.newest_term)
    for (auto& [name, f] : failures_) f.step = std::min(f.step, supervisor.job.committed_step);
  if (const auto* down = std::get_if<job::TrainerDown>(&event)) {
    const auto found = supervisor.job.trainers.find(down->trainer);
    if (found == supervisor.job.trainers.end() || found->second.state == job::TrainerState::down)
      return;
    if (supervisor.term != cluster_.disk.newest_term) return;  // its successor does not know
    Failures& f = failures_[down->trainer];
    f.at_ms.push_back(cluster_.now / ms);
    f.step = supervisor.job.committed_step;
  } else if (const auto* idle = std::get_if<job::TrainerIdle>(&event)) {
    if (idle->fault != job::Fault::mismatch || idle->generation + 1 < supervisor.job.generation)
      return;
    if (supervisor.term != cluster_.disk.newest_term || idle->generation < joined_) return;
    detected_.merge(found_);
    // A generation that this supervisor does not know may have made the step again.
    const auto made = made_.find(idle->step);
    if (made != made_.end() && made->second > idle->generation) return;
    distrusted_ = std::min(distrusted_, idle->step);
    made_again_ = false;
  } else if (const auto* trainer = std::get_if<job::TrainerUp>(&event)) {
    const auto known = supervisor.job.trainers.find(trainer->trainer);
    adopts_ = known != supervisor.job.trainers.end() && trainer->generation > 0 &&
              trainer->generation == known->second.generation &&
              known->second.state == job::TrainerState::training;
  } else if (const auto* lost = std::get_if<job::NodeLost>(&event)) {
    lost_.insert({supervisor.term, lost->node});
  } else if (const auto* up = std::get_if<job::NodeUp>(&event)) {
    lost_.erase({supervisor.term, up->node});
  } else if (std::holds_alternative<job::StopRequested>(event)) {
    stop_asked_ = true;
  } else if (const auto* request = std::get_if<job::DrainRequested>(&event)) {
    const auto known = supervisor.job.nodes.find(request->node);
    if (!request->drain && known != supervisor.job.nodes.end()) removed_.erase(known->second.pid);
    if (!request->drain)
      std::erase_if(failures_, [&](const auto& f) { return node_of(f.first) == request->node; });
  } else if (const auto* step = std::get_if<job::StepCommitted>(&event)) {
    std::erase_if(failures_, [&](const auto& f) {
      return step->step >= f.second.step + supervisor.job.budget_steps;
    });
  }
}

void Invariants::same_decision(const job::Decision& a, const job::Decision& b) {
  require(a.reason == b.reason && a.actions.size() == b.actions.size(), "JOB-5",
          "the same event makes two decisions: '" + a.reason + "', '" + b.reason + "'");
  for (size_t i = 0; i < a.actions.size(); ++i)
    require(text_of(a.actions[i]) == text_of(b.actions[i]), "JOB-5",
            "the same event makes two decisions");
}

void Invariants::decision_made(const Supervisor& supervisor, const job::Decision& decision) {
  for (const job::Action& action : decision.actions) {
    const std::string* reason = nullptr;
    if (const auto* a = std::get_if<job::Fence>(&action)) reason = &a->reason;
    if (const auto* a = std::get_if<job::Leave>(&action)) reason = &a->reason;
    if (const auto* a = std::get_if<job::KillTrainer>(&action)) reason = &a->reason.text;
    if (const auto* a = std::get_if<job::CheckNode>(&action)) reason = &a->reason;
    if (const auto* a = std::get_if<job::StopAtStep>(&action)) reason = &a->reason;
    if (const auto* a = std::get_if<job::Shutdown>(&action)) reason = &a->reason;
    if (std::holds_alternative<job::Join>(action)) reason = &decision.reason;
    require(!reason || !reason->empty(), "JOB-5", text_of(action) + " has no reason");
    require(!adopts_ || !std::holds_alternative<job::Fence>(action), "takeover",
            "it ends a generation in which a trainer is, as its state says");
    if (const auto* join = std::get_if<job::Join>(&action)) check_join(supervisor, *join);
    check_left(supervisor, action);
    if (const auto* leaves = std::get_if<job::EndNode>(&action))
      if (const int node = cluster_.node_index.at(leaves->node);
          cluster_.connected(supervisor, node) && supervisor.term == cluster_.disk.newest_term)
        node_leaves(node);
    if (std::holds_alternative<job::Fence>(action)) check_causes(supervisor);
    if (const auto* end = std::get_if<job::Shutdown>(&action)) check_given_up(supervisor, *end);
    check_waited(supervisor, action);
  }
}

/// A stop of all processes follows a fence, with which a wait begins. The stop is no part of it.
void Invariants::check_waited(const Supervisor& supervisor, const job::Action& action) {
  const auto* record = std::get_if<job::Record>(&action);
  const auto* end = std::get_if<job::Shutdown>(&action);
  const std::string why = record && record->kind == "gives_up" ? record->reason.text
                          : end && !supervisor.job.giving_up   ? end->reason
                                                               : "";
  require(!why.starts_with("There were not enough nodes") ||
              cluster_.now > cluster_.stopped_at + cluster_.stopped_for + 10 * second,
          "JOB-4", "gives up as soon as a stop of all processes is over: " + why);
}

/// JOB-1: a run that gives up because of missing copies leaves none behind.
void Invariants::check_given_up(const Supervisor& supervisor, const job::Shutdown& end) {
  if (supervisor.term != cluster_.disk.newest_term) return;
  if (end.reason.find("no memory holds a copy") == std::string::npos) return;
  // What is on the disk counts, whether this supervisor or only the next start knows it.
  uint64_t saved = supervisor.job.checkpoint_step;
  for (const auto* list : {&cluster_.disk.steps, &cluster_.disk.replaced})
    for (const auto& [step, checkpoint] : *list)
      if (checkpoint.readable) saved = std::max(saved, step);
  check_newest_step(supervisor, {.step = saved});
}

void Invariants::check_join(const Supervisor& supervisor, const job::Join& join) {
  if (supervisor.term != cluster_.disk.newest_term) return;  // it is deposed and will not act
  const bool anew = join.source == job::Source::initialize;
  // A supervisor has to take a step that some ranks have applied for a committed one.
  undoes_ = anew || join.step < committed_ || made_.upper_bound(join.step) != made_.end();
  require(!anew || shape_of(supervisor.job.layout).size == cluster_.options.domain_nodes,
          "RESHAPE-1", "groups of another size begin with initial values");
  if (!join.by_agents) check_layout(supervisor);
  for (const job::Place& place : job::places(supervisor.job.rules, supervisor.job.layout)) {
    if (join.by_agents) break;  // no trainer joins
    const int index = cluster_.trainer_index.at(place.trainer);
    const Trainer& t = cluster_.trainers[index];
    const auto g = cluster_.generations.find(t.generation);
    if (g != cluster_.generations.end() && g->second->index.contains(index) &&
        g->second->members[static_cast<size_t>(g->second->index.at(index))].helper)
      continue;  // it only sends copies there, and joins afterwards
    require(!t.up || t.pid != supervisor.job.trainers.at(place.trainer).pid || t.generation == 0 ||
                t.generation >= join.generation,
            "GEN-1",
            t.name + " is to join generation " + number(join.generation) + " and still trains in " +
                number(t.generation));
  }
  // A later step was committed before the difference was found and stays usable.
  require(join.step != distrusted_ || made_again_ || join.source == job::Source::checkpoint,
          "JOB-3",
          "generation " + number(join.generation) + " begins at step " + number(join.step) +
              ", which replicas do not agree on");
  check_newest_step(supervisor, join);
  check_waits_for_memory(supervisor, join);
  check_regained(supervisor, join);
  if (!join.save_only) check_budgets(supervisor);  // drained nodes may save
}

/// RESHAPE-1: before groups of another size undo a step, the lost nodes whose agents live and hold a
/// copy of it have had time to come back.
void Invariants::check_waits_for_memory(const Supervisor& supervisor, const job::Join& join) {
  const job::State& s = supervisor.job;
  const uint64_t known_generation = std::exchange(newest_known_[supervisor.term], join.generation);
  const bool late = cluster_.now / ms - waiting_since_ms_ > s.join_timeout_ms;
  if (late || s.giving_up || join.step >= committed_ ||
      shape_of(s.layout).size == cluster_.options.domain_nodes)
    return;
  for (int n = 0; n < cluster_.options.nodes; ++n) {
    const Node& node = cluster_.nodes[n];
    const auto known = s.nodes.find(node.name);
    if (known == s.nodes.end() || known->second.state != job::NodeState::lost || !node.up ||
        known->second.pid != node.pid)
      continue;
    for (int slot = 0; slot < cluster_.options.trainers; ++slot)
      for (const StoredCopy& copy : cluster_.trainers[n * cluster_.options.trainers + slot].copies)
        if (const auto made = made_.find(copy.step);
            made != made_.end() && made->second == copy.made && copy.step > join.step &&
            copy.step <= committed_ && copy.made <= known_generation)
          broken("RESHAPE-1", "generation " + number(join.generation) + " begins at step " +
                                  number(join.step) + " with groups of another size, and " +
                                  node.name + " may come back with step " + number(copy.step));
  }
}

/// JOB-1: no newer committed step has a usable copy of every shard.
void Invariants::check_newest_step(const Supervisor& supervisor, const job::Join& join) {
  const uint64_t newest = std::min(committed_, distrusted_ - 1);
  if (join.step >= newest) return;
  // The time that the supervisor waits for answers is over: only those that it has count.
  const bool late = cluster_.now / ms - waiting_since_ms_ > supervisor.job.join_timeout_ms;
  // (step, cut) -> shard -> where
  std::map<std::pair<uint64_t, uint32_t>, std::map<uint32_t, std::string>> have;
  auto add = [&](const StoredCopy& copy, const std::string& node) {
    const auto made = made_.find(copy.step);
    if (made == made_.end() || made->second != copy.made) return;
    // Copies of a step do not count any more once a generation has begun with its checkpoint.
    const Checkpoint* checkpoint = cluster_.checkpoint_of(copy.step);
    if (checkpoint && !checkpoint->readable) return;
    if (copy.step > join.step && !cluster_.rejected.contains({node, copy.step}) && copy.good() &&
        copy.content == copy.checksum && copy.step < distrusted_ &&
        !job::is_suspect(supervisor.job, copy.step, copy.generation))
      have[{copy.step, copy.of.shards}][copy.of.shard] = node;
  };
  for (int n = 0; n < cluster_.options.nodes; ++n) {
    const Node& node = cluster_.nodes[n];
    const auto known = supervisor.job.nodes.find(node.name);
    if (known == supervisor.job.nodes.end() || !job::is_here(known->second)) continue;
    if (late && known->second.answered <= joined_) continue;
    if (!cluster_.connected(supervisor, n) || !node.up || cluster_.hung(node)) continue;
    for (int slot = 0; slot < cluster_.options.trainers; ++slot)
      for (const StoredCopy& copy : cluster_.trainers[n * cluster_.options.trainers + slot].copies)
        add(copy, node.name);
    for (const auto& [shard, copies] : node.peer)
      for (const StoredCopy& copy : copies) add(copy, node.name);
  }
  for (const auto* list : {&cluster_.disk.steps, &cluster_.disk.replaced})
    for (const auto& [step, checkpoint] : *list)
      if (checkpoint.readable && !late)
        for (const auto& [shard, copy] : checkpoint.shards) add(copy, "the disk");
  for (const auto& [step, shards] : have)
    if (shards.size() == step.second) {
      std::string places;
      for (const auto& [shard, where] : shards)
        places += (places.empty() ? ": " : ", ") + number(shard) + " on " + where;
      broken("JOB-1", "generation " + number(join.generation) + " begins at step " +
                          number(join.step) + " although all " + number(step.second) +
                          " shards of committed step " + number(step.first) + " can be had" +
                          places);
    }
}

/// Failures of one trainer count one by one. Half of the time, since an earlier failure of another
/// trainer may have been the first one of the same cause.
void Invariants::check_budgets(const Supervisor& supervisor) {
  for (auto& [name, f] : failures_) {
    std::erase_if(
        f.at_ms, [&](int64_t at) { return cluster_.now / ms - at > supervisor.job.within_ms / 2; });
    require(f.at_ms.size() <= static_cast<size_t>(supervisor.job.max_restarts) ||
                !supervisor.job.layout.contains(node_of(name)) || !unknown_.empty(),
            "budget", name + " trains again after " + number(f.at_ms.size()) + " failures");
  }
}

/// All that one fault makes fail on a node counts once for its restart budget.
void Invariants::check_causes(const Supervisor& supervisor) {
  for (const auto& [name, node] : supervisor.job.nodes)
    require(node.failures_ms.size() <= cluster_.causes, "budget",
            number(node.failures_ms.size()) + " failures of " + name + " count after " +
                number(cluster_.causes) + " faults");
}

void Invariants::resigns(const Supervisor& supervisor) const {
  size_t against = 0;
  for (const Node& node : cluster_.nodes)
    against += node.vote_read == supervisor.term && supervisor.job.nodes.contains(node.name);
  require(
      against > supervisor.links.size(), "LEAD-1",
      "supervisor " + number(supervisor.term) + " resigns because of nodes that never reported");
}

void Invariants::name_taken(int index, uint64_t command) {
  const Node& node = cluster_.nodes[static_cast<size_t>(index)];
  require(!node.up && node.command == command, "LOCK-2", "two commands have the name " + node.name);
  std::erase_if(failures_, [&](const auto& f) { return node_of(f.first) == node.name; });
}

void Invariants::action_taken(const Supervisor& supervisor, const job::Action& action) {
  if (const auto* record = std::get_if<job::Record>(&action)) {
    if (record->kind == "removed" && supervisor.term == cluster_.disk.newest_term)
      removed_.insert(agents_[supervisor.term][record->subject]);
    return;
  }
  const auto* end = std::get_if<job::Shutdown>(&action);
  const bool leads = supervisor.term == cluster_.disk.newest_term;
  // For a second a supervisor may act that cannot read the term files: all nodes report to it.
  const bool blind = cluster_.folder_works_at(supervisor.host) > cluster_.now;
  require(leads || (blind && !end), "LEAD-1",
          "supervisor " + number(supervisor.term) + (end ? " ends the run" : " acts") +
              " although " + number(cluster_.disk.newest_term) + " leads");
  if (const uint64_t used = number_of(action)) {
    const uint64_t user = users_.try_emplace(used, supervisor.term).first->second;
    require(user == supervisor.term, "GEN-2",
            "supervisors " + number(user) + " and " + number(supervisor.term) + " use generation " +
                number(used));
  }
  if (!leads) {
    if (const auto* join = std::get_if<job::Join>(&action))
      unknown_.emplace_back(join->generation - 1, join->generation);
    return;
  }
  if (const auto* leave = std::get_if<job::Leave>(&action);
      leave && leave->reason.find("shares") != std::string::npos) {
    require(!balanced_at_ || cluster_.now / ms - *balanced_at_ >= supervisor.job.balance_pause_ms,
            "BALANCE-1", "a generation ends soon after another one for other shares");
    balanced_at_ = cluster_.now / ms;
  } else if (const auto* fence = std::get_if<job::Fence>(&action)) {
    require(fence->generation > acted_generation_, "GEN-2",
            "generation " + number(fence->generation) + " is given out again");
    acted_generation_ = fence->generation;
  } else if (const auto* join = std::get_if<job::Join>(&action)) {
    require(join->generation > joined_ && join->generation >= acted_generation_, "GEN-2",
            "generation " + number(join->generation) + " begins again");
    joined_ = acted_generation_ = join->generation;
    const InstructionSet set = supervisor.job.instructions;
    if (instructions_ == InstructionSet::automatic) instructions_ = set;
    require(set == instructions_ || set == InstructionSet::automatic, "BACKEND-3",
            std::string("a run that has computed with ") + to_string(instructions_) +
                " goes on with " + to_string(set));
    const uint64_t committed = committed_;
    set_committed(join->step);
    if (join->regained) {
      std::erase_if(made_, [&](const auto& made) {
        return job::undone(supervisor.job, made.first, made.second);
      });
      // The records may have lines of the other history.
      for (const job::Rollback& u : supervisor.job.rollbacks)
        if (u.generation == join->generation && u.since > 0)
          marked_ = std::min(marked_, u.step - std::min<uint64_t>(u.step, 1));
    }
    if (join->source == job::Source::checkpoint)
      if (const Checkpoint* checkpoint = cluster_.checkpoint_of(join->step))
        check_history(*join, committed, checkpoint->shards.begin()->second.made);
    if (join->source == job::Source::initialize) {
      require(!cluster_.disk.ever_published, "JOB-1",
              "a run that had a checkpoint begins at step 0 by itself");
      made_[0] = 0;
    }
  }
}

/// JOB-3: the checkpoint that a generation begins with is of a step that was not undone.
void Invariants::check_history(const job::Join& join, uint64_t committed, uint64_t made) {
  const auto known = made_.try_emplace(join.step, made).first;
  if (is_unknown(known->second)) known->second = made;  // the history before the lost decision
  require(join.step <= committed && known->second == made, "JOB-3",
          "generation " + number(join.generation) + " begins with a checkpoint of step " +
              number(join.step) + " as generation " + number(made) + " made it, after step " +
              number(committed) + " of generation " + number(known->second));
}

uint64_t Invariants::generation_in(const std::vector<Disk::Line>& lines, uint64_t step,
                                   uint64_t made) {
  uint64_t newest = 0;
  for (auto line = lines.rbegin(); line != lines.rend() && newest < made; ++line)
    if (line->whole && line->line.step == step) newest = std::max(newest, line->line.generation);
  return newest;
}

/// The decision that began this generation is lost.
bool Invariants::is_unknown(uint64_t generation) const {
  return std::ranges::any_of(unknown_, [&](const auto& range) {
    return generation > range.first && generation <= range.second;
  });
}

/// Of the current history: the records have the newest line of a step, as it was made last.
void Invariants::check_line(uint64_t step, const std::string& when) {
  const auto made = made_.find(step);
  if (step == 0 || made == made_.end() || made->second > joined_) return;
  // Lines that such a generation has made again may be those of an older one: both say the same.
  if (is_unknown(made->second)) return;
  for (const auto* lines : {&cluster_.disk.ledger, &cluster_.disk.metrics}) {
    const uint64_t newest = generation_in(*lines, step, made->second);
    // A successor names its own generation in the lines that its predecessor could not write.
    require(newest >= made->second, "JOB-2",
            when + ": the newest line of step " + number(step) + " in " +
                (lines == &cluster_.disk.ledger ? "ledger" : "metrics") +
                ".jsonl is of generation " + number(newest) + ", generation " +
                number(made->second) + " made the step");
  }
}

void Invariants::records_marked(const Supervisor& by, uint64_t step) {
  if (by.term != cluster_.disk.newest_term) return;
  // Older marks count for steps that were not undone since.
  marked_ = step;
  check_line(step, "supervisor " + number(by.term) + " says that it is recorded");
}

/// The rules of `verify` for the records; all marked steps have their lines.
void Invariants::check_records() {
  MetricsLines rule;
  std::set<uint64_t> steps;
  for (const Disk::Line& line : cluster_.disk.metrics) {
    if (!line.whole || line.line.step == 0) continue;
    const std::string wrong = rule.add({line.line.generation, line.line.step}, 1);
    require(wrong.empty(), "JOB-2", "metrics.jsonl: " + wrong);
    steps.insert(line.line.step);
  }
  uint64_t next = 1;
  // A limit: nothing of the supervisor that began the run may have reached the disk.
  for (auto made = made_.find(next); !steps.contains(next) && made != made_.end() &&
                                     made->first == next && is_unknown(made->second);
       ++made)
    ++next;
  for (const uint64_t step : steps) {
    require(step == next, "JOB-2",
            "metrics.jsonl has step " + number(step) + ", and not step " + number(next));
    ++next;
  }
  for (uint64_t step = 1; step <= std::min(marked_, committed_); ++step)
    check_line(step, "after a mark");
}

/// A checkpoint has the lines of its step before it can be seen, and is of the current history.
void Invariants::checkpoint_placed(const Supervisor& by, const SavedStep& saved) {
  if (by.term != cluster_.disk.newest_term) return;
  const auto made = made_.find(saved.step);
  if (made == made_.end() || made->second != saved.generation) return;  // undone meanwhile
  check_line(saved.step, "a checkpoint is published");
}

void Invariants::disk_changed() {
  for (const auto& supervisor : cluster_.supervisors) {
    if (!supervisor->up || supervisor->term != cluster_.disk.newest_term) continue;
    const uint64_t step = supervisor->job.checkpoint_step;
    require(!supervisor->job.has_checkpoint || cluster_.checkpoint_of(step), "CHECKPOINT-1",
            "the checkpoint of step " + number(step) + " was published and cannot be read");
  }
}

void Invariants::set_committed(uint64_t step) {
  committed_ = step;
  marked_ = std::min(marked_, step);
  made_.erase(made_.upper_bound(step), made_.end());
}

void Invariants::step_counted(const Supervisor& supervisor, uint64_t generation, uint64_t step) {
  if (supervisor.term != cluster_.disk.newest_term) return;
  auto found = by_generation_.find(generation);
  require(found != by_generation_.end() && step <= found->second, "JOB-2",
          "step " + number(step) + " of generation " + number(generation) +
              " counts before every rank has applied it");
}

void Invariants::command_obeyed(int node, uint64_t term, const char* what) {
  uint64_t& newest = obeyed_[node];
  require(term >= newest, "LEAD-1",
          cluster_.nodes[node].name + " obeys a " + what + " of supervisor " + number(term) +
              " after one of " + number(newest));
  newest = term;
  const Time sees = std::max(
      {cluster_.disk.claimed_at, cluster_.folder_works_at(node), cluster_.nodes[node].hung_until});
  require(term == cluster_.disk.newest_term || cluster_.now < sees + leaving_time, "LEAD-1",
          cluster_.nodes[node].name + " obeys a " + what + " of supervisor " + number(term) +
              " for seconds after " + number(cluster_.disk.newest_term) + " has begun");
}

}  // namespace simplescale::simulation
