// Plans the next generation: its nodes, the state that it begins with, and when it begins. Ends the
// run.
#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "actors/supervisor/decision/decider.hpp"
#include "runtime/base/words.hpp"

namespace simplescale::job {

namespace {
// Time for nodes that cannot reach this supervisor to vote against it (leadership.hpp).
constexpr int64_t vote_ms = 4'000;

/// Where the state of a generation comes from, as text for users.
std::string origin_of(const Join& join) {
  if (join.source == Source::initialize) return "initial values";
  return std::ranges::any_of(join.moves, &Move::peer) ? "peer copies" : to_string(join.source);
}
}  // namespace

std::vector<std::string> Decider::usable_nodes(bool with_training) const {
  std::vector<std::string> list;
  std::set<std::string_view> training;
  if (with_training)
    for (const auto& domain : s_.layout.domains) training.insert(domain.begin(), domain.end());
  for (const std::string& name : s_.node_order) {
    const NodeState state = s_.nodes.at(name).state;
    if (state != NodeState::up && !(s_.giving_up && state == NodeState::drained)) continue;
    if (node_is_idle(name) || training.contains(name)) list.push_back(name);
  }
  std::ranges::stable_sort(
      list, {}, [&](const std::string& name) { return s_.nodes.at(name).failures_ms.size(); });
  return list;
}

bool Decider::can_spare(const std::string& name) const {
  std::vector<std::string> others = usable_nodes(true);
  std::erase(others, name);
  return assign(s_.rules, s_.layout, others).domains.size() >=
         static_cast<size_t>(s_.rules.min_domains);
}

std::string Decider::missing_nodes() const {
  std::string text;
  for (const std::string& name : s_.node_order) {
    const Node& node = s_.nodes.at(name);
    if (node.state == NodeState::up && node_is_idle(name)) continue;
    text += (text.empty() ? "" : ", ") + name + " (" +
            (node.state == NodeState::up ? "its trainers are not up" : to_string(node.state)) +
            (node.reason.empty() ? "" : ": " + node.reason) + ")";
  }
  return text;
}

bool Decider::plan_waits() {
  if (!more_) {
    s_.plan_due_ms = -1;
    return false;
  }
  if (s_.plan_due_ms < 0) s_.plan_due_ms = now_;
  return now_ - s_.plan_due_ms <= plan_delay_max_ms;
}

void Decider::plan() {
  if (over() || plan_waits()) return;
  for (const auto& [name, trainer] : s_.trainers)
    if (trainer.state == TrainerState::draining) return;
  if (s_.saving.step > 0) return;
  if (any_in_generation()) return fence_if_newer_state_returned();
  begin_diagnosis();
  end_diagnosis();
  if (!s_.examined.empty() || s_.paused) return;
  suspect_nodes_without_checkpoint();
  if (waiting_for_disk() || may_be_cut_off()) return;
  const auto wanted = static_cast<size_t>(s_.rules.domains);
  const bool first = s_.layout.domains.empty();
  const std::vector<std::string> nodes = usable_nodes(false);
  if (!first)  // waiting for trainers that are being restarted is cheaper than a new layout
    for (const auto& domain : s_.layout.domains)
      for (const std::string& name : domain)
        if (s_.nodes.at(name).state == NodeState::up && !node_is_idle(name)) return;
  Layout next = assign(s_.rules, s_.layout, nodes);
  if (next.domains.size() < domains_needed() || next.domains.empty()) {
    if (s_.stop_requested) return save_from_memory();
    const bool hopeless = std::ranges::all_of(
        s_.nodes, [](const auto& n) { return n.second.state == NodeState::drained; });
    if (hopeless) {
      give_up(Code::gave_up, "every node is drained: " + missing_nodes());
      plan();  // drained nodes may save
    } else if (!awaiting_first_step()) {
      end_generation("nodes");
    }
    return;
  }
  if (first && next.domains.size() < wanted && !waited(s_.join_timeout_ms)) return;
  const Beginning beginning = newest_state();
  if (newer_may_come(beginning)) return;
  if (beginning.source == Source::initialize && s_.had_checkpoint)
    return shut_down(
        Code::bad_data,
        "No checkpoint can be used, and no memory holds a copy of every shard. The run "
        "does not begin again by itself: repair a checkpoint that events.jsonl names "
        "as skipped, or start a new run with --run=FOLDER");
  if (s_.giving_up && beginning.source != Source::memory) return end_without_copies();
  join(std::move(next), beginning);
}

std::vector<AvailableCopy> Decider::copies(uint64_t branch) const {
  std::vector<AvailableCopy> list;
  for (const std::string& name : s_.node_order) {
    const Node& node = s_.nodes.at(name);
    if (!is_here(node)) continue;
    std::string sender;  // the first idle trainer, or else the agent
    std::vector<PeerCopy> of_node = node.peer;
    for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot) {
      const std::string who = trainer_name(name, slot);
      const Trainer& trainer = s_.trainers.at(who);
      const bool idle = trainer.state == TrainerState::idle;
      if (idle && sender.empty()) sender = who;
      if (!idle && (trainer.state != TrainerState::down || trainer.generation != 0)) continue;
      for (const StateVersion& copy : trainer.held)
        if (!idle)
          of_node.push_back({trainer.shard, copy.step, copy.generation});
        else if (trusted(s_, copy.step, copy.generation, branch))
          list.push_back({who, trainer.shard, copy.step, false});
    }
    if (sender.empty() && !node.address.empty()) sender = name;
    if (sender.empty()) continue;
    for (const PeerCopy& copy : of_node)
      if (trusted(s_, copy.step, copy.generation, branch))
        list.push_back({sender, copy.shard, copy.step, true});
  }
  return list;
}

std::string Decider::describe_change(const Layout& before, const Layout& next) const {
  if (before.domains.empty()) return "enough nodes are up";
  if (next == before) return "the same nodes";
  auto one = [](const std::string& list) { return list.find(',') == std::string::npos; };
  std::string taken, given;
  for (const auto& domain : next.domains)
    for (const std::string& node : domain)
      if (!before.contains(node)) taken += (taken.empty() ? "" : ", ") + node;
  for (const auto& domain : before.domains)
    for (const std::string& node : domain)
      if (!next.contains(node)) given += (given.empty() ? "" : ", ") + node;
  const int per_domain = s_.rules.groups_per_domain();
  std::string text;
  if (!taken.empty() && !given.empty())
    text = taken + (one(taken) ? " takes" : " take") + " the place of " + given;
  else if (!taken.empty())
    text = taken + (one(taken) ? " joins" : " join");
  else
    text = given.empty() ? "the same nodes in another order" : "without " + given;
  if (next.domains.size() != before.domains.size())
    text += ": " + counted(static_cast<int64_t>(next.domains.size()) * per_domain, "group") +
            " instead of " +
            std::to_string(before.domains.size() * static_cast<size_t>(per_domain));
  return text;
}

void Decider::skip_checkpoint(uint64_t step, const std::string& reason) {
  if (!s_.has_checkpoint || s_.checkpoint_step != step) return;
  record("", "checkpoint_skipped", "step-" + number(step),
         reason + (s_.older_checkpoints.empty() ? "; there is no older checkpoint"
                                                : "; the next older checkpoint is used"));
  s_.has_checkpoint = !s_.older_checkpoints.empty();
  s_.checkpoint_step = s_.has_checkpoint ? s_.older_checkpoints.back() : 0;
  if (s_.has_checkpoint) s_.older_checkpoints.pop_back();
}

std::vector<std::string> Decider::nodes_without_checkpoint() const {
  std::vector<std::string> names;
  for (const auto& domain : s_.layout.domains)
    for (const std::string& name : domain)
      if (!all_of_node(name, [](const Trainer& t) { return !t.unreadable; })) names.push_back(name);
  return names;
}

void Decider::suspect_nodes_without_checkpoint() {
  const std::vector<std::string> without = nodes_without_checkpoint();
  if (without.empty()) return;
  const std::set<std::string_view> failed(without.begin(), without.end());
  const bool others_can = std::ranges::any_of(s_.nodes, [&](const auto& n) {
    return n.second.state == NodeState::up && s_.layout.contains(n.first) &&
           !failed.contains(n.first);
  });
  if (!others_can) return;
  for (const std::string& name : without) {
    for_each_trainer(name, [](Trainer& t) { t.unreadable = false; });
    record_failure(name);
    if (s_.nodes.at(name).state == NodeState::up)
      suspect_node(name, "it cannot read the checkpoint of step " + number(s_.joined_step));
  }
}

bool Decider::may_be_cut_off() const {
  size_t nodes = 0, lost = 0;
  for (const auto& domain : s_.layout.domains)
    for (const std::string& name : domain) {
      const Node& node = s_.nodes.at(name);
      ++nodes;
      lost += node.state == NodeState::lost && now_ - node.since_ms <= vote_ms;
    }
  return nodes > 1 && 2 * lost > nodes;
}

Decider::Beginning Decider::newest_state() const {
  Beginning b{.copies = copies(newest_branch)};
  if (s_.has_checkpoint) b.source = Source::checkpoint, b.step = s_.checkpoint_step;
  const auto step = newest_complete(b.copies, s_.rules.shards);
  if (step && *step >= b.step) b.source = Source::memory, b.step = *step;
  for (const uint64_t branch : left_branches()) {
    std::vector<AvailableCopy> older = copies(branch);
    if (const auto newer = newest_complete(older, s_.rules.shards); newer && *newer > b.step)
      b = {Source::memory, *newer, std::move(older), branch};
  }
  return b;
}

uint64_t Decider::newest_possible() const {
  if (s_.generation == 0) return 0;
  const uint64_t last = newest_joined(s_);
  uint64_t newest = UINT64_MAX;
  for (const auto& [name, trainer] : s_.trainers) {
    if (trainer.state != TrainerState::idle || trainer.generation != last) continue;
    uint64_t made = 0;
    for (const StateVersion& copy : trainer.held)
      if (trusted(s_, copy.step, copy.generation)) made = std::max(made, copy.step);
    newest = std::min(newest, made);
  }
  return std::max(newest, s_.committed_step);  // a copy of it may have been discarded
}

bool Decider::answers_missing(const Beginning& beginning) const {
  uint64_t last = newest_joined(s_);
  // A predecessor may have begun a generation, and died before it replicated the decision: then
  // only agents know of it.
  const bool of_predecessor = last > 0 && last <= s_.generation_floor;
  if (beginning.step >= newest_possible()) {
    if (!of_predecessor) return false;
    // An agent reports what its memory holds with its answer to the newest fence.
    last = s_.generation - 1;
  }
  return std::ranges::any_of(s_.nodes, [&](const auto& node) {
    return is_here(node.second) && node.second.answered <= last;
  });
}

void Decider::end_generation(std::string what) {
  use_next_number();
  s_.leaving = false;
  s_.phase = Phase::recovering;
  begin_wait(std::move(what));
  add_action(Fence{s_.generation, "the last generation has ended"});
}

bool Decider::memory_may_be_newer(const Beginning& beginning) const {
  std::vector<AvailableCopy> copies =
      beginning.branch == newest_branch ? beginning.copies : this->copies(newest_branch);
  std::set<uint64_t> steps = {s_.committed_step};
  for (const AvailableCopy& copy : copies) steps.insert(copy.step);
  const uint64_t newest = newest_joined(s_);
  for (const Place& place : places(s_.rules, s_.layout)) {
    const Trainer& trainer = s_.trainers.at(place.trainer);
    if (trainer.state != TrainerState::idle && trainer.generation == newest &&
        is_here(s_.nodes.at(node_of(place.trainer))))
      for (const uint64_t step : steps) copies.push_back({place.trainer, place.shard, step, false});
  }
  const auto newer = [&](uint64_t branch) {
    for (const auto& [name, node] : s_.nodes) {
      if (!is_here(node)) continue;
      for (const PeerCopy& copy : node.peer)
        if (trusted(s_, copy.step, copy.generation, branch))
          copies.push_back({name, copy.shard, copy.step, true});
      for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot) {
        const Trainer& trainer = s_.trainers.at(trainer_name(name, slot));
        for (const StateVersion& copy : trainer.held)
          if (trusted(s_, copy.step, copy.generation, branch))
            copies.push_back({name, trainer.shard, copy.step, false});
      }
    }
    return newest_complete(std::exchange(copies, {}), s_.rules.shards).value_or(0) > beginning.step;
  };
  return newer(newest_branch) || std::ranges::any_of(left_branches(), newer);
}

bool Decider::newer_may_come(const Beginning& beginning) {
  if (waited(s_.join_timeout_ms)) return false;
  if (answers_missing(beginning)) {
    if (s_.generation <= newest_joined(s_)) end_generation("agents to report their memory");
    return true;
  }
  // The memory of a node outlives its trainers: wait for the trainers while the node's agent
  // reports.
  return memory_may_be_newer(beginning) ||
         (s_.publishing.step > beginning.step &&
          trusted(s_, s_.publishing.step, s_.publishing.generation));
}

Join Decider::next_generation(const Beginning& beginning) {
  Join order{.source = beginning.source, .step = beginning.step};
  // GEN-2: a number is used once. Normally no generation has begun yet with the number of a fence.
  // If a predecessor made that fence, it may have begun that generation, too.
  if (s_.phase != Phase::recovering || s_.generation == 0 || s_.leaving ||
      s_.generation <= s_.generation_floor)
    use_next_number();
  order.generation = s_.generation;
  order.regained = beginning.branch != newest_branch;
  if (order.regained)
    revert_rollbacks(beginning.branch);
  else if (step_was_made())
    settle_rollbacks(s_);
  if (order.step < s_.committed_step)
    record("", "steps_undone", number(s_.committed_step - order.step),
           "no newer step has a copy of every shard left");
  if (order.regained && order.step > s_.committed_step)
    record("", "steps_regained", number(order.step - s_.committed_step),
           "a memory with step " + number(order.step) + " came back before a step was made again");
  s_.leaving = false;
  s_.joined_step = order.step;
  // If the step is read from a checkpoint, older copies of it are not needed and may differ.
  roll_back_from(order.source == Source::memory ? order.step + 1 : order.step);
  s_.committed_step = order.step;  // JOB-1: lower only if no newer step is complete
  s_.failed_checkpoint_reason.clear();
  return order;
}

void Decider::save_from_memory() {
  const Beginning beginning = newest_state();
  const std::string step = "step " + number(beginning.step);
  if (save_failed(s_.committed_step) && !waited(disk_retry_ms)) return;
  if (newer_may_come(beginning)) return;
  // The committed step that a new supervisor knows may be older than the step in memory.
  if (beginning.source != Source::memory || beginning.step <= saved_step()) {
    if (s_.committed_step <= saved_step())
      return end_giving_up("step " + number(s_.committed_step) + " is saved", true);
    if (waited(s_.join_timeout_ms)) end_without_copies();  // or else wait: a node may come back
    return;
  }
  if (beginning.step < s_.committed_step && !waited(s_.join_timeout_ms)) return;
  if (s_.publishing.step >= beginning.step && !waited(s_.save_timeout_ms)) return;
  Join order = next_generation(beginning);
  order.save_only = order.by_agents = true;
  for (uint32_t shard = 0; shard < static_cast<uint32_t>(s_.rules.shards); ++shard) {
    const auto copy = std::ranges::find_if(beginning.copies, [&](const AvailableCopy& c) {
      return c.shard == shard && c.step == order.step;
    });
    const bool agent = s_.nodes.contains(copy->source);
    order.moves.push_back(
        {shard, order.step, agent ? copy->source : node_of(copy->source), true, {}});
  }
  s_.saving = {order.step, order.generation};
  begin_wait("agents to save what their memory holds");
  set_reason("agents save " + step + " from their memory");
  record("", "saves_memory", "", decision_.reason + ": fewer nodes are left than a group has");
  add_action(std::move(order));
}

void Decider::join(Layout next, const Beginning& beginning) {
  const std::vector<Place> members = places(s_.rules, next);
  const bool ends = s_.stop_requested || beginning.step >= s_.max_steps;
  const bool save_only =
      s_.giving_up || (ends && save_failed(beginning.step) && beginning.source == Source::memory);
  const std::string what = describe_change(s_.layout, next);
  const bool changed = s_.phase == Phase::training || s_.leaving;
  Join order = next_generation(beginning);
  order.save_only = save_only;
  if (order.source == Source::memory)
    order.moves = moves_for(members, beginning.copies, order.step);
  s_.joined_from = origin_of(order);
  s_.previous_layout = std::exchange(s_.layout, std::move(next));
  for (const Place& place : members) {
    Trainer& trainer = s_.trainers.at(place.trainer);
    trainer.state = TrainerState::training;
    trainer.generation = order.generation;
    trainer.ready = trainer.unreadable = false;
    trainer.step = order.step;
  }
  if (s_.phase != Phase::starting) s_.phase = Phase::recovering;
  begin_wait("trainers to restore their state");
  set_reason(what + "; generation " + number(s_.generation) + " begins at step " +
             number(order.step) + " from " + s_.joined_from +
             (order.moves.empty()
                  ? ""
                  : ", " + counted(static_cast<int64_t>(order.moves.size()), "shard") +
                        (order.moves.size() == 1 ? " moves" : " move")));
  if (s_.incident) record("abort", "all_idle", "", "all trainers have left the last generation");
  record(s_.incident ? "decide" : "", changed ? "layout_changed" : "joined", "", decision_.reason);
  begin_rate(order.step);
  add_action(std::move(order));
  if (s_.stop_requested) add_action(StopAtStep{s_.exit_reason});
}

void Decider::begin_rate(uint64_t step) {
  Rates& rates = s_.rates;
  if (rates.requested < 0) return;
  // Remove changes of steps that were rolled back: they would replace the newer change when those
  // steps are made again.
  std::erase_if(rates.changes, [&](const RateChange& change) { return change.step > step; });
  rates.changes.push_back({step + 1, std::exchange(rates.requested, -1)});
  settle_rollbacks(s_);  // the abandoned branch had other rates: it must not become current
  record("", "learning_rate", "train.learning_rate",
         shortest(rates.changes.back().peak) + " from step " + number(step + 1) + " on");
}

void Decider::leave_to_grow() {
  if (over() || s_.phase != Phase::training || s_.leaving || s_.paused) return;
  if (s_.layout.domains.size() >= static_cast<size_t>(s_.rules.domains)) return;
  const Layout next = assign(s_.rules, s_.layout, usable_nodes(true));
  if (next.domains.size() > s_.layout.domains.size())
    leave_after_step("enough nodes are up for more groups");
}

bool Decider::last_save_failed() const {
  return save_failed(last_step()) && !(s_.has_checkpoint && s_.checkpoint_step == last_step());
}

void Decider::save_again() {
  --s_.cycles;  // the trainers have not failed
  fence("", "save_again", "step-" + number(last_step()), s_.failed_checkpoint_reason);
}

void Decider::finish_if_saved() {
  if (over() || !all_members_in(TrainerState::finished)) return;
  const uint64_t step = last_step();
  if (!s_.has_checkpoint || s_.checkpoint_step != step) {
    // The save may have failed before the last trainer reported that it has finished.
    if (save_failed(step))
      begin_wait("the disk: the last checkpoint could not be saved: " +
                 s_.failed_checkpoint_reason);
    return;
  }
  if (step >= s_.max_steps)
    shut_down(Code::ok, "trained " + number(step) + " steps", true);
  else if (s_.giving_up)
    end_giving_up("step " + number(step) + " was saved", true);
  else
    shut_down(s_.exit, s_.exit_reason + " at step " + number(step) + " of " + number(s_.max_steps));
}

}  // namespace simplescale::job
