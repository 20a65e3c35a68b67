// `doctor` as a task of srun: all hosts examine themselves at the same time, then the links between
// them, as a run's diagnosis does; one task compares, prints one table, and all end with its exit
// code. They meet through a folder that all hosts see (rendezvous.hpp), and connect with its key.
#pragma once

#include <string>

#include "app/slurm/slurm.hpp"
#include "runtime/config/config.hpp"

namespace simplescale {

struct FleetDoctorOptions {
  Config config;  // cluster.join_timeout_ms: how long to wait for hosts, at each stage
  slurm::Task task;
  std::string folder;  // to meet in; removed at the end
  bool json = false;
};

/// Blocks until all hosts are done, or missed. Exit codes: 0 all are fit; 3 some are not, or did
/// not come; 74 the folder cannot be written.
int fleet_doctor(const FleetDoctorOptions& options);

}  // namespace simplescale
