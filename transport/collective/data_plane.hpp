// The data plane of one trainer process on CPUs: collectives over shared memory for peers on this
// host and over UCX for the others. It owns one shared-memory segment (the arena, which peers on
// this host map and read) and one UCX worker with its progress thread.
//
//   SS_ASSIGN(auto plane, DataPlane::create({.shm_prefix = "ss-run-n0.1-3", .arena_bytes = 256 <<
//   20})); send(plane->address());                                // by the control plane, to
//   everybody SS_ASSIGN(auto shard, plane->join({.generation = 7, .name = "shard", .rank = 1,
//   .members = addresses})); SS_ASSIGN(void* full, shard->allocate(bytes)); auto work =
//   shard->all_gather(mine, full, count, DType::bf16);
//   ... compute ...
//   SS_RETURN_IF_ERROR(work->wait());
//
// Threads: create, join and the collectives' operations belong to the compute thread (another
// thread may use another communicator; they take turns); abort() may come from any thread.
// Communicators must be destroyed before their plane. Create it after fork and exec: UCX does not
// survive fork.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

struct DataPlaneOptions {
  std::string shm_prefix;  ///< name of the segment: unique per run, trainer and incarnation; no '/'
  size_t arena_bytes =
      size_t{64} << 20;  ///< what allocate() can give out, over all communicators together
  std::string host_id;   ///< members with equal ids share memory; empty: this_host_id()
  size_t staging_bytes = size_t{4} << 20;  ///< per communicator, for sources outside the arena
  int communicators = 4;                   ///< how many at a time the segment has room for
  int spin_us = -1;  ///< busy wait before sleeping; -1: 100 if the ranks here fit the cores, else 0
  std::string
      node_prefix;  ///< of the shm_prefix of all planes of this node; for inject_network_fault() alone
};

/// Links between nodes in trouble, for tests. At most one of the two.
struct NetworkFault {
  std::chrono::milliseconds delay{0};     ///< every operation waits so long before it begins
  std::chrono::milliseconds for_time{0};  ///< how long this lasts; without a delay nothing passes
};

struct CommunicatorSpec {
  uint64_t generation = 0;
  std::string name;  ///< "shard", "replicate", "world"; every member gives the same
  int rank = 0;
  std::vector<std::vector<uint8_t>>
      members;               ///< address() of every rank, in rank order; members[rank] is our own
  int timeout_ms = 60'000;   ///< of join and, afterwards, of every wait()
  bool host_memory = false;  ///< for buffers in host memory, also where the plane is a GPU's
};

/// Boot id, IPC, PID and network namespaces and /dev/shm's device: processes with equal ids can
/// share memory.
std::string this_host_id();

class DataPlane {
 public:
  static constexpr int kMaxRanks = 64;

  /// Code::io: no room for the segment; Code::unavailable: UCX does not start.
  static Result<std::unique_ptr<DataPlane>> create(const DataPlaneOptions& options);
  virtual ~DataPlane() = default;

  /// What peers need to reach this process: opaque, a few hundred bytes, valid for the plane's
  /// lifetime.
  virtual std::vector<uint8_t> address() const = 0;

  /// Returns once every member has joined the same generation and name. Code::deadline names the
  /// ranks that did not; Code::aborted: see abort(), also for a generation older than one joined
  /// before; Code::bad_data: a malformed address. A (generation, name) can be joined once.
  virtual Result<std::unique_ptr<Collective>> join(const CommunicatorSpec& spec) = 0;

  /// Fences: every communicator and every join, running or future, of a generation <= `generation`
  /// ends with Code::aborted and this reason. Any thread, returns at once.
  virtual void abort(uint64_t generation, const std::string& reason) = 0;

  /// From now on communicators with members of other nodes, running or future, are in trouble;
  /// nothing is lost by it. Any thread, returns at once. On GPUs only what goes over host memory.
  virtual void inject_network_fault(const NetworkFault& fault) = 0;
};

}  // namespace simplescale
