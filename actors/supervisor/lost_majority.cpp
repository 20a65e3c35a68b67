#include "actors/supervisor/lost_majority.hpp"

#include <algorithm>

namespace simplescale::job {

bool lost_majority(const State& job, const std::set<std::string>& votes,
                   const std::set<std::string>& reporting) {
  for (const auto& [name, trainer] : job.trainers)
    if (trainer.state == TrainerState::training || trainer.state == TrainerState::finished)
      return false;
  const auto against = std::ranges::count_if(job.nodes, [&](const auto& entry) {
    const auto& [name, node] = entry;
    return votes.contains(name) && !reporting.contains(name) &&
           (node.state == NodeState::absent || node.failed_at_step >= job.committed_step);
  });
  return against > static_cast<int64_t>(reporting.size());
}

}  // namespace simplescale::job
