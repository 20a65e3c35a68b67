// How the tasks on one host divide its CPUs and GPUs. Pure functions.
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
/// `total`. slots: trainer slots per task.
struct HostSlots {
  int first = 0, total = 1;
};
HostSlots host_slots(const Task& task, int slots);

/// The same for CPUs, also if the task has GPUs of its own. bound: CPUs in the task's mask; online:
/// CPUs of the host. A mask narrower than the host belongs to this task alone.
HostSlots cpu_slots(const Task& task, int slots, int bound, int online);
/// Number of CPUs for the task's trainers. bound, online: as for cpu_slots(). Tasks share a mask
/// that covers the whole host.
int task_cores(const Task& task, int bound, int online);

/// The PCI address of each slot's GPU, which is the one that choose_device() prefers. told: value of
/// kGpusVariable (auto_device.hpp); "": returns nothing. host: of host_slots().
std::vector<std::string> slot_gpus(const std::string& told, const HostSlots& host, int slots);

/// The GPUs for a task, by UUID: `slots` of its own first, then the others that it sees. told: what
/// each task has told. Tasks that have chosen keep their GPUs; of the other tasks those that see
/// fewer GPUs choose first. Nothing: every host has too few, so all tasks share GPUs; or the others
/// do already. bad_config, with what is missing: this task has too few, but other tasks have enough;
/// they keep theirs, since tasks that share GPUs cannot use NCCL.
Result<std::optional<std::vector<std::string>>> share_gpus(const std::map<int, HostFacts>& told,
                                                           int task, int slots);

/// The task that a command is among those that have told their facts. own_gpus is false.
Task task_among(const std::map<int, HostFacts>& told, int rank, int nnodes);

}  // namespace simplescale::slurm
