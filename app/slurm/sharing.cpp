#include "app/slurm/sharing.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace simplescale::slurm {

HostSlots host_slots(const Task& task, int slots) {
  if (task.own_gpus) return {0, slots};
  return {task.local_task * slots, task.tasks_on_host * slots};
}

HostSlots cpu_slots(const Task& task, int slots, int bound, int online) {
  if (bound < online) return {0, slots};
  return {task.local_task * slots, task.tasks_on_host * slots};
}

int task_cores(const Task& task, int bound, int online) {
  return std::max(1, bound < online ? bound : bound / task.tasks_on_host);
}

std::optional<std::vector<std::string>> share_gpus(
    const std::map<int, std::vector<std::string>>& seen, int task, int slots) {
  std::vector<std::pair<size_t, int>> order;
  for (const auto& [each, gpus] : seen) order.emplace_back(gpus.size(), each);
  std::ranges::sort(order);
  std::set<std::string> taken;
  std::vector<std::string> own;
  for (const auto& [count, each] : order) {
    std::vector<std::string> gpus = seen.at(each);
    const auto others = std::ranges::stable_partition(
        gpus, [&](const std::string& uuid) { return !taken.contains(uuid); });
    const auto free = static_cast<size_t>(others.begin() - gpus.begin());
    if (free < static_cast<size_t>(slots)) return std::nullopt;
    taken.insert(gpus.begin(), gpus.begin() + slots);
    if (each == task) own = std::move(gpus);
  }
  return own;
}

std::string cuda_name(std::string uuid) {
  for (const int dash : {8, 13, 18, 23})
    if (std::ssize(uuid) > dash) uuid.insert(uuid.begin() + dash, '-');
  return "GPU-" + uuid;
}

Task task_among(const std::map<int, HostFacts>& told, int rank, int nnodes) {
  Task task;
  task.task = rank;
  task.tasks = nnodes;
  const HostFacts& own = told.at(rank);
  task.tasks_on_host = 0;
  for (const auto& [each, facts] : told) {
    if (facts.scope != own.scope) continue;
    ++task.tasks_on_host;
    if (each < rank) ++task.local_task;
  }
  task.other_hosts = nnodes > 1;  // a task of this host may come back on another one
  task.host = own.host;
  return task;
}

}  // namespace simplescale::slurm
