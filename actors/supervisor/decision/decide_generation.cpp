// How a generation ends, and how the next one is planned and begins.
#include <algorithm>
#include <utility>

#include "actors/supervisor/decision/balance.hpp"
#include "actors/supervisor/decision/decider.hpp"
#include "actors/supervisor/decision/placement.hpp"
#include "actors/supervisor/decision/sentence.hpp"
#include "runtime/base/words.hpp"

namespace simplescale::job {

namespace {
constexpr int64_t join_window_ms = 5'000;  // after a node has joined, further nodes may follow

/// Where the state of a generation comes from, as text for users.
std::string origin_of(const Join& join) {
  if (join.source == Source::initialize) return "initial values";
  return std::ranges::any_of(join.moves, &Move::peer) ? "peer copies" : to_string(join.source);
}
}  // namespace

bool Decider::plan_waits() {
  if (!more_) {
    s_.plan_due_ms = -1;
    return false;
  }
  if (s_.plan_due_ms < 0) s_.plan_due_ms = now_;
  return now_ - s_.plan_due_ms <= plan_delay_max_ms;
}

bool Decider::waiting_for_disk() const {
  return !nodes_without_checkpoint(s_).empty() && !waited(disk_retry_ms);
}

void Decider::plan() {
  if (over() || plan_waits()) return;
  discard_bad_copies();
  for (const auto& [name, trainer] : s_.trainers)
    if (trainer.state == TrainerState::draining) return;
  if (s_.saving.step > 0) return;
  if (any_in_generation(s_)) return fence_if_newer_state_returned();
  note_lost_rollbacks(s_);
  begin_diagnosis();
  end_diagnosis();
  if (!s_.examined.empty() || s_.paused) return;
  suspect_nodes_without_checkpoint();
  if (waiting_for_disk() || may_be_cut_off(s_, now_)) return;
  const auto wanted = static_cast<size_t>(s_.rules.domains);
  const bool first = s_.layout.domains.empty();
  const std::vector<std::string> nodes = usable_nodes(s_, false);
  if (!first)  // waiting for trainers that are being restarted is cheaper than a new layout
    for (const auto& domain : s_.layout.domains)
      for (const std::string& name : domain)
        if (s_.nodes.at(name).state == NodeState::up && !node_is_idle(s_, name)) return;
  Layout next = next_layout(s_, nodes);
  if (size_waits(s_, next, waited(s_.join_timeout_ms)))
    next = assign(s_.rules, s_.rules.domain_nodes, s_.layout, nodes);
  if (next.domains.size() < domains_needed(s_) || next.domains.empty()) {
    if (s_.stop_requested) return save_from_memory();
    const bool hopeless = std::ranges::all_of(
        s_.nodes, [](const auto& n) { return n.second.state == NodeState::drained; });
    if (hopeless) {
      give_up(too_few_nodes(s_), "every node is drained: " + missing_nodes(s_));
      plan();  // drained nodes may save
    } else if (!awaiting_first_step(s_)) {
      end_generation("nodes");
    }
    return;
  }
  if (first && !waited(s_.join_timeout_ms) &&
      assign(s_.rules, s_.rules.domain_nodes, s_.layout, nodes).domains.size() < wanted)
    return;
  const Beginning beginning = newest_state(s_, s_.rules.cut_of(next));
  if (newer_may_come(beginning)) return;
  if (beginning.source == Source::initialize && s_.had_checkpoint)
    return shut_down(
        Code::bad_data,
        "No checkpoint can be used, and no memory holds a copy of every shard. The run "
        "does not begin again by itself: repair a checkpoint that events.jsonl names "
        "as skipped, or start a new run with --run=FOLDER");
  if (s_.giving_up && beginning.source != Source::memory) return end_without_copies();
  if (s_.instructions == InstructionSet::automatic) choose_instructions();
  for (const auto& domain : next.domains)
    for (const std::string& name : domain)
      if (lacks_instructions(s_, s_.nodes.at(name))) return plan();  // with the other nodes
  join(std::move(next), beginning);
}

bool Decider::newer_may_come(const Beginning& beginning) {
  if (waited(s_.join_timeout_ms)) return false;
  if (answers_missing(s_, beginning)) {
    if (s_.generation <= newest_joined(s_)) end_generation("agents to report their memory");
    return true;
  }
  // The memory of a node outlives its trainers: wait for the trainers while the node's agent
  // reports.
  return memory_may_be_newer(s_, beginning) ||
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
    revert_rollbacks(s_, beginning.branch);
  else if (step_was_made(s_))
    settle_rollbacks(s_);
  if (order.step < s_.committed_step)
    record("", "steps_undone", number(s_.committed_step - order.step),
           "no newer step has a copy of every shard left", s_.committed_step - order.step);
  if (order.regained && order.step > s_.committed_step)
    record("", "steps_regained", number(order.step - s_.committed_step),
           "a memory with step " + number(order.step) + " came back before a step was made again",
           order.step - s_.committed_step);
  s_.leaving = false;
  s_.counted_steps = 0;
  s_.joined_step = order.step;
  // If the step is read from a checkpoint, older copies of it are not needed and may differ.
  roll_back_from(s_, order.source == Source::memory ? order.step + 1 : order.step);
  s_.committed_step = order.step;  // JOB-1: lower only if no newer step is complete
  s_.failed_checkpoint_reason.clear();
  return order;
}

void Decider::join(Layout next, const Beginning& beginning) {
  const std::vector<Place> members = places(s_.rules, next);
  const bool ends = s_.stop_requested || beginning.step >= s_.max_steps;
  const bool save_only = s_.giving_up || (ends && save_failed(s_, beginning.step) &&
                                          beginning.source == Source::memory);
  const std::string what = describe_change(s_, s_.layout, next);
  const bool changed = s_.phase == Phase::training || s_.leaving;
  Join order = next_generation(beginning);
  order.save_only = save_only;
  if (order.source == Source::memory)
    order.moves =
        moves_for(members, s_.rules.cut_of(next), beginning.copies, {order.step, beginning.shards});
  s_.joined_from = origin_of(order);
  s_.previous_layout = std::exchange(s_.layout, std::move(next));
  share_leaves();
  for (const Place& place : members) {
    Trainer& trainer = s_.trainers.at(place.trainer);
    trainer.state = TrainerState::training;
    trainer.generation = order.generation;
    trainer.ready = trainer.unreadable = false;
    trainer.step = order.step;
  }
  if (s_.phase != Phase::starting) s_.phase = Phase::recovering;
  begin_wait("trainers to restore their state");
  const auto sent = std::ranges::count(order.moves, false, &Move::local);
  set_reason(what + "; generation " + number(s_.generation) + " begins at step " +
             number(order.step) + " from " + s_.joined_from +
             (sent == 0 ? "" : ", " + counted(sent, "shard") + (sent == 1 ? " moves" : " move")));
  if (s_.incident) record("abort", "all_idle", "", "all trainers have left the last generation");
  record(s_.incident ? "decide" : "", changed ? "layout_changed" : "joined", "", decision_.reason);
  begin_rate(order.step);
  add_action(std::move(order));
  if (s_.stop_requested) add_action(StopAtStep{s_.exit_reason});
}

void Decider::share_leaves() {
  std::vector<uint32_t> weights = weights_by_speed(s_);
  if (weights.empty() && s_.weights.empty()) return;
  const bool changed = weights != s_.weights;
  s_.weights = std::move(weights);
  if (changed) record("", "shares", "", why_shares(s_));
}

void Decider::end_generation(std::string what) {
  use_next_number();
  s_.leaving = false;
  s_.phase = Phase::recovering;
  begin_wait(std::move(what));
  add_action(Fence{s_.generation, "the last generation has ended"});
}

void Decider::fence(std::string phase, std::string kind, std::string subject, Reason reason) {
  const std::string what = subject.empty() ? reason.text : subject + ": " + reason.text;
  record(std::move(phase), kind, subject, reason);
  use_next_number();
  const int size = s_.rules.size_of(s_.layout);
  if (++s_.cycles >= 2 && size != s_.rules.domain_nodes) ++s_.failed_sizes[size];
  s_.leaving = false;
  for (auto& [name, trainer] : s_.trainers) {
    trainer.ready = false;
    if (in_generation(trainer)) trainer.state = TrainerState::draining;
  }
  s_.phase = Phase::recovering;
  begin_wait("all trainers to be idle");
  if (s_.cycles > s_.give_up_after_cycles)
    give_up(Code::gave_up, "The run gave up: " + counted(s_.cycles, "failure") +
                               " in a row without a committed step between them. The last: " +
                               what_failed(kind, subject, reason));
  if (over()) return;
  add_action(Fence{s_.generation, what});
  record("fence", kind, subject, "the next generation is " + number(s_.generation));
  set_reason("all trainers stop after " + what + "; the next generation is " +
             number(s_.generation));
}

void Decider::fence_if_newer_state_returned() {
  if (s_.rollbacks.empty() || !s_.rollbacks.back().tentative || s_.leaving) return;
  // A node that is lost and returns repeatedly must not stop the other nodes for ever.
  if (s_.newer_states > s_.max_restarts) return;
  for (const auto& [name, trainer] : s_.trainers)
    if (trainer.state == TrainerState::finished) return;
  // The nodes have not yet told a new supervisor which steps their trainers have made.
  for (const auto& [name, node] : s_.nodes)
    if (node.answered == 0 && is_here(node) && s_.layout.contains(name)) return;
  const Beginning newest = newest_state(s_);
  if (newest.branch == newest_branch || newest.step <= s_.joined_step) return;
  const auto copy = std::ranges::find_if(newest.copies, [&](const AvailableCopy& c) {
    return c.step == newest.step && c.shards == newest.shards;
  });
  ++s_.newer_states;
  // Charge neither this restart nor the node loss that it repairs to the budget.
  s_.cycles = std::max(s_.cycles - 2, -1);
  fence("detect", "newer_state", node_of(copy->source),
        "it holds step " + number(newest.step) + ", and generation " + number(s_.generation) +
            ", which began at step " + number(s_.joined_step) + ", has made no step");
}

void Decider::leave_after_step(std::string reason) {
  if (s_.leaving || s_.stop_requested || !all_members_in(s_, TrainerState::training)) return;
  s_.leaving = true;
  begin_wait("all trainers to leave");
  record("", "leaving", "generation " + number(s_.generation), reason);
  set_reason(reason);
  add_action(Leave{s_.generation, std::move(reason)});
}

void Decider::leave_to_grow() {
  if (over() || s_.phase != Phase::training || s_.leaving || s_.paused) return;
  const int size = s_.rules.size_of(s_.layout);
  const auto were = std::ssize(s_.layout.domains);
  const int most = s_.rules.domains_of(static_cast<size_t>(s_.rules.max_nodes), 1);  // nodes
  // Neither this size nor another one, which would have to train a tenth more nodes, can do better.
  if (size == s_.rules.domain_nodes && were >= s_.rules.most_domains() &&
      (s_.rules.domain_sizes.empty() || 10 * most < 11 * were * size))
    return;
  // Nodes that join within seconds begin one generation together.
  if (std::ranges::any_of(s_.nodes, [&](const auto& n) {
        return n.second.joins && now_ - n.second.since_ms < join_window_ms;
      }))
    return;
  const Layout next = next_layout(s_, usable_nodes(s_, true));
  const int next_size = s_.rules.size_of(next);
  const auto groups = std::ssize(next.domains);
  if (next_size == size) {
    if (groups > were) leave_after_step("enough nodes are up for more groups");
  } else if (groups >= static_cast<int64_t>(domains_needed(s_)) &&
             groups * next_size >= were * size) {
    leave_after_step("enough nodes are up for " + groups_instead(groups, next_size, were, size));
  }
}

}  // namespace simplescale::job
