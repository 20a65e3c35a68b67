// Binds a host's trainers to CPUs. On a host with several NUMA nodes each trainer runs on the CPUs
// of one node, or of several if there are more nodes than trainers. Its memory lies there, too:
// Linux allocates a page on the node of the thread that first touches it. Within a NUMA node the
// kernel's scheduler decides, and on a host with one NUMA node nothing is bound. Trainers never
// leave the CPUs that Slurm, taskset or a cgroup allows. Needs no library: NUMA nodes are read from
// /sys.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

using CpuList = std::vector<int>;  // ascending

/// Parses "0-3,8", the form of /sys and /proc; nullopt if the text is not such a list.
std::optional<CpuList> parse_cpu_list(const std::string& text);
/// The reverse: {0, 1, 2, 3, 8} gives "0-3,8".
std::string cpu_list_text(const CpuList& cpus);

/// The CPUs of each NUMA node, without nodes that have memory only. folder: like
/// /sys/devices/system/node. Empty if there is no such folder or its lists contradict each other.
std::vector<CpuList> numa_nodes(const std::string& folder);
/// The NUMA nodes of this machine. The environment variable SIMPLESCALE_NUMA names another folder
/// (for tests); "off" turns the binding off.
std::vector<CpuList> numa_nodes();

/// The CPUs on which the calling thread may run; empty on a machine with more than 1,024 CPUs.
CpuList cpu_mask();

/// The CPUs of each of `trainers` trainers that share the CPUs of `mask`. Trainers are spread
/// evenly over the CPUs in the order of NUMA nodes. A trainer gets all CPUs of the NUMA node in
/// which the middle of its share lies, or, with fewer trainers than nodes, of all nodes that its
/// share touches. Empty lists if the mask lies in one node, or has CPUs that are in no node.
std::vector<CpuList> trainer_cpus(const CpuList& mask, const std::vector<CpuList>& nodes,
                                  int trainers);

/// Binds all threads of a process to `cpus`; threads that they start inherit it. An empty list
/// changes nothing. not_found: the process has ended. io.
Status set_affinity(pid_t pid, const CpuList& cpus);

/// Binds the calling thread to `cpus` until destroyed, so that memory it touches first lies near
/// them. An empty list changes nothing; a failure is logged.
class ScopedAffinity {
 public:
  explicit ScopedAffinity(const CpuList& cpus);
  ~ScopedAffinity();
  ScopedAffinity(const ScopedAffinity&) = delete;
  ScopedAffinity& operator=(const ScopedAffinity&) = delete;

 private:
  CpuList before_;  // the affinity to restore; empty: nothing to restore
};

}  // namespace simplescale
