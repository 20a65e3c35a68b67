// The data plane of one trainer process on CPUs: collectives over shared memory for peers on this
// host, over UCX for peers on a trusted network, and over encrypted TCP for all others. It owns one
// shared-memory segment (the arena, which peers on this host map and read) and, unless the run is
// on one host, one StreamWorker with its thread. It has a UcxWorker only if an interface of this
// host lies on a trusted network; without one no socket of UCX is opened.
//
//   SS_ASSIGN(auto plane,
//             DataPlane::create({.shm_prefix = "ss-run-n0.1-3", .arena_bytes = 256 << 20}));
//   send(plane->address());  // over the control plane, to every other member
//   SS_ASSIGN(auto shard, plane->join({.generation = 7, .name = "shard", .rank = 1,
//                                      .members = addresses}));
//   SS_ASSIGN(void* full, shard->allocate(bytes));
//   auto work = shard->all_gather(mine, full, count, DType::bf16);
//   ... compute ...
//   SS_RETURN_IF_ERROR(work->wait());
//
// Threads: the compute thread calls create, join and the collectives' operations. Another thread
// may use another communicator; a lock serializes them. Any thread may call abort(). Destroy
// communicators before their plane. Create the plane after fork and exec: UCX does not survive
// fork.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/training/collective.hpp"

namespace simplescale {

/// The environment variable with which ranks that share a host exchange with other hosts one by one
/// (plan.hpp), so that benchmarks can compare. The same for every member.
inline constexpr const char* kOneLevel = "SIMPLESCALE_ONE_LEVEL";

struct DataPlaneOptions {
  std::string shm_prefix;  ///< name of the segment: unique per run, trainer and incarnation; no '/'
  size_t arena_bytes = size_t{64} << 20;  ///< for allocate(), over all communicators together
  size_t arena_pages_bytes = 0;  ///< of it, that get memory now, the others when needed; 0: all
  bool network = true;  ///< false: all members are on this host, and no network socket is opened
  std::string key;      ///< of the run, 32 bytes; members without it are not heard
  std::string trusted_networks;  ///< the key of the config: see parse_trusted_networks()
  std::string host_id;           ///< members with equal ids share memory; empty: this_host_id()
  size_t staging_bytes = size_t{4} << 20;  ///< per communicator, for sources outside the arena
  int communicators = 4;                   ///< how many at a time the segment has room for
  int ranks_max = 64;                      ///< of a communicator
  int spin_us = -1;  ///< busy wait before sleeping; -1: 100 if the ranks here fit the cores, else 0
  /// Common prefix of shm_prefix of all planes on this node; used by inject_network_fault() only.
  std::string node_prefix;
};

/// An injected fault of the links between nodes. With a delay, every operation waits that long
/// before it begins; without, no data passes.
struct NetworkFault {
  std::chrono::milliseconds delay{0};
  std::chrono::milliseconds for_time{0};  ///< how long the fault lasts
};

struct CommunicatorSpec {
  uint64_t generation = 0;
  std::string name;  ///< "shard", "replicate", "world"; the same on every member
  int rank = 0;
  /// address() of every rank, in rank order; members[rank] is this process's.
  std::vector<std::vector<uint8_t>> members;
  int timeout_ms = 60'000;   ///< for join() and, later, for every wait()
  bool host_memory = false;  ///< the buffers are in host memory, even if the plane is a GPU's
  /// NCCL: gathers and broadcasts use a communicator and a stream of their own, so that they do not
  /// queue behind sums. The same on every member.
  bool separate_gathers = false;
};

/// Processes with equal ids can share memory: boot id, PID and network namespaces.
std::string this_host_id();

class DataPlane {
 public:
  /// Code::io: no room for the segment. bad_config: trusted_networks. Otherwise the error of a
  /// worker that cannot start.
  static Result<std::unique_ptr<DataPlane>> create(const DataPlaneOptions& options);
  virtual ~DataPlane() = default;

  /// The address for CommunicatorSpec::members: opaque, a few hundred bytes, valid for the plane's
  /// lifetime.
  virtual std::vector<uint8_t> address() const = 0;

  /// Returns once every member has joined the same generation and name. A (generation, name) can be
  /// joined once. Code::deadline names the ranks that did not join; Code::aborted: abort() was
  /// called, or the generation is older than one joined before; Code::unavailable: a member died;
  /// or is on another host, but the plane is without network; Code::bad_data: a malformed address;
  /// Code::io: no room in the segment.
  virtual Result<std::unique_ptr<Collective>> join(const CommunicatorSpec& spec) = 0;

  /// Fences all generations <= `generation`: their communicators and joins, running or future, end
  /// with Code::aborted and this reason. Any thread, returns at once.
  virtual void abort(uint64_t generation, const std::string& reason) = 0;

  /// Applies the fault to all communicators, running or future, that have members on other nodes.
  /// Operations only wait; no data is lost. Any thread, returns at once. With GPUs it affects only
  /// what is sent over host memory.
  virtual void inject_network_fault(const NetworkFault& fault) = 0;
};

}  // namespace simplescale
