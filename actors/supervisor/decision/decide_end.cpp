// The end of a run: it saves what only memory holds, and shuts down.
#include <algorithm>
#include <utility>

#include "actors/supervisor/decision/decider.hpp"
#include "actors/supervisor/decision/placement.hpp"

namespace simplescale::job {

namespace {
/// "; to go on without …" for users, if a value was not finite; else "".
std::string advice(const State& s) {
  if (s.bad_samples.empty()) return "";
  return "; if these samples are the cause, `resume` goes on without them: --skip-samples=" +
         s.bad_samples;
}
}  // namespace

void Decider::give_up(Code exit, std::string reason) {
  const std::string step = "step " + number(s_.committed_step);
  if (s_.giving_up) return end_giving_up(step + " could not be saved: " + reason, false);
  if (std::max(s_.committed_step, newest_state(s_).step) <= saved_step(s_))
    return shut_down(exit, reason + advice(s_));
  s_.giving_up = s_.stop_requested = true;
  s_.unrecorded_stop = false;
  s_.giving_up_since_ms = now_;
  s_.cycles = 0;  // as many failures end the tries to save
  s_.paused = false;
  s_.to_examine.clear();
  s_.exit = exit;
  s_.exit_reason = std::move(reason);
  record("", "gives_up", "", s_.exit_reason + "; " + step + " is saved first");
}

void Decider::end_giving_up(const std::string& outcome, bool saved) {
  if (!saved && s_.exit == Code::ok) s_.exit = Code::io;  // a user has stopped the run
  shut_down(s_.exit, s_.exit_reason + "; " + outcome + advice(s_));
}

void Decider::end_without_copies() {
  const std::string missing = missing_nodes(s_);
  end_giving_up("step " + number(s_.committed_step) +
                    " could not be saved: no memory holds a copy of every shard" +
                    (missing.empty() ? "" : "; missing: " + missing),
                false);
}

void Decider::save_from_memory() {
  const Beginning beginning = newest_state(s_);
  const std::string step = "step " + number(beginning.step);
  if (save_failed(s_, s_.committed_step) && !waited(disk_retry_ms)) return;
  if (newer_may_come(beginning)) return;
  // The committed step that a new supervisor knows may be older than the step in memory.
  if (beginning.source != Source::memory || beginning.step <= saved_step(s_)) {
    if (s_.committed_step <= saved_step(s_))
      return end_giving_up("step " + number(s_.committed_step) + " is saved", true);
    if (waited(s_.join_timeout_ms)) end_without_copies();  // or else wait: a node may come back
    return;
  }
  if (beginning.step < s_.committed_step && !waited(s_.join_timeout_ms)) return;
  if (s_.publishing.step >= beginning.step && !waited(s_.save_timeout_ms)) return;
  Join order = next_generation(beginning);
  order.save_only = order.by_agents = true;
  for (uint32_t shard = 0; shard < beginning.shards; ++shard) {
    const auto copy = std::ranges::find_if(beginning.copies, [&](const AvailableCopy& c) {
      return c.shard == shard && c.step == order.step && c.shards == beginning.shards;
    });
    const bool agent = s_.nodes.contains(copy->source);
    order.moves.push_back({shard,
                           order.step,
                           agent ? copy->source : node_of(copy->source),
                           true,
                           {},
                           beginning.shards});
  }
  s_.saving = {order.step, order.generation};
  begin_wait("agents to save what their memory holds");
  set_reason("agents save " + step + " from their memory");
  record("", "saves_memory", "", decision_.reason + ": fewer nodes are left than a group has");
  add_action(std::move(order));
}

void Decider::save_again() {
  --s_.cycles;  // the trainers have not failed
  fence("", "save_again", "step-" + number(last_step(s_)), s_.failed_checkpoint_reason);
}

void Decider::finish_if_saved() {
  if (over() || !all_members_in(s_, TrainerState::finished)) return;
  const uint64_t step = last_step(s_);
  if (!s_.has_checkpoint || s_.checkpoint_step != step) {
    // The save may have failed before the last trainer reported that it has finished.
    if (save_failed(s_, step))
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

void Decider::shut_down(Code exit, std::string reason, bool all_steps) {
  if (over()) return;
  const bool good = exit == Code::ok || exit == Code::requeue;
  s_.phase = !good ? Phase::failed : all_steps ? Phase::finished : Phase::stopped;
  record("", to_string(s_.phase), "", reason);
  set_reason(reason);
  add_action(Shutdown{exit, std::move(reason)});
}

}  // namespace simplescale::job
