// UCX as three RAII types: Context (the library), Worker (a progress engine and its address) and
// Endpoint (a way to one peer). A Worker and its Endpoints belong to one thread; only
// Worker::signal() may be called from others. Create them after exec, never before a fork.
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

/// `what: UCX's words` with Code::unavailable for lost or unreachable peers, Code::internal
/// otherwise.
Status to_status(ucs_status_t status, const std::string& what);

/// One per use of UCX in a process. `features` are UCP_FEATURE_* bits.
/// Shared memory is allowed next to peer error handling (UCX_POSIX/SYSV_ERROR_HANDLING=y), and
/// UCX's own signal handlers are taken out, unless the environment says otherwise.
/// `transports`: the value of UCX_TLS where the environment has none, e.g. "^sm"; null: UCX's
/// choice.
class Context {
 public:
  static Result<std::unique_ptr<Context>> create(uint64_t features,
                                                 const char* transports = nullptr);
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
  /// What a peer needs to create an Endpoint to this worker: opaque bytes, a few hundred.
  const std::vector<uint8_t>& address() const { return address_; }
  /// Runs UCX; true if something happened.
  bool progress() { return ucp_worker_progress(handle_) != 0; }
  /// Runs UCX until all that was sent has left, or the time is over; false in that case. Peers may
  /// be dead.
  bool flush(int timeout_ms);
  /// Prepares event_fd() for one wait; false if there is something to progress first. Needs
  /// UCP_FEATURE_WAKEUP.
  Result<bool> arm();
  /// Readable when there is something to progress; -1 without UCP_FEATURE_WAKEUP.
  int event_fd() const { return event_fd_; }
  /// Makes event_fd() readable. Any thread.
  void signal() { ucp_worker_signal(handle_); }
  /// Routes active messages with this id to `callback(argument, ...)`; `flags` are UCP_AM_FLAG_*.
  Status on_message(unsigned id, ucp_am_recv_callback_t callback, void* argument, uint32_t flags);

 private:
  explicit Worker(ucp_worker_h handle) : handle_(handle) {}
  ucp_worker_h handle_;
  int event_fd_ = -1;
  std::vector<uint8_t> address_;
};

/// A way to one peer, with peer error handling. `on_error` runs at most once, inside
/// Worker::progress(), and must not destroy the endpoint there.
class Endpoint {
 public:
  using OnError = std::function<void(ucs_status_t)>;
  /// Fails at once if the peer's address cannot be reached from here at all; a peer that is gone
  /// may also be told by `on_error` later.
  static Result<std::unique_ptr<Endpoint>> create(Worker& worker, const void* address,
                                                  OnError on_error);
  /// Closes at once, unsent data is lost; runs the worker until that is done. Not inside
  /// Worker::progress().
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
