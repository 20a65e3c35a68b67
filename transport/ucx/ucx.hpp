// RAII wrappers for UCX: Context (the library), Worker (a progress engine with an address) and
// Endpoint (a connection to one peer). A Worker and its Endpoints belong to one thread; other
// threads may only call Worker::signal(). Create them after exec, never before a fork.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale::ucx {

/// "WHAT: UCX's message". Code::unavailable for a lost or unreachable peer, Code::aborted for a
/// canceled request, else Code::internal.
Status to_status(ucs_status_t status, const std::string& what);

/// The InfiniBand and RoCE ports behind network interfaces, as UCX and NCCL name them.
struct RdmaPorts {
  std::vector<std::string> names;  // "mlx5_0:1", each once, sorted
  std::string partition;           // of InfiniBand: "0x8001"; or empty
  int key_index = 0;               // of the partition, in the ports' tables of keys
};
/// bad_config: the interfaces are of several partitions, or the ports have the partition's key at
/// different indices. sys: for tests.
Result<RdmaPorts> rdma_ports(const std::vector<std::string>& interfaces,
                             const std::string& sys = "/sys/class/net");

/// Devices to which UCX is limited, in UCX's names: "eth0,mlx5_0:1".
struct Devices {
  std::string names;
  std::string partition;  // of InfiniBand: "0x8001"; or empty
};
/// The devices of network interfaces: the interface itself for TCP, and the InfiniBand or RoCE
/// device behind it. UCX_NET_DEVICES may leave some out, but add none. bad_config: none is left, or
/// the interfaces are of several InfiniBand partitions. sys: for tests.
Result<Devices> devices_of(const std::vector<std::string>& interfaces,
                           const std::string& sys = "/sys/class/net");

/// An instance of the UCX library. features: UCP_FEATURE_* bits. transports: the value of UCX_TLS,
/// e.g. "^sm"; null: UCX chooses. devices: null: all. Unless the environment says otherwise, it allows shared memory
/// with peer error handling (UCX_POSIX/SYSV_ERROR_HANDLING=y), disables UCX's signal handlers, and
/// uses `transports`.
class Context {
 public:
  static Result<std::unique_ptr<Context>> create(uint64_t features,
                                                 const char* transports = nullptr,
                                                 const Devices* devices = nullptr);
  ~Context() { ucp_cleanup(handle_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ucp_context_h handle() const { return handle_; }

 private:
  explicit Context(ucp_context_h handle) : handle_(handle) {}
  ucp_context_h handle_;
};

/// A progress engine for one thread. Must be destroyed after its endpoints and before its context.
class Worker {
 public:
  static Result<std::unique_ptr<Worker>> create(const Context& context);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_worker_h handle() const { return handle_; }
  /// The address from which a peer creates an Endpoint to this worker: opaque, a few hundred bytes.
  const std::vector<uint8_t>& address() const { return address_; }
  /// Progresses UCX; true if there was work.
  bool progress() { return ucp_worker_progress(handle_) != 0; }
  /// Progresses UCX until all sends have completed, at most timeout_ms: with dead peers they may
  /// not. False on a timeout or an error.
  bool flush(int timeout_ms);
  /// Prepares event_fd() for one wait. False: call progress() first. Needs UCP_FEATURE_WAKEUP.
  Result<bool> arm();
  /// Readable if there is work for progress(). -1 without UCP_FEATURE_WAKEUP.
  int event_fd() const { return event_fd_; }
  /// Makes event_fd() readable. Any thread.
  void signal() { ucp_worker_signal(handle_); }
  /// Calls `callback(argument, ...)` for active messages with this id. flags: UCP_AM_FLAG_*.
  Status on_message(unsigned id, ucp_am_recv_callback_t callback, void* argument, uint32_t flags);

 private:
  explicit Worker(ucp_worker_h handle) : handle_(handle) {}
  ucp_worker_h handle_;
  int event_fd_ = -1;
  std::vector<uint8_t> address_;
};

/// A connection to one peer, with peer error handling. `on_error` runs at most once, inside
/// Worker::progress(), and must not destroy the endpoint.
class Endpoint {
 public:
  using OnError = std::function<void(ucs_status_t)>;
  /// Fails at once if no transport reaches the address. The loss of a peer may also be reported by
  /// `on_error` later.
  static Result<std::unique_ptr<Endpoint>> create(Worker& worker, const void* address,
                                                  OnError on_error);
  /// Closes at once and discards unsent data. Progresses the worker until that is done; do not call
  /// it inside Worker::progress().
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  ucp_ep_h handle() const { return handle_; }

 private:
  Endpoint(Worker& worker, OnError on_error) : worker_(worker), on_error_(std::move(on_error)) {}
  Worker& worker_;
  OnError on_error_;
  ucp_ep_h handle_ = nullptr;
};

}  // namespace simplescale::ucx
