// What users ask for: to stop, to pause, to change settings.
#include <algorithm>
#include <utility>

#include "actors/supervisor/decision/decider.hpp"
#include "actors/supervisor/decision/rollback.hpp"

namespace simplescale::job {

void Decider::operator()(const StopRequested& e) {
  if (e.now)
    shut_down(e.exit, e.reason);
  else if (!s_.stop_requested || s_.unrecorded_stop)
    request_stop(e, true);
}

void Decider::request_stop(const StopRequested& e, bool recorded) {
  s_.unrecorded_stop = !recorded;
  s_.stop_requested = true;
  s_.paused = false;
  s_.to_examine.clear();
  s_.exit = e.exit;
  s_.exit_reason = e.reason;
  record("", "stop_requested", "", e.reason);
  // No state exists yet that could be saved.
  if (s_.phase == Phase::starting && s_.generation == 0)
    return shut_down(e.exit, e.reason + " before the first step");
  if (s_.phase == Phase::training) {
    s_.phase = Phase::stopping;
    begin_wait("the step in progress");
  }
  if (all_in_generation(s_) && !s_.leaving) add_action(StopAtStep{e.reason});
  plan();
}

void Decider::operator()(const PauseRequested& e) {
  if (s_.stop_requested) return set_reason("the run is being stopped");
  if (s_.paused == e.pause)
    return set_reason(e.pause ? "the run is already paused" : "the run is not paused");
  s_.paused = e.pause;
  record("", e.pause ? "paused" : "resumed", "", e.who);
  if (e.pause && all_in_generation(s_)) leave_after_step("paused by " + e.who);
  if (!e.pause && !any_in_generation(s_)) begin_wait("nodes");
  plan();
}

void Decider::request_rate(const SetRequested& e) {
  if (std::string why = rate_refused(s_, e.value); !why.empty()) return set_reason(std::move(why));
  s_.rates.requested = e.value;
  record("", "set", e.key, shortest(e.value) + " by " + e.who);
  if (all_in_generation(s_)) leave_after_step(e.key + " is changed by " + e.who);
  plan();
  set_reason(e.key + " = " + shortest(e.value) + " from the next step on");
}

void Decider::operator()(const SetRequested& e) {
  if (e.key == "train.learning_rate") return request_rate(e);
  const int64_t per_domain = s_.rules.groups_per_domain();
  const int64_t least = e.key == "supervision.max_restarts" ? 0 : 1;
  if (!(e.value >= static_cast<double>(least) && e.value <= 1e9))
    return set_reason(e.key + " must be at least " + std::to_string(least));
  const auto value = static_cast<int64_t>(e.value);
  const auto count = static_cast<int>(std::min<int64_t>(value, 1'000'000));
  if (e.key == "supervision.max_restarts")
    s_.max_restarts = count;
  else if (e.key == "supervision.within_s")
    s_.within_ms = value * 1000;
  else if (e.key == "supervision.give_up_after_cycles")
    s_.give_up_after_cycles = count;
  else if (e.key == "cluster.join_timeout_ms")
    s_.join_timeout_ms = value;
  else if (e.key != "cluster.min_groups")
    return set_reason(e.key + " cannot be changed during the run");
  else if (const int64_t most = s_.rules.most_domains() * per_domain; value > most)
    return set_reason(e.key + " must be at most " + std::to_string(most) +
                      ", the number of groups");
  else
    s_.rules.min_domains = static_cast<int>((value + per_domain - 1) / per_domain);
  record("", "set", e.key, std::to_string(value) + " by " + e.who);
  set_reason(e.key + " = " + std::to_string(value));
  plan();
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

}  // namespace simplescale::job
