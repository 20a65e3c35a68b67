#include "actors/supervisor/leadership.hpp"

#include <algorithm>
#include <utility>

#include "actors/supervisor/lost_majority.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/words.hpp"

namespace simplescale {

namespace {

constexpr int64_t kStandbyStartMs = 10'000;  // for a node to start a standby
constexpr int64_t kJoiningMs = 2'000;        // after a node has joined, wait so long for more nodes

/// True for actions that make another process act: a second supervisor must not order them as well.
bool changes_membership(const job::Action& action) {
  return !std::holds_alternative<job::Record>(action);
}

/// The node that this event reports as lost or as back; null: the event is another one.
const std::string* lost_or_up(const job::Event& event) {
  if (const auto* lost = std::get_if<job::NodeLost>(&event)) return &lost->node;
  if (const auto* up = std::get_if<job::NodeUp>(&event)) return &up->node;
  return nullptr;
}

}  // namespace

local::TermSeen term_seen(uint64_t question, uint64_t term, const TermView& view) {
  return {question, view.deposed(term), view.newest.number, view.votes, view.answered};
}

Leadership::Leadership(Options options, int64_t now_ms)
    : options_(std::move(options)), joined_ms_(now_ms), connected_ms_(now_ms) {}

void Leadership::resume(const SupervisorState& from, int64_t expected_until_ms) {
  sequence_ = from.sequence;
  end_exit_ = from.end_exit;
  end_reason_ = from.end_reason;
  for (const auto& [name, node] : from.job.nodes)
    if (node.state != job::NodeState::absent && node.state != job::NodeState::lost)
      expected_.insert(name);
  expected_until_ms_ = expected_until_ms;
}

void Leadership::save(SupervisorState& to) const {
  to.term = options_.term;
  to.sequence = sequence_;
  to.end_exit = end_exit_;
  to.end_reason = end_reason_;
}

// --- Decisions ---

bool Leadership::admit(const job::Event& event) {
  if (deposed_) return false;
  if (waiting_.empty()) return true;
  if (std::holds_alternative<job::Tick>(event)) return false;
  later_.push_back(event);
  if (const std::string* node = lost_or_up(event)) behind_.insert(*node);
  return false;
}

Leadership::Actions Leadership::submit(std::vector<job::Action> actions) {
  for (const job::Action& action : actions)
    if (const auto* end = std::get_if<job::Shutdown>(&action)) {
      end_exit_ = exit_code(end->exit);
      end_reason_ = end->reason;
    }
  checked_ = std::ranges::none_of(actions, changes_membership);
  unanswered_ = false;
  waiting_ = std::move(actions);
  Actions result = replicate();
  decision_ = sequence_;
  if (!stored() || !checked_) result.emplace_back(Await{decision_, !checked_});
  release(result);
  return result;
}

Leadership::Actions Leadership::replicate() {
  ++sequence_;
  return {Replicate{}};
}

void Leadership::release(Actions& to) {
  if (stored() && checked_ && !deposed_ && !waiting_.empty())
    to.emplace_back(CarryOut{std::exchange(waiting_, {})});
}

Leadership::Actions Leadership::replica_stored(uint64_t sequence) {
  Actions result;
  kept_ = std::max(kept_, sequence);
  release(result);
  return result;
}

Leadership::Actions Leadership::term_seen(const local::TermSeen& seen, const job::State& job,
                                          const AgentRegistry& agents, int64_t now_ms) {
  Actions result;
  if (deposed_) return result;
  if (seen.deposed) {
    const std::string newest = std::to_string(seen.newest), own = std::to_string(options_.term);
    const std::string reason =
        "deposed: " + (seen.newest > options_.term
                           ? "term " + newest + " leads, this is term " + own
                           : "the run was started again, or its folder is gone");
    log::warn("{}", reason);
    deposed_ = true;
    return {EndProcess{.reason = reason, .deposed = true}};
  }
  if (lost_majority(seen.votes, job, agents, now_ms)) {
    const std::string reason =
        counted(static_cast<int64_t>(seen.votes.size()), "node") + " cannot reach it";
    log::warn("resigning: {}", reason);
    // The standby ends first: it is on the same side of the network, so the voting nodes cannot
    // reach it either.
    drop_standby(reason, job, result);
    result.emplace_back(job::Record{"", "resigned", options_.node, reason});
    result.emplace_back(EndProcess{.reason = "resigned: " + reason, .resigns = true});
    deposed_ = true;
    return result;
  }
  if (seen.question == decision_) (seen.answered ? checked_ : unanswered_) = true;
  release(result);
  return result;
}

bool Leadership::lost_majority(const std::set<std::string>& votes, const job::State& job,
                               const AgentRegistry& agents, int64_t now_ms) const {
  if (options_.elected || over(job) || now_ms - joined_ms_ < kJoiningMs) return false;
  std::set<std::string> reporting;
  for (const auto& [name, node] : job.nodes)
    if (connected(agents, name)) reporting.insert(name);
  return job::lost_majority(job, votes, reporting);
}

Leadership::Actions Leadership::timed_out(uint64_t decision, const job::State& job,
                                          const AgentRegistry& agents) {
  Actions result;
  if (decision != decision_ || waiting_.empty()) return result;
  const bool replicated = standby_ && stored();
  if (!stored()) drop_standby("it did not store a decision within 200 ms", job, result);
  const bool all_report = std::ranges::all_of(
      job.nodes, [&](const auto& node) { return connected(agents, node.first); });
  if (!checked_ && !all_report && job::waits_for_folder(waiting_, replicated)) {
    log::debug("the run folder does not answer, and not all nodes report; a decision waits for it");
    result.emplace_back(Await{decision, std::exchange(unanswered_, false)});
    return result;
  }
  if (!checked_)
    log::warn("the run folder did not answer within 200 ms; carrying the decision out without it");
  checked_ = true;
  release(result);
  return result;
}

std::optional<job::Event> Leadership::next_event() {
  if (!waiting_.empty() || later_.empty()) return std::nullopt;
  job::Event event = std::move(later_.front());
  later_.pop_front();
  if (const std::string* node = lost_or_up(event)) behind_.erase(behind_.find(*node));
  return event;
}

// --- Standby ---

Leadership::Actions Leadership::tick(const job::State& job, const AgentRegistry& agents,
                                     int64_t now_ms) {
  if (job.phase == job::Phase::training) options_.elected = false;
  Actions result;
  if (standby_ && !job.nodes.contains(standby_->node))
    drop_standby("its node is removed", job, result);
  appoint_standby(job, agents, now_ms, result);
  return result;
}

void Leadership::appoint_standby(const job::State& job, const AgentRegistry& agents, int64_t now_ms,
                                 Actions& to) {
  // While the run starts, the first nodes in node_order may not have joined yet.
  if (standby_ || over(job) || job.phase == job::Phase::starting) return;
  if (!asked_.empty() && now_ms - asked_ms_ < kStandbyStartMs) return;
  if (!asked_.empty()) failed_ = std::exchange(asked_, "");
  for (const std::string& name : job.node_order) {
    if (name == options_.node || !connected(agents, name) || behind(name)) continue;
    if (asked_.empty() || asked_ == failed_) asked_ = name;
    if (asked_ != failed_) break;
  }
  if (asked_.empty()) return;
  asked_ms_ = now_ms;
  to.emplace_back(StartStandby{asked_});
}

Leadership::Actions Leadership::accept_standby(const StandbyHello& hello, const job::State& job) {
  if (over(job) || deposed_ || asked_.empty() || hello.node != asked_) return {};
  standby_ = hello;
  asked_.clear();
  failed_.clear();
  kept_ = 0;
  ++sequence_;
  Actions result = {
      Replicate{.store = false},
      job::Record{"", "standby_appointed", hello.node, "process " + std::to_string(hello.pid)},
      Announce{}};
  if (!waiting_.empty()) {  // the decision now waits for this standby, too
    decision_ = sequence_;
    result.emplace_back(Await{decision_, !checked_});
  }
  return result;
}

Leadership::Actions Leadership::standby_lost(const job::State& job, const AgentRegistry& agents,
                                             int64_t now_ms) {
  Actions result;
  drop_standby("its process does not answer any more", job, result);
  appoint_standby(job, agents, now_ms, result);
  release(result);
  return result;
}

void Leadership::drop_standby(const std::string& reason, const job::State& job, Actions& to) {
  if (!standby_) return;
  asked_.clear();
  failed_ = standby_->node;
  standby_.reset();
  to.emplace_back(EndStandby{"dismissed: " + reason});
  if (over(job)) return;
  to.emplace_back(job::Record{"", "standby_lost", failed_, reason});
  to.emplace_back(Announce{});
}

Lead Leadership::announcement(uint64_t recorded_step) const {
  Lead lead{options_.term, options_.node, options_.address, "", "", recorded_step};
  if (standby_) {
    lead.standby_node = standby_->node;
    lead.standby_address = standby_->address;
  }
  return lead;
}

// --- Nodes, and the end ---

void Leadership::node_joined(const std::string& node, int64_t now_ms) {
  expected_.erase(node);
  joined_ms_ = now_ms;
}

std::vector<job::Event> Leadership::missing_nodes(int64_t now_ms) {
  std::vector<job::Event> missing;
  if (now_ms <= expected_until_ms_ || !waiting_.empty()) return missing;
  for (const std::string& name : std::exchange(expected_, {}))
    missing.push_back(job::NodeLost{name, "its agent did not report to the new supervisor"});
  return missing;
}

void Leadership::stopped(int64_t ms) {
  for (int64_t* at : {&expected_until_ms_, &joined_ms_, &connected_ms_}) *at += ms;
  if (over_since_ms_) *over_since_ms_ += ms;
}

Leadership::Actions Leadership::end_if_due(const job::State& job, const AgentRegistry& agents,
                                           int64_t now_ms) {
  Actions result;
  const bool alone =
      std::ranges::none_of(agents, [](const auto& agent) { return agent.second.connected; });
  if (!alone) connected_ms_ = now_ms;
  if (over(job) && waiting_.empty()) {
    if (!over_since_ms_) {
      over_since_ms_ = now_ms;
      if (standby_) result.emplace_back(EndStandby{"the run is over"});
    }
    // Nodes that are still expected must be told of the end.
    const bool told = alone && expected_.empty();
    if (told || now_ms - *over_since_ms_ > 2 * options_.shutdown_ms)
      result.emplace_back(EndProcess{0, "the run is over"});
  } else if (alone && now_ms - connected_ms_ > options_.join_timeout_ms) {
    result.emplace_back(EndProcess{
        exit_code(Code::requeue),
        "no agent has reported for " + std::to_string(options_.join_timeout_ms) + " ms"});
  }
  return result;
}

}  // namespace simplescale
