#include "actors/job/decide.hpp"

#include <algorithm>

namespace simplescale::job {

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::starting:
      return "starting";
    case Phase::training:
      return "training";
    case Phase::recovering:
      return "recovering";
    case Phase::stopping:
      return "stopping";
    case Phase::finished:
      return "finished";
    case Phase::failed:
      return "failed";
  }
  return "?";
}

const char* to_string(Source source) {
  switch (source) {
    case Source::initialize:
      return "initialize";
    case Source::checkpoint:
      return "checkpoint";
    case Source::memory:
      return "memory";
  }
  return "?";
}

std::optional<uint64_t> newest_common_step(const State& state) {
  std::optional<uint64_t> newest;
  if (state.trainer_names.empty()) return newest;
  for (uint64_t step : state.trainers.at(state.trainer_names[0]).held) {
    const bool everywhere = std::ranges::all_of(state.trainer_names, [&](const std::string& name) {
      const auto& held = state.trainers.at(name).held;
      return std::ranges::find(held, step) != held.end();
    });
    if (everywhere && (!newest || step > *newest)) newest = step;
  }
  return newest;
}

namespace {

class Decider {
 public:
  Decider(int64_t now_ms, State& state) : now_(now_ms), s_(state) {}
  Decision take() { return std::move(decision_); }

  void operator()(const NodeUp& e) {
    if (!s_.nodes.contains(e.node) || over()) return;
    s_.nodes[e.node] = true;
    record("", "node_up", e.node, "");
  }

  // A node is not replaced yet: the run stops in a state that `train` resumes.
  void operator()(const NodeLost& e) {
    if (!s_.nodes.contains(e.node) || over()) return;
    s_.nodes[e.node] = false;
    record("detect", "node_lost", e.node, e.reason);
    shut_down(Code::requeue, "node " + e.node + " is lost: " + e.reason);
  }

  void operator()(const TrainerUp& e) {
    auto found = s_.trainers.find(e.trainer);
    if (found == s_.trainers.end() || over()) return;
    if (in_generation(found->second))
      fence("detect", "trainer_replaced", e.trainer, "a new process reports in its place");
    found->second = {TrainerState::idle, e.pid, e.address, e.held, 0};
    record("", "trainer_up", e.trainer, "");
    join_if_ready();
  }

  void operator()(const TrainerDown& e) {
    auto found = s_.trainers.find(e.trainer);
    if (found == s_.trainers.end() || over()) return;
    const bool in = in_generation(found->second);
    found->second.state = TrainerState::down;
    if (!e.restarting) {
      record("detect", "trainer_down", e.trainer, e.reason);
      shut_down(Code::gave_up, "trainer " + e.trainer + " failed too often: " + e.reason);
    } else if (in) {
      fence("detect", "trainer_down", e.trainer, e.reason);
    } else {
      record("detect", "trainer_down", e.trainer, e.reason);
    }
  }

  void operator()(const TrainerIdle& e) {
    auto found = s_.trainers.find(e.trainer);
    if (found == s_.trainers.end() || over()) return;
    Trainer& trainer = found->second;
    if (trainer.state == TrainerState::training && e.generation == s_.generation) {
      trainer.held = e.held;
      trainer.state = TrainerState::idle;
      fence("detect", "step_failed", e.trainer, e.reason);
    } else if (trainer.state == TrainerState::draining) {
      trainer.held = e.held;
      trainer.state = TrainerState::idle;
    } else {
      return;
    }
    join_if_ready();
  }

  void operator()(const StepCommitted& e) {
    if (e.generation != s_.generation || over()) return;  // S4
    s_.committed_step = std::max(s_.committed_step, e.step);
    s_.cycles = 0;
    if (s_.phase == Phase::recovering || s_.phase == Phase::starting) {
      if (s_.phase == Phase::recovering)
        record("resume", "committed", "", "step " + std::to_string(e.step));
      s_.phase = s_.stop_requested ? Phase::stopping : Phase::training;
    }
  }

  void operator()(const TrainerFinished& e) {
    auto found = s_.trainers.find(e.trainer);
    if (found == s_.trainers.end() || e.generation != s_.generation || over()) return;
    found->second.state = TrainerState::finished;
    found->second.step = e.step;
    wait("the last checkpoint");
    finish_if_saved();
  }

  void operator()(const CheckpointSaved& e) {
    if (over()) return;
    s_.checkpoint_step = std::max(s_.checkpoint_step.value_or(0), e.step);
    record("", "checkpoint_saved", "step-" + std::to_string(e.step), "");
    finish_if_saved();
  }

  void operator()(const CheckpointFailed& e) {
    if (over()) return;
    record("", "checkpoint_failed", "step-" + std::to_string(e.step), e.reason);
    if (all_in(TrainerState::finished) && s_.trainers.at(s_.trainer_names[0]).step == e.step)
      shut_down(Code::io, "the last checkpoint could not be saved: " + e.reason);
  }

  void operator()(const StopRequested& e) {
    if (over()) return;
    if (e.now) {
      shut_down(e.exit, e.reason);
    } else if (!s_.stop_requested) {
      s_.stop_requested = true;
      s_.exit = e.exit;
      s_.exit_reason = e.reason;
      record("", "stop_requested", "", e.reason);
      if (s_.phase == Phase::training) {
        s_.phase = Phase::stopping;
        wait("the step in progress");
      }
      if (joined()) decision_.actions.push_back(StopAtStep{e.reason});
    }
  }

  void operator()(const Tick&) {
    if (over()) return;
    const bool finishing = all_in(TrainerState::finished);
    const bool gathering = s_.phase == Phase::starting || s_.phase == Phase::recovering;
    const int64_t limit = finishing ? s_.save_timeout_ms : gathering ? s_.join_timeout_ms : 0;
    if (limit == 0 || now_ - s_.waiting_since_ms <= limit) return;
    shut_down(finishing ? Code::io : Code::gave_up, "waited " + std::to_string(limit) + " ms for " +
                                                        (finishing ? s_.waiting_for : missing()));
  }

 private:
  bool over() const { return s_.phase == Phase::finished || s_.phase == Phase::failed; }
  static bool in_generation(const Trainer& t) {
    return t.state == TrainerState::training || t.state == TrainerState::finished;
  }
  bool all_in(TrainerState state) const {
    return std::ranges::all_of(
        s_.trainer_names, [&](const auto& name) { return s_.trainers.at(name).state == state; });
  }
  bool joined() const {
    return std::ranges::all_of(
        s_.trainer_names, [&](const auto& name) { return in_generation(s_.trainers.at(name)); });
  }

  void record(std::string phase, std::string kind, std::string subject, std::string reason) {
    decision_.actions.push_back(
        Record{std::move(phase), std::move(kind), std::move(subject), std::move(reason)});
  }
  void because(std::string reason) { decision_.reason = std::move(reason); }
  void wait(std::string what) {
    s_.waiting_since_ms = now_;
    s_.waiting_for = std::move(what);
  }

  std::string missing() const {
    std::string text;
    for (const auto& name : s_.trainer_names) {
      const TrainerState state = s_.trainers.at(name).state;
      if (state != TrainerState::down && state != TrainerState::draining) continue;
      text += (text.empty() ? "" : ", ") + name +
              (state == TrainerState::down ? " (not up)" : " (does not answer)");
    }
    return text.empty() ? "the first step of generation " + std::to_string(s_.generation)
                        : "trainers " + text;
  }

  /// Ends the current generation for everybody in it.
  void fence(std::string phase, std::string kind, std::string subject, std::string reason) {
    record(std::move(phase), kind, subject, reason);
    ++s_.generation;
    ++s_.cycles;
    for (auto& [name, trainer] : s_.trainers)
      if (in_generation(trainer)) trainer.state = TrainerState::draining;
    s_.phase = Phase::recovering;
    wait("all trainers to be idle");
    if (s_.cycles > s_.give_up_after_cycles) {
      shut_down(Code::gave_up, std::to_string(s_.cycles) +
                                   " generations in a row without a committed step; the last: " +
                                   subject + ": " + reason);
      return;
    }
    decision_.actions.push_back(Fence{s_.generation, subject + ": " + reason});
    record("fence", kind, subject, "generation " + std::to_string(s_.generation));
    because("fence generation " + std::to_string(s_.generation) + ", since " + subject + ": " +
            reason);
  }

  void join_if_ready() {
    if (over() || !all_in(TrainerState::idle)) return;
    Source source = Source::initialize;
    uint64_t step = 0;
    if (s_.checkpoint_step) source = Source::checkpoint, step = *s_.checkpoint_step;
    if (const auto held = newest_common_step(s_); held && *held >= step)
      source = Source::memory, step = *held;
    if (s_.phase == Phase::starting) ++s_.generation;  // else fence() has done it
    s_.joined_step = step;
    s_.committed_step =
        step;  // S1: lower than before only if no complete copy of a newer one is left
    for (auto& [name, trainer] : s_.trainers) trainer.state = TrainerState::training;
    wait("the first step");
    decision_.actions.push_back(Join{s_.generation, source, step});
    because("generation " + std::to_string(s_.generation) + " begins at step " +
            std::to_string(step) + " from " + to_string(source));
    record(s_.phase == Phase::recovering ? "heal" : "", "joined", "", decision_.reason);
    if (s_.stop_requested) decision_.actions.push_back(StopAtStep{s_.exit_reason});
  }

  void finish_if_saved() {
    if (over() || !all_in(TrainerState::finished)) return;
    const uint64_t step = s_.trainers.at(s_.trainer_names[0]).step;
    if (s_.checkpoint_step.value_or(UINT64_MAX) != step) return;
    if (step >= s_.max_steps) {
      shut_down(Code::ok, "trained " + std::to_string(step) + " steps");
    } else {
      shut_down(s_.exit, s_.exit_reason);
    }
  }

  void shut_down(Code exit, std::string reason) {
    const bool good = exit == Code::ok || exit == Code::requeue;
    s_.phase = good ? Phase::finished : Phase::failed;
    record("", good ? "finished" : "failed", "", reason);
    because(reason);
    decision_.actions.push_back(Shutdown{exit, std::move(reason)});
  }

  int64_t now_;
  State& s_;
  Decision decision_;
};

}  // namespace

Decision decide(int64_t now_ms, State& state, const Event& event) {
  Decider decider(now_ms, state);
  std::visit(decider, event);
  return decider.take();
}

}  // namespace simplescale::job
