// Checks that can fail before any process starts: folders, disk space, shared memory, the HTTP
// port, the amount of data. Blocks on the file system. The launcher calls it; in a Slurm job, every
// task.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/limits.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

/// Prefix of the names of the files that test whether a folder is writable.
inline constexpr const char* kWritableProbe = ".writable-";

struct PreflightInput {
  int trainers_on_host = 1;              // all trainers with shared memory on this host
  bool writes_checkpoints = true;        // this host checks folders, disk space and port
  bool prepares_data = false;            // data.folder is still to be written
  bool staged = false;                   // collectives of GPUs go through host memory
  std::optional<uint64_t> train_tokens;  // if known
  bool oversubscribe = false;            // skips the check of processes and memory
  uint64_t host_memory = 0;  // bytes; 0: the host's memory, or the control group's limit
  ProcessLimits limits = process_limits();
  uint64_t memory_left = 0;  // bytes that nobody uses, of host_memory; 0: as the host says
  int cores = 0;             // 0: those that this process may use
};

/// The processes of a run on one host, and the memory that they need.
struct HostNeeds {
  int nodes = 0, trainers = 0, warm = 0, supervisors = 0;
  // Bytes of shared memory: both sides of the states, copies of other nodes' shards, token rings,
  // traces, and data planes. With staged collectives these hold all buffers of the engines.
  uint64_t shared = 0;
  uint64_t copies = 0;         // bytes of peer copies that wait in the agents to be sent
  uint64_t private_ = 0;       // bytes of all processes, copies included
  uint64_t address_space = 0;  // bytes that a trainer maps at least
  int processes() const { return nodes + trainers + warm + supervisors; }
  uint64_t memory() const { return shared + private_; }
};
/// staged: see PreflightInput. "auto" counts as CPU.
HostNeeds host_needs(const Config& config, const Plan& plan, int trainers, bool staged = false);

/// Processes per core that are accepted without oversubscribe: more are surely a mistake.
constexpr int processes_per_core_max = 64;
/// Trainers per core that are accepted without a warning.
constexpr int trainers_per_core_max = 4;

/// Returns the first problem, in one line with figures. bad_config: a folder is not writable; too
/// little disk space or shared memory; the port is taken; http_host is not an address of this host;
/// no data is named; more processes or memory than the host has room for (unless oversubscribe).
/// bad_data: data.source does not exist, or has fewer tokens than one sample. io: a limit of this
/// process is too low for the run. Leaves nothing behind.
Status preflight(const Config& config, const Plan& plan, const PreflightInput& input);

/// A warning if the trainers are more than the host's cores serve well; "": none.
std::string crowd_warning(const Config& config, const PreflightInput& input);

/// Reads the file supervision.log_rules as the agents will. bad_config: it does not exist, or does
/// not hold valid rules. ok if no file is set.
Status check_log_rules(const Config& config);

/// Bytes of one checkpoint on disk; bytes of all checkpoints that the run keeps (checkpoint.keep,
/// permanent_every_steps) and of the one being written.
uint64_t checkpoint_bytes(const Plan& plan);
uint64_t checkpoint_space_bytes(const Config& config, const Plan& plan);

}  // namespace simplescale
