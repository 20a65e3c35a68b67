#include "actors/supervisor/decision/what_if.hpp"

namespace simplescale::job {

std::string what_if(State state, const std::string& kind, const std::string& target) {
  const int64_t now = state.waiting_since_ms + 1;
  const bool trainer = state.trainers.contains(target);
  const std::string node = trainer ? node_of(target) : target;
  if (!state.nodes.contains(node)) return "there is no node or trainer '" + target + "'";
  std::string text;
  auto tell = [&](const Event& event) {
    const Decision decision = decide(now, state, event);
    if (!decision.reason.empty()) text += (text.empty() ? "" : "; then ") + decision.reason;
  };
  const Trainer before = trainer ? state.trainers.at(target) : Trainer{};
  if (trainer)
    tell(TrainerDown{target, kind, true});
  else
    tell(NodeLost{target, kind});
  for (const auto& [name, t] : State(state).trainers)
    if (t.state == TrainerState::draining)
      tell(TrainerIdle{.trainer = name,
                       .generation = state.generation - 1,
                       .shard = t.shard,
                       .held = {{state.committed_step, state.generation}}});
  if (trainer)
    tell(TrainerUp{target,
                   before.pid,
                   before.address,
                   before.shard,
                   {{state.committed_step, state.generation}}});
  return text.empty() ? "nothing would change" : text;
}

}  // namespace simplescale::job
