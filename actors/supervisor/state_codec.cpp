#include "actors/supervisor/state_codec.hpp"

#include <nlohmann/json.hpp>

#include "runtime/base/files.hpp"
#include "runtime/training/sharding.hpp"

/// An address is stored as bytes, not as a list of numbers.
template <>
struct nlohmann::adl_serializer<std::vector<uint8_t>> {
  static void to_json(json& j, const std::vector<uint8_t>& bytes) { j = json::binary(bytes); }
  static void from_json(const json& j, std::vector<uint8_t>& bytes) { bytes = j.get_binary(); }
};

namespace simplescale {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StateVersion, step, generation)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StateCopy, shard, step, generation, shards, begun)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RateChange, step, peak)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Reason, text, kind, number, ms, step, phase, block, detail)

namespace job {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayoutRules, trainers_per_node, shards, domain_nodes, domains,
                                   min_domains, spares, max_nodes, domain_sizes, rate_first)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Layout, domains)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SuspectStep, step, generation)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BadCopy, source, step, generation, times)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Rollback, generation, step, since, tentative)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Trainer, state, pid, address, held, step, generation, ready,
                                   unreadable)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Node, state, pid, address, reason, since_ms, failures_ms, failed,
                                   failed_at_step, checking, peer, instructions, micro_batch_us,
                                   joins, leaves, ended)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RemovedAgent, node, pid, address)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Rates, changes, requested)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    State, rules, max_steps, join_timeout_ms, restart_timeout_ms, fence_timeout_ms, save_timeout_ms,
    check_timeout_ms, give_up_after_cycles, max_restarts, within_ms, budget_steps, learning_rate,
    min_learning_rate, rates, phase, generation, generation_floor, node_order, nodes, trainers,
    layout, leaving, paused, to_examine, examined, had_checkpoint, has_checkpoint, checkpoint_step,
    older_checkpoints, failed_checkpoint, failed_checkpoint_reason, suspect_steps, rollbacks,
    committed_step, joined_step, joined_from, previous_layout, cycles, waiting_since_ms,
    waiting_for, incident, bad_samples, stop_requested, giving_up, giving_up_since_ms, exit,
    exit_reason, unrecorded_stop, instructions, balance, leaves, balance_pause_ms, weights,
    balance_after_ms, removed, proven_size, failed_sizes, bad_copies)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(IncidentFacts, kind, subject, reason, also, cause, joins, before,
                                   after, groups_before, groups_after, nodes_before, nodes_after,
                                   origin, returned, skipped, successor, stood_by, begins_at,
                                   undone, ms, avoid)

namespace {

template <class Enum>
bool known(Enum value, Enum last) {
  return static_cast<unsigned>(value) <= static_cast<unsigned>(last);
}

/// True if the state has what decide() relies on.
bool consistent(const State& s) {
  const LayoutRules& r = s.rules;
  for (int value : {r.trainers_per_node, r.shards, r.domain_nodes, r.domains, r.min_domains})
    if (value < 1 || value > 1'000'000) return false;
  for (int value : {r.spares, r.max_nodes})
    if (value < 0 || value > 1'000'000) return false;
  for (const int size : r.domain_sizes)
    if (size < 1 || size > 1'000'000) return false;
  const bool one_group = r.shards == r.domain_nodes * r.trainers_per_node;
  if (!r.domain_sizes.empty() && !one_group) return false;
  if (!known(s.phase, Phase::failed) || !known(s.exit, Code::io)) return false;
  if (!known(s.instructions, InstructionSet::amx)) return false;
  if (s.node_order.size() != s.nodes.size()) return false;
  for (const std::string& name : s.node_order)
    if (!s.nodes.contains(name)) return false;
  for (const auto& [name, node] : s.nodes) {
    if (!known(node.state, NodeState::lost) || !known(node.instructions, InstructionSet::amx))
      return false;
    for (int slot = 0; slot < r.trainers_per_node; ++slot)
      if (!s.trainers.contains(trainer_name(name, slot))) return false;
  }
  for (const auto* list : {&s.to_examine, &s.examined})
    for (const std::string& name : *list)
      if (!s.nodes.contains(name)) return false;
  for (const auto& [name, trainer] : s.trainers)
    if (!known(trainer.state, TrainerState::finished)) return false;
  if (!r.allows(r.size_of(s.layout))) return false;
  for (const auto& domain : s.layout.domains) {
    if (domain.size() != s.layout.domains.front().size()) return false;
    for (const std::string& name : domain)
      if (!s.nodes.contains(name)) return false;
  }
  if (s.leaves < 1 || s.leaves > uint64_t{1} << 32) return false;
  const size_t groups = s.layout.domains.size() * static_cast<size_t>(r.groups_per_domain());
  return s.weights.empty() || (s.weights.size() == groups && are_weights(s.weights));
}

}  // namespace
}  // namespace job

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(InjectFault, kind, target, step, ms, value)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SupervisorState, job, now_ms, term, sequence, incidents,
                                   incident_since_ms, incident, node, recorded_step, recorded,
                                   end_exit, end_reason, planned, traced)

std::vector<uint8_t> encode(const SupervisorState& state) {
  return nlohmann::json::to_msgpack(nlohmann::json(state));
}

Result<SupervisorState> decode(std::span<const uint8_t> bytes) {
  const auto document = nlohmann::json::from_msgpack(bytes.begin(), bytes.end(), true, false);
  try {
    SupervisorState state = document.get<SupervisorState>();
    if (job::consistent(state.job)) return state;
  } catch (const nlohmann::json::exception&) {  // a field is missing or of another type
  }
  return Status(Code::bad_data, "not a supervisor's state");
}

Result<std::optional<SupervisorState>> read_left_state(const std::string& run,
                                                       const std::string& instance, uint64_t term) {
  std::optional<SupervisorState> newest;
  // A supervisor that could not prepare has left a state of an older term.
  for (; term > 0 && (!newest || newest->term <= term); --term) {
    const std::string path = run + "/" + state_page(instance, term);
    const auto text = read_text(path);
    if (text.status().code() == Code::not_found) continue;  // it died before it decided anything
    if (!text.ok()) return text.status();
    auto state = decode({reinterpret_cast<const uint8_t*>(text->data()), text->size()});
    if (!state.ok()) return state.status().in(path);
    if (!newest || is_newer(*state, *newest)) newest = state.take();
  }
  return newest;
}

void move_times(job::State& job, int64_t by_ms) {
  job.waiting_since_ms += by_ms;
  job.giving_up_since_ms += by_ms;
  job.balance_after_ms += by_ms;
  if (job.plan_due_ms >= 0) job.plan_due_ms += by_ms;
  for (auto& [name, node] : job.nodes) {
    node.since_ms += by_ms;
    for (int64_t& at : node.failures_ms) at += by_ms;
  }
}

void rebase(SupervisorState& state, int64_t now_ms) {
  const int64_t shift = now_ms - state.now_ms;
  state.now_ms = now_ms;
  move_times(state.job, shift);
  if (state.incident_since_ms != no_incident) state.incident_since_ms += shift;
}

}  // namespace simplescale
