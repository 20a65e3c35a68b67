#include "transport/ucx/ucx.hpp"

#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <mutex>

#include "runtime/base/log.hpp"
#include "transport/ucx/library.hpp"

// Exported by libucs; declared here because its headers include much of UCX's internals.
extern "C" void ucs_debug_disable_signal(int signum);
extern "C" ucs_status_t ucs_global_opts_set_value(const char* name, const char* value);

namespace simplescale::ucx {
namespace {

/// Sets UCX's defaults through its environment variables, once per process, before the first
/// context.
void set_defaults() {
  static std::once_flag once;
  std::call_once(once, [] {
    setenv("UCX_POSIX_ERROR_HANDLING", "y", 0);
    setenv("UCX_SYSV_ERROR_HANDLING", "y", 0);
    // By default UCX blocks in connect(), over two minutes for a host that does not answer, which
    // also delays all other peers of the worker.
    setenv("UCX_TCP_CONN_NB", "y", 0);
    // UCX reads the next options when the library is loaded, so the environment is too late.
    if (!std::getenv("UCX_WARN_UNUSED_ENV_VARS")) {
      (void)ucs_global_opts_set_value("WARN_UNUSED_ENV_VARS", "n");
    }
    // Callers log errors themselves; UCX would print every refused connection to stdout.
    if (!std::getenv("UCX_LOG_LEVEL")) (void)ucs_global_opts_set_value("LOG_LEVEL", "fatal");
    if (!std::getenv("UCX_HANDLE_ERRORS")) {
      (void)ucs_global_opts_set_value("HANDLE_ERRORS", "none");
      for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ucs_debug_disable_signal(signal);
    }
  });
}

}  // namespace

Status to_status(ucs_status_t status, const std::string& what) {
  if (status == UCS_OK) return {};
  bool peer = status == UCS_ERR_UNREACHABLE || status == UCS_ERR_ENDPOINT_TIMEOUT ||
              status == UCS_ERR_CONNECTION_RESET || status == UCS_ERR_NOT_CONNECTED ||
              status == UCS_ERR_REJECTED || status == UCS_ERR_NO_DEVICE ||
              status == UCS_ERR_SHMEM_SEGMENT || status == UCS_ERR_IO_ERROR;
  if (status == UCS_ERR_CANCELED) return {Code::aborted, what + ": canceled"};
  return {peer ? Code::unavailable : Code::internal, what + ": " + ucs_status_string(status)};
}

Result<std::unique_ptr<Context>> Context::create(uint64_t features, const char* transports,
                                                 const Devices* devices) {
  SS_RETURN_IF_ERROR(load());
  set_defaults();
  if (devices && !devices->partition.empty()) setenv("UCX_IB_PKEY", devices->partition.c_str(), 1);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = features;
  ucp_context_h handle = nullptr;
  ucp_config_t* config = nullptr;
  SS_RETURN_IF_ERROR(to_status(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read"));
  if (transports && !std::getenv("UCX_TLS")) (void)ucp_config_modify(config, "TLS", transports);
  if (devices) {
    const Status set = to_status(ucp_config_modify(config, "NET_DEVICES", devices->names.c_str()),
                                 "ucp_config_modify(NET_DEVICES)");
    if (!set.ok()) {
      ucp_config_release(config);
      return set;
    }
  }
  const ucs_status_t status = ucp_init(&params, config, &handle);
  ucp_config_release(config);
  SS_RETURN_IF_ERROR(to_status(status, "ucp_init"));
  return std::unique_ptr<Context>(new Context(handle));
}

Result<std::unique_ptr<Worker>> Worker::create(const Context& context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h handle = nullptr;
  SS_RETURN_IF_ERROR(
      to_status(ucp_worker_create(context.handle(), &params, &handle), "ucp_worker_create"));
  std::unique_ptr<Worker> worker(new Worker(handle));
  if (ucp_worker_get_efd(handle, &worker->event_fd_) != UCS_OK) worker->event_fd_ = -1;
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  SS_RETURN_IF_ERROR(
      to_status(ucp_worker_get_address(handle, &address, &bytes), "ucp_worker_get_address"));
  auto* begin = reinterpret_cast<const uint8_t*>(address);
  worker->address_.assign(begin, begin + bytes);
  ucp_worker_release_address(handle, address);
  return worker;
}

// UCX 1.13 aborts the process in ucp_worker_destroy if its reply to a connecting peer is not sent
// yet, and flush() does not wait for that reply. So progress until nothing has happened for kQuiet.
Worker::~Worker() {
  constexpr auto kQuiet = std::chrono::milliseconds(20), kMost = std::chrono::milliseconds(500);
  flush(100);
  auto start = std::chrono::steady_clock::now(), last = start, now = start;
  while (now - last < kQuiet && now - start < kMost) {
    bool busy = progress();
    now = std::chrono::steady_clock::now();
    if (busy) last = now;
  }
  ucp_worker_destroy(handle_);
}

bool Worker::flush(int timeout_ms) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  ucp_request_param_t params{};
  ucs_status_ptr_t request = ucp_worker_flush_nbx(handle_, &params);
  if (!UCS_PTR_IS_PTR(request)) return !UCS_PTR_IS_ERR(request);
  ucs_status_t status;
  while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS &&
         std::chrono::steady_clock::now() < deadline) {
    progress();
  }
  ucp_request_free(request);
  return status == UCS_OK;
}

Result<bool> Worker::arm() {
  ucs_status_t status = ucp_worker_arm(handle_);
  if (status == UCS_OK) return true;
  if (status == UCS_ERR_BUSY) return false;
  return to_status(status, "ucp_worker_arm");
}

Status Worker::on_message(unsigned id, ucp_am_recv_callback_t callback, void* argument,
                          uint32_t flags) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = id;
  params.flags = flags;
  params.cb = callback;
  params.arg = argument;
  return to_status(ucp_worker_set_am_recv_handler(handle_, &params),
                   "ucp_worker_set_am_recv_handler");
}

Result<std::unique_ptr<Endpoint>> Endpoint::create(Worker& worker, const void* address,
                                                   OnError on_error) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(worker, std::move(on_error)));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = static_cast<const ucp_address_t*>(address);
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t status) {
    auto& on_error = static_cast<Endpoint*>(self)->on_error_;
    if (on_error) on_error(status);
  };
  params.err_handler.arg = endpoint.get();
  SS_RETURN_IF_ERROR(
      to_status(ucp_ep_create(worker.handle(), &params, &endpoint->handle_), "ucp_ep_create"));
  return endpoint;
}

Endpoint::~Endpoint() {
  if (!handle_) return;
  on_error_ = nullptr;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t request = ucp_ep_close_nbx(handle_, &params);
  if (!UCS_PTR_IS_PTR(request)) return;
  while (ucp_request_check_status(request) == UCS_INPROGRESS) worker_.progress();
  ucp_request_free(request);
}

}  // namespace simplescale::ucx
