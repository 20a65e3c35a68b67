// decide(), and what happens when time passes. The other events: decide_nodes.cpp (membership),
// decide_trainers.cpp, decide_progress.cpp, decide_requests.cpp; what they lead to:
// decide_generation.cpp and decide_end.cpp.
#include "actors/supervisor/decision/decide.hpp"

#include <algorithm>
#include <utility>

#include "actors/supervisor/decision/decider.hpp"
#include "actors/supervisor/decision/placement.hpp"
#include "actors/supervisor/decision/restart_budget.hpp"

namespace simplescale::job {

namespace {
constexpr int64_t first_step_factor = 30;  // a first step may take this many times join_timeout_ms
}  // namespace

void Decider::record(std::string phase, std::string kind, std::string subject, Reason reason,
                     uint64_t count) {
  if (phase == "detect") s_.incident = true;
  add_action(
      Record{std::move(phase), std::move(kind), std::move(subject), std::move(reason), count});
}

void Decider::begin_wait(std::string what) {
  s_.waiting_since_ms = now_;
  s_.waiting_for = std::move(what);
}

void Decider::operator()(const Tick&) {
  if ((s_.giving_up && now_ - s_.giving_up_since_ms > s_.save_timeout_ms) ||
      (s_.saving.step > 0 && waited(s_.save_timeout_ms)))
    return end_giving_up("step " + number(s_.committed_step) + " could not be saved within " +
                             milliseconds(s_.save_timeout_ms),
                         false);
  kill_trainers_ignoring_fence();
  suspect_nodes_missing_trainers();
  drain_nodes_with_hung_checks();
  if (all_members_in(s_, TrainerState::finished)) {
    if (last_save_failed(s_)) {
      if (waited(disk_retry_ms)) save_again();
    } else if (waited(s_.save_timeout_ms))
      shut_down(Code::io, "waited " + milliseconds(s_.save_timeout_ms) + " for " + s_.waiting_for);
    return;
  }
  // Steps may be long. A trainer's node checks whether the trainer makes progress.
  const bool ready = all_members(s_, [](const Trainer& t) { return t.ready; });
  if (awaiting_first_step(s_) && all_in_generation(s_) &&
      waited(ready ? first_step_factor * s_.join_timeout_ms : s_.join_timeout_ms)) {
    std::string late;
    for (const Place& p : places(s_.rules, s_.layout))
      if (!s_.trainers.at(p.trainer).ready) {
        late += (late.empty() ? "" : ", ") + p.trainer;
        add_action(KillTrainer{p.trainer, {"it did not restore its state in time"}});
      }
    fence("detect", "no_first_step", late,
          "generation " + number(s_.generation) + " committed no step in time");
  }
  plan();
  leave_to_grow();
  if (over() || s_.stop_requested || s_.paused || !s_.examined.empty() ||
      !awaiting_first_step(s_) || all_in_generation(s_) || !waited(s_.join_timeout_ms))
    return;
  give_up(too_few_nodes(s_), "There were not enough nodes for " + groups_needed(s_) + " within " +
                                 milliseconds(s_.join_timeout_ms) +
                                 "; missing: " + missing_nodes(s_));
  plan();  // fewer nodes suffice to save
}

Decision decide(int64_t now_ms, State& state, const Event& event, bool more) {
  Decider decider(now_ms, state, more);
  if (!decider.over()) std::visit(decider, event);
  decider.end_event();
  end_causes(state);
  return decider.take();
}

}  // namespace simplescale::job
