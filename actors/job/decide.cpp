#include "actors/job/decide.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/base/words.hpp"

namespace simplescale::job {

const char* to_string(NodeState state) {
  switch (state) {
    case NodeState::absent:
      return "absent";
    case NodeState::up:
      return "up";
    case NodeState::suspect:
      return "suspect";
    case NodeState::drained:
      return "drained";
    case NodeState::lost:
      return "lost";
  }
  return "?";
}

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

State make_state(const LayoutRules& rules, const std::vector<std::string>& nodes) {
  State state;
  state.rules = rules;
  state.node_order = nodes;
  for (const std::string& node : nodes) {
    state.nodes[node];
    for (int slot = 0; slot < rules.trainers_per_node; ++slot)
      state.trainers[trainer_name(node, slot)];
  }
  return state;
}

namespace {

constexpr size_t kOlderCheckpoints = 64;  // that are remembered
constexpr int64_t kDiskAgainMs = 5'000;   // between two tries of a checkpoint that nobody can read

std::string number(uint64_t n) {
  return std::to_string(n);
}

class Decider {
 public:
  Decider(int64_t now_ms, State& state) : now_(now_ms), s_(state) {}
  Decision take() { return std::move(decision_); }
  bool over() const { return s_.phase == Phase::finished || s_.phase == Phase::failed; }

  // --- Nodes ---

  void operator()(const NodeUp& e) {
    Node* node = find_node(e.node);
    if (!node) return;
    const bool known = node->state != NodeState::absent && node->state != NodeState::lost;
    if (known && node->pid == e.pid) {  // it presents itself to a new supervisor
      if (node->checking) act(CheckNode{e.node, node->reason});  // perhaps not told by the last
      return;
    }
    if (known) lose(e.node, "its agent has started anew");
    const bool returns = node->state == NodeState::lost;
    node->pid = e.pid;
    node->peer.clear();
    record("", "node_up", e.node, returns ? "it came back" : "");
    if (returns)
      suspect(e.node, "it was lost before");
    else
      set(e.node, NodeState::up, "");
    plan();
  }

  void operator()(const NodeLost& e) {
    Node* node = find_node(e.node);
    if (!node || node->state == NodeState::absent || node->state == NodeState::lost) return;
    lose(e.node, e.reason);
    plan();
  }

  void operator()(const NodeChecked& e) {
    Node* node = find_node(e.node);
    if (!node || !node->checking) return;
    node->checking = false;
    record("", e.ok ? "check_passed" : "check_failed", e.node, e.reason);
    if (node->state != NodeState::suspect) return;
    if (e.ok) {
      set(e.node, NodeState::up, "");
      budget(e.node);  // it may have failed on while it was suspect
    } else {
      drain(e.node, "it failed its diagnosis: " + e.reason);
    }
    plan();
  }

  void operator()(const DrainRequested& e) {
    Node* node = find_node(e.node);
    if (!node) {
      because("there is no node " + e.node);
    } else if (e.drain && !spared(e.node)) {
      because("without " + e.node + " there would be fewer than " +
              std::to_string(s_.rules.min_cells * s_.rules.groups_per_cell()) + " groups");
    } else if (e.drain && node->state != NodeState::drained) {
      drain(e.node, e.reason);
      if (s_.layout.contains(e.node)) leave("node " + e.node + " is drained");
    } else if (!e.drain && node->state == NodeState::drained) {
      node->failures_ms.clear();
      node->checking = false;
      record("", "undrained", e.node, e.reason);
      set(e.node, NodeState::up, "");
    }
    plan();
  }

  void operator()(const PeerCopies& e) {
    if (Node* node = find_node(e.node)) node->peer = e.copies;
  }

  // --- Trainers ---

  void operator()(const TrainerUp& e) {
    Trainer* trainer = find_trainer(e.trainer);
    if (!trainer) return;
    if (e.generation != 0 && e.generation == s_.generation && in_generation(*trainer)) {
      trainer->pid = e.pid;  // adopted by a supervisor that took over
      trainer->address = e.address;
      trainer->held = e.held;
      return;
    }
    const bool replaced = in_generation(*trainer);
    // The same process may just not have got the order to join when it said this.
    const bool told =
        trainer->pid == e.pid && (replaced || trainer->state == TrainerState::draining);
    *trainer = {.state = TrainerState::idle,
                .pid = e.pid,
                .address = e.address,
                .shard = e.shard,
                .held = e.held,
                .generation = told ? trainer->generation : e.generation,
                .doubted = std::move(trainer->doubted)};
    if (e.generation >= std::max<uint64_t>(s_.generation, 1)) {  // unknown to this supervisor
      s_.generation = e.generation;
      trainer->state = TrainerState::training;
      fence("detect", "unknown_generation", e.trainer,
            "it trains in generation " + number(e.generation));
    } else {
      // In an older one: it has been told to leave, or is about to be.
      if (e.generation != 0 || told) trainer->state = TrainerState::draining;
      if (replaced)
        fence("detect", "trainer_replaced", e.trainer, "it is not in the current generation");
    }
    record("", "trainer_up", e.trainer, "");
    if (all_idle(node_of(e.trainer))) plan();  // else nothing new can be planned
  }

  void operator()(const TrainerDown& e) {
    Trainer* trainer = find_trainer(e.trainer);
    if (!trainer) return;
    if (trainer->state == TrainerState::down) {  // known already; now it is known how it ended
      record("", "trainer_ended", e.trainer, e.reason);
      return;
    }
    const bool in = in_generation(*trainer);
    trainer->state = TrainerState::down;
    fail(node_of(e.trainer));
    if (in)
      fence("detect", "trainer_down", e.trainer, e.reason);
    else
      record(gathering() ? "detect" : "", "trainer_down", e.trainer, e.reason);
    if (!e.restarting) drain(node_of(e.trainer), e.reason);
    budget(node_of(e.trainer));
    plan();
  }

  void operator()(const TrainerIdle& e) {
    Trainer* trainer = find_trainer(e.trainer);
    if (!trainer) return;
    const bool current = trainer->state == TrainerState::training && e.generation == s_.generation;
    // S4: stale is what is older than what it was in, or was told before the last fence.
    const bool answers =
        (trainer->state == TrainerState::draining && e.generation >= trainer->generation) ||
        (trainer->state == TrainerState::idle && e.generation + 1 >= s_.generation);
    if (!current && !answers) return;
    trainer->shard = e.shard;
    trainer->held = e.held;
    if (trainer->state == TrainerState::idle) {  // has helped others to their state
      plan();
      return;
    }
    trainer->state = TrainerState::idle;
    if (e.fault == Fault::mismatch && e.step > 0) doubt(e.step, e.generation);
    if (e.fault == Fault::bad_checkpoint) skip_checkpoint(e.step, e.reason);
    if (e.fault == Fault::bad_disk) {
      trainer->unreadable = true;
      if (!current) record("", "bad_disk", e.trainer, e.reason);
    }
    if (e.fault == Fault::bad_copy) {
      strike(e.suspect, e.step);
      if (!current) record("", "bad_copy", e.suspect, e.reason);
    }
    if (current && !(s_.leaving && e.fault == Fault::none)) {
      static const char* kinds[] = {"left",     "step_failed",    "non_finite", "mismatch",
                                    "bad_copy", "bad_checkpoint", "bad_disk"};
      if (!e.suspect.empty()) fail(node_of(e.suspect));
      fence("detect", kinds[static_cast<int>(e.fault)], e.suspect.empty() ? e.trainer : e.suspect,
            e.reason);
    }
    plan();
  }

  void operator()(const TrainerReady& e) {
    Trainer* trainer = find_trainer(e.trainer);
    if (!trainer) return;
    // It holds what its generation began with, and what it made since.
    if (e.generation == trainer->generation)
      std::erase_if(trainer->doubted, [&](const Doubt& d) { return d.generation < e.generation; });
    if (e.generation != s_.generation) return;
    trainer->ready = true;
    if (s_.incident && all_members([](const Trainer& t) { return t.ready; }))
      record("heal", "state_restored", "", "step " + number(s_.joined_step));
  }

  void operator()(const Suspected& e) {
    Trainer* trainer = find_trainer(e.trainer);
    if (!trainer) return;
    const std::string node = node_of(e.trainer);
    record("", "suspected", e.trainer, e.reason);
    if (s_.nodes.at(node).state != NodeState::up) return;
    suspect(node, e.reason);
    if (s_.layout.contains(node)) leave(e.trainer + " is suspected: " + e.reason);
    plan();
  }

  // --- Progress ---

  void operator()(const StepCommitted& e) {
    if (e.generation != s_.generation) return;  // S4
    s_.committed_step = std::max(s_.committed_step, e.step);
    s_.cycles = 0;
    for (auto& [name, node] : s_.nodes)
      if (!node.failures_ms.empty() && s_.layout.contains(name) &&
          s_.committed_step >= node.failed_at_step + s_.budget_steps)
        node.failures_ms.clear();
    if (s_.phase == Phase::recovering || s_.phase == Phase::starting) {
      if (s_.incident) record("resume", "committed", "", "step " + number(e.step));
      s_.incident = false;
      s_.phase = s_.stop_requested ? Phase::stopping : Phase::training;
    }
  }

  void operator()(const TrainerFinished& e) {
    Trainer* trainer = find_trainer(e.trainer);
    if (!trainer || e.generation != s_.generation || !in_generation(*trainer)) return;
    trainer->state = TrainerState::finished;
    trainer->step = e.step;
    wait("the last checkpoint");
    finish_if_saved();
  }

  void operator()(const CheckpointSaved& e) {
    if (!s_.has_checkpoint || e.step > s_.checkpoint_step) {
      if (s_.has_checkpoint) s_.older_checkpoints.push_back(s_.checkpoint_step);
      if (s_.older_checkpoints.size() > kOlderCheckpoints)
        s_.older_checkpoints.erase(s_.older_checkpoints.begin());
      s_.checkpoint_step = e.step;
      s_.has_checkpoint = true;
    }
    record("", "checkpoint_saved", "step-" + number(e.step), "");
    finish_if_saved();
  }

  void operator()(const CheckpointFailed& e) {
    record("", "checkpoint_failed", "step-" + number(e.step), e.reason);
    s_.failed_checkpoint = e.step;
    s_.failed_checkpoint_reason = e.reason;
    finish_if_saved();
  }

  // --- Wishes ---

  void operator()(const StopRequested& e) {
    if (e.now) {
      shut_down(e.exit, e.reason);
    } else if (!s_.stop_requested) {
      s_.stop_requested = true;
      s_.paused = false;
      s_.to_examine.clear();
      s_.exit = e.exit;
      s_.exit_reason = e.reason;
      record("", "stop_requested", "", e.reason);
      // Nothing has been made yet that could be saved.
      if (s_.phase == Phase::starting && s_.generation == 0) return shut_down(e.exit, e.reason);
      if (s_.phase == Phase::training) {
        s_.phase = Phase::stopping;
        wait("the step in progress");
      }
      if (all_in_generation() && !s_.leaving) act(StopAtStep{e.reason});
      plan();
    }
  }

  void operator()(const PauseRequested& e) {
    if (s_.stop_requested) return because("the run is being stopped");
    if (s_.paused == e.pause) return because(e.pause ? "it is paused" : "it is not paused");
    s_.paused = e.pause;
    record("", e.pause ? "paused" : "resumed", "", e.who);
    if (e.pause && all_in_generation()) leave("paused by " + e.who);
    plan();
  }

  void operator()(const DiagnoseRequested& e) {
    if (s_.stop_requested) return because("the run is being stopped");
    if (diagnosing(s_)) return because("a diagnosis is under way");
    for (const std::string& name : e.nodes)
      if (const Node* node = find_node(name); node && node->state == NodeState::up)
        s_.to_examine.push_back(name);
    if (s_.to_examine.empty()) return because("none of these nodes is up");
    record("", "diagnosis", joined(s_.to_examine), e.who);
    if (all_in_generation()) leave("a diagnosis, asked for by " + e.who);
    plan();
    because("a diagnosis of " + joined(e.nodes));
  }

  void operator()(const SetRequested& e) {
    const int64_t per_cell = s_.rules.groups_per_cell();
    const int64_t least = e.key == "supervision.max_restarts" ? 0 : 1;
    if (e.value < least || e.value > 1'000'000'000)
      return because(e.key + " must be at least " + std::to_string(least));
    const auto count = static_cast<int>(std::min<int64_t>(e.value, 1'000'000));
    if (e.key == "supervision.max_restarts")
      s_.max_restarts = count;
    else if (e.key == "supervision.within_s")
      s_.within_ms = e.value * 1000;
    else if (e.key == "supervision.give_up_after_cycles")
      s_.give_up_after_cycles = count;
    else if (e.key == "cluster.join_timeout_ms")
      s_.join_timeout_ms = e.value;
    else if (e.key != "cluster.min_groups")
      return because(e.key + " cannot change in flight");
    else if (e.value > s_.rules.cells * per_cell)
      return because("there are " + std::to_string(s_.rules.cells * per_cell) + " groups");
    else
      s_.rules.min_cells = static_cast<int>((e.value + per_cell - 1) / per_cell);
    record("", "set", e.key, std::to_string(e.value) + " by " + e.who);
    because(e.key + " = " + std::to_string(e.value));
    plan();
  }

  void operator()(const Tick&) {
    end_fence();
    give_up_on_restarts();
    give_up_on_checks();
    if (all_in(TrainerState::finished)) {
      if (waited(s_.save_timeout_ms))
        shut_down(Code::io, "waited " + number(static_cast<uint64_t>(s_.save_timeout_ms)) +
                                " ms for " + s_.waiting_for);
      return;
    }
    if (gathering() && all_in_generation() && waited(s_.join_timeout_ms)) {
      std::string late;
      for (const Place& p : places(s_.rules, s_.layout))
        if (!s_.trainers.at(p.trainer).ready) {
          late += (late.empty() ? "" : ", ") + p.trainer;
          act(KillTrainer{p.trainer, "it has not restored its state"});
        }
      fence("detect", "no_first_step", late, "no step of generation " + number(s_.generation));
    }
    plan();
    grow();
    if (over() || s_.paused || !s_.examined.empty() || !gathering() || all_in_generation() ||
        !waited(s_.join_timeout_ms))
      return;
    const bool drained = std::ranges::any_of(
        s_.nodes, [](const auto& n) { return n.second.state == NodeState::drained; });
    shut_down(
        drained ? Code::gave_up : Code::requeue,
        "waited " + number(static_cast<uint64_t>(s_.join_timeout_ms)) + " ms for " + missing());
  }

 private:
  // --- Facts ---

  Node* find_node(const std::string& name) {
    auto found = s_.nodes.find(name);
    return found == s_.nodes.end() || over() ? nullptr : &found->second;
  }
  Trainer* find_trainer(const std::string& name) {
    auto found = s_.trainers.find(name);
    return found == s_.trainers.end() || over() ? nullptr : &found->second;
  }
  /// Faults of a generation before it have been dealt with.
  uint64_t newest_joined() const {
    uint64_t newest = 0;
    for (const auto& [name, trainer] : s_.trainers) newest = std::max(newest, trainer.generation);
    return newest;
  }
  static bool in_generation(const Trainer& t) {
    return t.state == TrainerState::training || t.state == TrainerState::finished;
  }
  bool gathering() const { return s_.phase == Phase::starting || s_.phase == Phase::recovering; }
  bool waited(int64_t limit_ms) const { return now_ - s_.waiting_since_ms > limit_ms; }
  /// Whether all trainers of a node are so; stops at the first that is not. They are neighbours in
  /// the map, since "." sorts before any digit.
  template <class F>
  bool all_of_node(const std::string& node, F&& is_so) const {
    auto next = s_.trainers.lower_bound(node + ".");
    for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot, ++next)
      if (!is_so(next->second)) return false;
    return true;
  }
  /// The same for all trainers of the layout; false if there is none.
  template <class F>
  bool all_members(F&& are_so) const {
    for (const auto& cell : s_.layout.cells)
      for (const std::string& node : cell)
        if (!all_of_node(node, are_so)) return false;
    return !s_.layout.cells.empty();
  }
  bool all_in(TrainerState state) const {
    return all_members([&](const Trainer& t) { return t.state == state; });
  }
  bool all_in_generation() const { return all_members(in_generation); }
  uint64_t last_step() const {
    return s_.trainers.at(trainer_name(s_.layout.cells.front().front(), 0)).step;
  }
  template <class F>
  void each_trainer(const std::string& node, F&& f) {
    auto next = s_.trainers.lower_bound(node + ".");
    for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot, ++next) f(next->second);
  }
  bool all_idle(const std::string& node) const {
    return all_of_node(node, [](const Trainer& t) { return t.state == TrainerState::idle; });
  }
  /// Nodes that a new layout may use: idle ones, and (for what-if) those that train.
  std::vector<std::string> usable(bool with_training) const {
    std::vector<std::string> list;
    std::set<std::string_view> training;
    if (with_training)
      for (const auto& cell : s_.layout.cells) training.insert(cell.begin(), cell.end());
    for (const std::string& name : s_.node_order) {
      if (s_.nodes.at(name).state != NodeState::up) continue;
      if (all_idle(name) || training.contains(name)) list.push_back(name);
    }
    std::ranges::stable_sort(
        list, {}, [&](const std::string& name) { return s_.nodes.at(name).failures_ms.size(); });
    return list;
  }

  /// Whether training could go on without this node.
  bool spared(const std::string& name) const {
    std::vector<std::string> others = usable(true);
    std::erase(others, name);
    return assign(s_.rules, s_.layout, others).cells.size() >=
           static_cast<size_t>(s_.rules.min_cells);
  }

  // --- Effects ---

  template <class A>
  void act(A action) {
    decision_.actions.push_back(std::move(action));
  }
  void record(std::string phase, std::string kind, std::string subject, std::string reason) {
    if (phase == "detect") s_.incident = true;
    act(Record{std::move(phase), std::move(kind), std::move(subject), std::move(reason)});
  }
  void because(std::string reason) { decision_.reason = std::move(reason); }
  void wait(std::string what) {
    s_.waiting_since_ms = now_;
    s_.waiting_for = std::move(what);
  }
  void set(const std::string& name, NodeState state, std::string reason) {
    Node& node = s_.nodes.at(name);
    node.state = state;
    node.reason = std::move(reason);
    node.since_ms = now_;
  }

  void lose(const std::string& name, const std::string& reason) {
    bool in = false;
    each_trainer(name, [&](Trainer& t) {
      in = in || in_generation(t);
      t = {.doubted = std::move(t.doubted)};
    });
    Node& node = s_.nodes.at(name);
    node.peer.clear();
    node.checking = false;
    fail(name);
    set(name, NodeState::lost, reason);
    if (in)
      fence("detect", "node_lost", name, reason);
    else
      record(gathering() ? "detect" : "", "node_lost", name, reason);
  }

  void suspect(const std::string& name, const std::string& reason) {
    set(name, NodeState::suspect, reason);
    s_.nodes.at(name).checking = true;
    act(CheckNode{name, reason});
  }

  void drain(const std::string& name, const std::string& reason) {
    set(name, NodeState::drained, reason);
    record("", "drained", name, reason);
  }

  void fail(const std::string& name) {
    auto found = s_.nodes.find(name);
    if (found == s_.nodes.end()) return;
    std::vector<int64_t>& failures = found->second.failures_ms;
    std::erase_if(failures, [&](int64_t at) { return now_ - at > s_.within_ms; });
    failures.push_back(now_);
    found->second.failed_at_step = s_.committed_step;
  }

  void budget(const std::string& name) {
    const Node& node = s_.nodes.at(name);
    const size_t failures = node.failures_ms.size();
    if (node.state == NodeState::up && failures > static_cast<size_t>(s_.max_restarts))
      drain(name, number(failures) + " failures within " +
                      number(static_cast<uint64_t>(s_.within_ms / 1000)) + " s");
  }

  /// The copy that `trainer` holds of `step` is no good.
  void strike(const std::string& trainer, uint64_t step) {
    auto found = s_.trainers.find(trainer);
    if (found != s_.trainers.end()) std::erase(found->second.held, step);
    // If it came out of the peer store of that trainer's node, that is where it is bad.
    auto node = s_.nodes.find(node_of(trainer));
    if (node != s_.nodes.end())
      std::erase_if(node->second.peer, [&](const PeerHeld& copy) { return copy.step == step; });
  }

  /// Nobody has gone on from this step as it was made. Who has begun a newer generation since holds
  /// it as it was made again, if at all.
  void doubt(uint64_t step, uint64_t generation) {
    if (doubted(s_, step, generation)) return;
    s_.doubts.push_back({step, generation});
    if (s_.doubts.size() > doubts_kept) s_.doubts.erase(s_.doubts.begin());
    for (auto& [name, t] : s_.trainers)
      if (!t.ready || t.generation <= generation) t.doubted.push_back({step, generation});
    if (newest_joined() > generation || s_.committed_step < step) return;
    record("", "steps_undone", number(s_.committed_step - step + 1),
           "replicas have made different states");
    s_.committed_step = step - 1;
  }

  /// Ends the current generation for everybody in it, at once.
  void fence(std::string phase, std::string kind, std::string subject, std::string reason) {
    record(std::move(phase), kind, subject, reason);
    ++s_.generation;
    ++s_.cycles;
    s_.leaving = false;
    for (auto& [name, trainer] : s_.trainers) {
      trainer.ready = false;
      if (in_generation(trainer)) trainer.state = TrainerState::draining;
    }
    s_.phase = Phase::recovering;
    wait("all trainers to be idle");
    if (s_.cycles > s_.give_up_after_cycles) {
      shut_down(Code::gave_up, std::to_string(s_.cycles) +
                                   " generations in a row without a committed step; the last: " +
                                   subject + ": " + reason);
      return;
    }
    act(Fence{s_.generation, subject + ": " + reason});
    record("fence", kind, subject, "generation " + number(s_.generation));
    because("fence generation " + number(s_.generation) + ", since " + subject + ": " + reason);
  }

  /// Ends the current generation after a step.
  void leave(std::string reason) {
    if (s_.leaving || s_.stop_requested || !all_in_generation() || all_in(TrainerState::finished))
      return;
    s_.leaving = true;
    record("", "leaving", "generation " + number(s_.generation), reason);
    because(reason);
    act(Leave{s_.generation, std::move(reason)});
  }

  /// Trainers that ignore a fence are stuck.
  void end_fence() {
    if (s_.phase != Phase::recovering || !waited(s_.fence_timeout_ms)) return;
    for (auto& [name, trainer] : s_.trainers) {
      if (trainer.state != TrainerState::draining) continue;
      trainer.state = TrainerState::down;
      fail(node_of(name));
      record("abort", "fence_ignored", name, "killed");
      act(KillTrainer{name, "it does not leave its generation"});
      wait("trainers that were killed");
    }
  }

  /// Nodes whose trainers do not come up again are suspects.
  void give_up_on_restarts() {
    if (s_.phase != Phase::recovering || !waited(s_.restart_timeout_ms)) return;
    for (const std::string& name : s_.node_order)
      if (s_.nodes.at(name).state == NodeState::up && s_.layout.contains(name) && !all_idle(name) &&
          !all_in_generation())
        suspect(name, "it does not bring its trainers up");
  }

  void give_up_on_checks() {
    for (const std::string& name : s_.node_order) {
      Node& node = s_.nodes.at(name);
      if (!node.checking || now_ - node.since_ms <= s_.check_timeout_ms) continue;
      node.checking = false;
      if (node.state == NodeState::suspect) drain(name, "its diagnosis has not ended");
    }
  }

  /// Everybody is idle: the time for what somebody wants to know. Whether it is to be waited for.
  bool examine() {
    if (!s_.to_examine.empty()) {
      for (const std::string& name : std::exchange(s_.to_examine, {}))
        if (s_.nodes.at(name).state == NodeState::up) s_.examined.push_back(name);
      for (const std::string& name : s_.examined) suspect(name, "it is examined");
      wait("a diagnosis");
    }
    if (s_.examined.empty()) return false;
    std::vector<std::string> found;
    for (const std::string& name : s_.examined) {
      const Node& node = s_.nodes.at(name);
      if (node.checking) return true;
      if (node.state != NodeState::up)
        found.push_back(name + " is " + to_string(node.state) + ": " + node.reason);
    }
    record("", "diagnosed", joined(s_.examined),
           found.empty() ? "nothing is wrong" : joined(found, "; "));
    s_.examined.clear();
    wait("trainers");
    return false;
  }

  std::string missing() const {
    std::string text;
    for (const std::string& name : s_.node_order) {
      const Node& node = s_.nodes.at(name);
      if (node.state == NodeState::up && all_idle(name)) continue;
      text += (text.empty() ? "" : ", ") + name + " (" +
              (node.state == NodeState::up ? "its trainers are not up" : to_string(node.state)) +
              (node.reason.empty() ? "" : ": " + node.reason) + ")";
    }
    return "enough nodes for " + std::to_string(s_.rules.min_cells * s_.rules.groups_per_cell()) +
           " groups; missing: " + text;
  }

  /// Begins the next generation if everybody that it needs is there.
  void plan() {
    if (over()) return;
    for (const auto& [name, trainer] : s_.trainers)
      if (trainer.state == TrainerState::draining || in_generation(trainer)) return;
    if (examine() || s_.paused || disk_is_away()) return;
    const auto wanted = static_cast<size_t>(s_.rules.cells);
    const bool first = s_.layout.cells.empty();
    const std::vector<std::string> nodes = usable(false);
    if (!first)  // its members are being restarted: cheaper than doing without them
      for (const auto& cell : s_.layout.cells)
        for (const std::string& name : cell)
          if (s_.nodes.at(name).state == NodeState::up && !all_idle(name)) return;
    Layout next = assign(s_.rules, s_.layout, nodes);
    if (next.cells.size() < static_cast<size_t>(s_.rules.min_cells) || next.cells.empty()) {
      const bool hopeless = std::ranges::all_of(
          s_.nodes, [](const auto& n) { return n.second.state == NodeState::drained; });
      if (hopeless) {
        shut_down(Code::gave_up, "every node is drained: " + missing());
      } else if (!gathering()) {
        ++s_.generation;  // nobody is in the last one any more
        s_.phase = Phase::recovering;
        wait("nodes");
      }
      return;
    }
    if (first && next.cells.size() < wanted && !waited(s_.join_timeout_ms)) return;
    const Beginning beginning = newest_state();
    if (beginning.step < s_.committed_step && somebody_may_come() && !waited(s_.restart_timeout_ms))
      return;  // S1: who is being restarted may hold what is missing
    join(std::move(next), beginning);
  }

  std::vector<Copy> copies() const {
    std::vector<Copy> list;
    for (const std::string& name : s_.node_order) {
      const Node& node = s_.nodes.at(name);
      if (node.state == NodeState::absent || node.state == NodeState::lost) continue;
      bool peers = true;  // not yet listed
      for (int slot = 0; slot < s_.rules.trainers_per_node; ++slot) {
        const std::string who = trainer_name(name, slot);
        const Trainer& trainer = s_.trainers.at(who);
        if (trainer.state != TrainerState::idle) continue;
        for (uint64_t step : trainer.held)
          if (std::ranges::find(trainer.doubted, step, &Doubt::step) == trainer.doubted.end())
            list.push_back({who, trainer.shard, step, false});
        if (std::exchange(peers, false))
          for (const PeerHeld& copy : node.peer)
            if (!doubted(s_, copy.step, 0)) list.push_back({who, copy.shard, copy.step, true});
      }
    }
    return list;
  }

  /// What changes in words.
  std::string choice(const Layout& before, const Layout& next) const {
    if (before.cells.empty()) return "all are there";
    if (next == before) return "the same nodes";
    std::string taken, given;
    for (const auto& cell : next.cells)
      for (const std::string& node : cell)
        if (!before.contains(node)) taken += (taken.empty() ? "" : ", ") + node;
    for (const auto& cell : before.cells)
      for (const std::string& node : cell)
        if (!next.contains(node)) given += (given.empty() ? "" : ", ") + node;
    const int per_cell = s_.rules.groups_per_cell();
    std::string text;
    if (!taken.empty() && !given.empty())
      text = taken + (taken.find(',') == std::string::npos ? " takes" : " take") +
             " the place of " + given;
    else if (!taken.empty())
      text = "with " + taken;
    else
      text = given.empty() ? "nodes in other places" : "without " + given;
    if (next.cells.size() != before.cells.size())
      text += ": " + std::to_string(next.cells.size() * static_cast<size_t>(per_cell)) +
              " groups instead of " +
              std::to_string(before.cells.size() * static_cast<size_t>(per_cell));
    return text;
  }

  /// The next tier of the disk. Several trainers may say it of the same checkpoint.
  void skip_checkpoint(uint64_t step, const std::string& reason) {
    if (!s_.has_checkpoint || s_.checkpoint_step != step) return;
    record("", "checkpoint_skipped", "step-" + number(step),
           reason + "; the next older checkpoint is used");
    s_.has_checkpoint = !s_.older_checkpoints.empty();
    s_.checkpoint_step = s_.has_checkpoint ? s_.older_checkpoints.back() : 0;
    if (s_.has_checkpoint) s_.older_checkpoints.pop_back();
  }

  /// Who could not read the checkpoint that others could is examined, while they go on from it, or
  /// wait. If nobody could, that is true: it is tried again, and none older, as it may be as good
  /// as ever.
  bool disk_is_away() {
    std::vector<std::string> without;
    size_t others = 0;
    for (const auto& cell : s_.layout.cells)
      for (const std::string& name : cell)
        if (!all_of_node(name, [](const Trainer& t) { return !t.unreadable; }))
          without.push_back(name);
        else if (s_.nodes.at(name).state == NodeState::up)
          ++others;
    if (without.empty() || others == 0) return !without.empty() && !waited(kDiskAgainMs);
    for (const std::string& name : without) {
      each_trainer(name, [](Trainer& t) { t.unreadable = false; });
      fail(name);
      if (s_.nodes.at(name).state == NodeState::up)
        suspect(name, "it cannot read the checkpoint of step " + number(s_.joined_step));
    }
    return false;
  }

  struct Beginning {
    Source source = Source::initialize;
    uint64_t step = 0;
    std::vector<Copy> copies;
  };
  /// The newest state that can be had of every shard.
  Beginning newest_state() const {
    Beginning b{.copies = copies()};
    if (s_.has_checkpoint) b.source = Source::checkpoint, b.step = s_.checkpoint_step;
    const auto step = newest_complete(b.copies, s_.rules.shards);
    if (step && *step >= b.step) b.source = Source::memory, b.step = *step;
    return b;
  }
  /// A node reports, but not all of its trainers are up.
  bool somebody_may_come() const {
    return std::ranges::any_of(s_.nodes, [&](const auto& n) {
      return n.second.state != NodeState::absent && n.second.state != NodeState::lost &&
             !all_idle(n.first);
    });
  }

  void join(Layout next, const Beginning& beginning) {
    const std::vector<Place> members = places(s_.rules, next);
    Join order{.source = beginning.source, .step = beginning.step};
    if (order.source == Source::memory)
      order.moves = moves_for(members, beginning.copies, order.step);
    // S4: a number is used once; one that a fence has given out has not begun yet.
    if (s_.phase != Phase::recovering || s_.generation == 0 || s_.leaving) ++s_.generation;
    order.generation = s_.generation;
    const std::string what = choice(s_.layout, next);
    const bool changed = s_.phase == Phase::training || s_.leaving;
    if (order.step < s_.committed_step)
      record("", "steps_undone", number(s_.committed_step - order.step),
             "no newer state is left of every shard");
    s_.layout = std::move(next);
    s_.leaving = false;
    s_.joined_step = order.step;
    s_.committed_step = order.step;  // S1: lower than before only if no complete newer copy is left
    for (const Place& place : members) {
      Trainer& trainer = s_.trainers.at(place.trainer);
      trainer.state = TrainerState::training;
      trainer.generation = order.generation;
      trainer.ready = trainer.unreadable = false;
      trainer.step = order.step;
    }
    if (s_.phase != Phase::starting) s_.phase = Phase::recovering;
    wait("the first step");
    because(what + "; generation " + number(s_.generation) + " begins at step " +
            number(order.step) + " from " +
            (std::ranges::any_of(order.moves, &Move::peer) ? "peer" : to_string(order.source)) +
            (order.moves.empty() ? "" : ", " + number(order.moves.size()) + " shards move"));
    if (s_.incident) record("abort", "all_idle", "", "everybody has left");
    record(s_.incident ? "decide" : "", changed ? "layout_changed" : "joined", "",
           decision_.reason);
    act(std::move(order));
    if (s_.stop_requested) act(StopAtStep{s_.exit_reason});
  }

  /// More groups, or a drained node replaced, as soon as nodes are there for it.
  void grow() {
    if (over() || s_.phase != Phase::training || s_.leaving || s_.paused) return;
    if (s_.layout.cells.size() >= static_cast<size_t>(s_.rules.cells)) return;
    const Layout next = assign(s_.rules, s_.layout, usable(true));
    if (next.cells.size() > s_.layout.cells.size()) leave("nodes are there for more groups");
  }

  void finish_if_saved() {
    if (over() || !all_in(TrainerState::finished)) return;
    const uint64_t step = last_step();
    if (!s_.has_checkpoint || s_.checkpoint_step != step) {
      // It may have failed before the last trainer said that it has finished.
      if (!s_.failed_checkpoint_reason.empty() && s_.failed_checkpoint == step)
        shut_down(Code::io,
                  "the last checkpoint could not be saved: " + s_.failed_checkpoint_reason);
      return;
    }
    if (step >= s_.max_steps)
      shut_down(Code::ok, "trained " + number(step) + " steps");
    else
      shut_down(s_.exit, s_.exit_reason);
  }

  void shut_down(Code exit, std::string reason) {
    if (over()) return;
    const bool good = exit == Code::ok || exit == Code::requeue;
    s_.phase = good ? Phase::finished : Phase::failed;
    record("", good ? "finished" : "failed", "", reason);
    because(reason);
    act(Shutdown{exit, std::move(reason)});
  }

  const int64_t now_;
  State& s_;
  Decision decision_;
};

}  // namespace

std::vector<std::pair<std::string, int64_t>> settings(const State& s) {
  return {{"cluster.join_timeout_ms", s.join_timeout_ms},
          {"cluster.min_groups", s.rules.min_cells * s.rules.groups_per_cell()},
          {"supervision.give_up_after_cycles", s.give_up_after_cycles},
          {"supervision.max_restarts", s.max_restarts},
          {"supervision.within_s", s.within_ms / 1000}};
}

bool diagnosing(const State& state) {
  return !state.to_examine.empty() || !state.examined.empty();
}

bool doubted(const State& state, uint64_t step, uint64_t generation) {
  return std::ranges::any_of(
      state.doubts, [&](const Doubt& d) { return d.step == step && d.generation >= generation; });
}

Decision decide(int64_t now_ms, State& state, const Event& event) {
  Decider decider(now_ms, state);
  if (!decider.over()) std::visit(decider, event);
  return decider.take();
}

}  // namespace simplescale::job
