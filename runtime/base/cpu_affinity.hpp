// On which CPUs a host's trainers run. On a host with several NUMA nodes each trainer keeps to the
// CPUs of one of them (or of its share of them), and so does its memory, which Linux takes from the
// node of whoever touches it first. Within a NUMA node the kernel's scheduler is left alone, and on
// a host with only one of them nothing is done. What Slurm, taskset or a cgroup allows is shared
// out, never left. Needs no library: /sys tells the NUMA nodes.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

using CpuList = std::vector<int>;  // ascending

/// "0-3,8" as in /sys and /proc; nothing if it is no such list.
std::optional<CpuList> parse_cpu_list(const std::string& text);
std::string cpu_list_text(const CpuList& cpus);

/// The CPUs of each NUMA node that has some. folder: /sys/devices/system/node, or one like it;
/// empty if there is none or it makes no sense.
std::vector<CpuList> numa_nodes(const std::string& folder);
/// This machine's; SIMPLESCALE_NUMA names another folder (for tests; "off": no placing).
std::vector<CpuList> numa_nodes();

/// The CPUs on which the calling thread may run; empty on a machine with more than 1,024.
CpuList cpu_mask();

/// The CPUs of each of `trainers` equal trainers that share `mask`: as many CPUs to each, NUMA node
/// by NUMA node, and then all CPUs of the NUMA node in which its share lies (of the nodes, if there
/// are more nodes than trainers). Empty lists where there is nothing to choose.
std::vector<CpuList> trainer_cpus(const CpuList& mask, const std::vector<CpuList>& nodes,
                                  int trainers);

/// All threads of a process, and those they start; an empty list changes nothing.
Status set_affinity(pid_t pid, const CpuList& cpus);

/// The calling thread runs on these CPUs while this lives, so that memory it touches first lies
/// there. An empty list changes nothing.
class ScopedAffinity {
 public:
  explicit ScopedAffinity(const CpuList& cpus);
  ~ScopedAffinity();
  ScopedAffinity(const ScopedAffinity&) = delete;
  ScopedAffinity& operator=(const ScopedAffinity&) = delete;

 private:
  CpuList before_;
};

}  // namespace simplescale
