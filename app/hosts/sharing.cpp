#include "app/hosts/sharing.hpp"

#include <algorithm>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "runtime/base/words.hpp"

namespace simplescale::slurm {

namespace {

using Gpus = std::vector<std::string>;

/// True if every task sees GPUs of which there are too few for the tasks that see them. crowded:
/// the GPUs that tasks with too few GPUs see.
bool all_crowded(const std::map<int, Gpus>& seen, std::set<std::string> crowded) {
  std::set<int> tasks;
  size_t before = 0;
  do {
    before = tasks.size();
    for (const auto& [task, gpus] : seen) {
      const bool near = std::ranges::any_of(
          gpus, [&](const std::string& uuid) { return crowded.contains(uuid); });
      if (!near && !gpus.empty()) continue;
      tasks.insert(task);
      crowded.insert(gpus.begin(), gpus.end());  // these tasks share all GPUs that they see
    }
  } while (tasks.size() > before);
  return tasks.size() == seen.size();
}

/// What a task lacks, as text. free: how many of its `seen` GPUs are left by the tasks that choose
/// first.
std::string lack(size_t seen, size_t free, int slots) {
  const std::string takes =
      free < seen ? ", of which other nodes take " + std::to_string(seen - free) : "";
  return "cluster.trainers_per_node = " + std::to_string(slots) + ", but this command sees " +
         counted(static_cast<int64_t>(seen), "GPU") + takes +
         ", while other nodes have enough GPUs: see what `nvidia-smi` and CUDA_VISIBLE_DEVICES " +
         "show here, or start this node on another host";
}

}  // namespace

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

std::vector<std::string> slot_gpus(const std::string& told, const HostSlots& host, int slots) {
  std::vector<std::string> visible, own;
  std::istringstream words(told);
  for (std::string word; std::getline(words, word, ',');) visible.push_back(word);
  for (int slot = 0; slot < slots && !visible.empty(); ++slot)
    own.push_back(visible[static_cast<size_t>(host.first + slot) % visible.size()]);
  return own;
}

Result<std::optional<Gpus>> share_gpus(const std::map<int, HostFacts>& told, int task, int slots) {
  std::map<int, Gpus> seen;
  std::vector<std::tuple<bool, size_t, int>> order;
  for (const auto& [each, facts] : told) {
    Gpus& gpus = seen[each] = facts.gpus;
    std::ranges::stable_partition(
        gpus, [&](const std::string& uuid) { return std::ranges::count(facts.own, uuid) > 0; });
    order.emplace_back(facts.own.empty(), gpus.size(), each);
  }
  std::ranges::sort(order);
  std::set<std::string> taken, crowded;
  std::map<int, size_t> lacking;  // tasks with too few GPUs, and how many are left for each
  Gpus own;
  for (const auto& [undecided, count, each] : order) {
    Gpus gpus = seen.at(each);
    const auto others = std::ranges::stable_partition(
        gpus, [&](const std::string& uuid) { return !taken.contains(uuid); });
    const auto free = static_cast<size_t>(others.begin() - gpus.begin());
    if (free < static_cast<size_t>(slots)) {
      lacking[each] = free;
      crowded.insert(gpus.begin(), gpus.end());
      continue;
    }
    taken.insert(gpus.begin(), gpus.begin() + slots);
    if (each == task) own = std::move(gpus);
  }
  const auto any = [&](auto member) {
    return std::ranges::any_of(told,
                               [&](const auto& each) { return !(each.second.*member).empty(); });
  };
  const bool blind = seen.at(task).empty() && any(&HostFacts::gpus);
  const bool decided = any(&HostFacts::own);  // not to share
  const bool share = std::ranges::any_of(told, [](const auto& each) { return each.second.shares; });
  if (!blind && (share || (!lacking.empty() && !decided && all_crowded(seen, crowded))))
    return std::optional<Gpus>();
  if (!lacking.contains(task)) return std::optional(own);
  return Status(Code::bad_config, lack(seen.at(task).size(), lacking.at(task), slots));
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
  task.other_hosts = nnodes > 1;  // a task of this host may return on another one
  task.host = own.host;
  return task;
}

}  // namespace simplescale::slurm
