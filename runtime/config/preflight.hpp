// What can be known to fail before any process is started: folders, space, the port, the amount of
// data. Blocks on the file system; called by the launcher (or the first node agent) only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/config/topology.hpp"

namespace simplescale {

/// How the names of files begin that only show whether a folder can be written to.
inline constexpr const char* kWritableProbe = ".writable-";

struct PreflightInput {
  int trainers_on_host = 1;              // that will have their state in this host's shared memory
  bool writes_checkpoints = true;        // this host checks folders, disk and port
  bool prepares_data = false;            // text is still to become tokens in data.folder
  std::optional<uint64_t> train_tokens;  // once known
  std::string shared_memory_folder = "/dev/shm";
  bool oversubscribe = false;  // processes and memory are the user's business
  uint64_t host_memory = 0;    // bytes; 0: what this host has, or its control group may use
  int cores = 0;               // 0: those that this process may use
};

/// What a run starts on a host, and the memory that it takes there.
struct HostNeeds {
  int nodes = 0, trainers = 0, warm = 0, supervisors = 0;
  uint64_t shared = 0;    // bytes: shared_memory_bytes()
  uint64_t copies = 0;    // of the peer tier, on their way out of an agent
  uint64_t private_ = 0;  // of all processes, copies included
  int processes() const { return nodes + trainers + warm + supervisors; }
  uint64_t memory() const { return shared + private_; }
};
HostNeeds host_needs(const Config& config, const Plan& plan, int trainers);

/// Processes a core that a host may have: so many that only a mistake has more.
constexpr int processes_per_core_max = 64;

/// The first thing that will not work, in one line with figures. bad_config: run folder not
/// writable, too little disk or shared memory, port taken, http_host no address of this host, no
/// data named. bad_data: data.source is not there, fewer tokens than one sample. Leaves nothing
/// behind. Also bad_config: more processes than processes_per_core_max or than there is memory for,
/// unless oversubscribe.
Status preflight(const Config& config, const Plan& plan, const PreflightInput& input);

/// The file supervision.log_rules, if there is one, as the agents will read it. bad_config: it is
/// not there, or holds something else than rules.
Status check_log_rules(const Config& config);

/// Bytes of one checkpoint on disk, and of everything that checkpoint.keep and
/// permanent_every_steps keep, plus the one being written.
uint64_t checkpoint_bytes(const Plan& plan);
uint64_t checkpoint_space_bytes(const Config& config, const Plan& plan);

/// Shared memory of `trainers` trainers: both sides of the state, gathered parameters and
/// gradients, token rings.
uint64_t shared_memory_bytes(const Config& config, const Plan& plan, int trainers);

}  // namespace simplescale
