// Divides a host's CPUs and GPUs among the tasks on it. Pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/slurm/slurm.hpp"
#include "runtime/base/status.hpp"
#include "runtime/run/host_place.hpp"

namespace simplescale::slurm {

/// Numbers the trainer slots of all tasks on a host: slot s of this task is slot `first + s` of
/// `total`. slots: trainer slots of a task.
struct HostSlots {
  int first = 0, total = 1;
};
HostSlots host_slots(const Task& task, int slots);

/// The same for CPUs, even if the task has its own GPUs. bound: CPUs in the task's mask; online:
/// CPUs of the host. A mask narrower than the host belongs to this task alone.
HostSlots cpu_slots(const Task& task, int slots, int bound, int online);
/// Number of CPUs for the task's trainers. bound, online: as for cpu_slots(). A mask that covers
/// the whole host is shared by its tasks.
int task_cores(const Task& task, int bound, int online);

/// The PCI address of the GPU that choose_device() prefers for each slot. told: value of
/// kGpusVariable (auto_device.hpp); "": returns nothing. host: of host_slots().
std::vector<std::string> slot_gpus(const std::string& told, const HostSlots& host, int slots);

/// The UUIDs of the GPUs for a task: first `slots` GPUs of its own, then the others that it sees.
/// told: the facts of each task. Tasks that have chosen keep their GPUs. Of the other tasks, those
/// that see fewer GPUs choose first. Nothing: all tasks share GPUs, because every host has too few
/// or other tasks already share. bad_config, with what is missing: this task has too few GPUs, but
/// other tasks have enough and keep them, because tasks that share GPUs cannot use NCCL.
Result<std::optional<std::vector<std::string>>> share_gpus(const std::map<int, HostFacts>& told,
                                                           int task, int slots);

/// The task of this command: its index among the commands in `told`, the registered hosts. own_gpus
/// is false.
Task task_among(const std::map<int, HostFacts>& told, int rank, int nnodes);

}  // namespace simplescale::slurm
