// `doctor` as a task of srun, or with --nnodes (app/hosts/hosts.hpp): all hosts check themselves at
// the same time, then the links between them, like a run's diagnosis. One task compares the results
// and prints one table; all tasks end with its exit code. The tasks meet in a shared folder
// (rendezvous.hpp) and connect with the key in it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/slurm/slurm.hpp"
#include "runtime/config/config.hpp"
#include "runtime/diagnostics/diagnose.hpp"

namespace simplescale {

struct FleetDoctorOptions {
  Config config;  // cluster.join_timeout_ms: how long each stage waits for the other hosts
  slurm::Task task;
  std::string folder;  // the rendezvous folder; removed at the end
  std::function<std::vector<CheckResult>()> check_inputs;  // of the run, on this host
  bool json = false;
};

/// Blocks until all hosts are done or a deadline has passed. Exit codes: 0: all hosts are fit; 3:
/// some are not, or did not join; 74: the folder cannot be written.
int fleet_doctor(const FleetDoctorOptions& options);

}  // namespace simplescale
