#include "transport/ucx/library.hpp"

#include <dlfcn.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

namespace simplescale::ucx {

namespace {

constexpr size_t kHostNameMost = 63;  // libucs reads it into 64 bytes, and fails without the zero

Result<void*> open_library() {
  SS_RETURN_IF_ERROR(check_host());
  // The one whose headers this program was built with. Its dependency libucs comes along.
  if (void* library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL)) return library;
  return Status(Code::unavailable, std::string("transport.trusted_networks needs UCX: ") +
                                       dlerror() + "; install libucx0");
}

const Result<void*>& library() {
  static const Result<void*> opened = open_library();
  return opened;
}

/// Requires that load() has succeeded.
template <class Function>
Function* find(const char* name) {
  SS_ASSERT(library().ok());
  auto* found = reinterpret_cast<Function*>(dlsym(*library(), name));
  SS_ASSERT(found);
  return found;
}

}  // namespace

Status check_host_name(const std::string& name) {
  if (name.size() <= kHostNameMost) return {};
  return Status(Code::bad_config,
                "transport.trusted_networks: UCX cannot start on a host whose "
                "name has " +
                    std::to_string(name.size()) + " characters, " + name +
                    ": give the host a name of at most " + std::to_string(kHostNameMost) +
                    ", or leave transport.trusted_networks empty");
}

Status check_host() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return {};
  return check_host_name(name);
}

Status load() {
  if (!library().ok()) return library().status();
  for (const char* name :  // the newest, and two that are no part of UCX's interface
       {"ucp_am_recv_data_nbx", "ucs_debug_disable_signal", "ucs_global_opts_set_value"})
    if (!dlsym(*library(), name))
      return Status(Code::unavailable,
                    "transport.trusted_networks: this program cannot use the UCX that is "
                    "installed, which has no " +
                        std::string(name) + "; install version 1.13");
  return {};
}

}  // namespace simplescale::ucx

// What we use of UCX. Like every function that a program defines, these hide the library's own from
// our code, not from the library.
#define SS_PASS_ON(result, name, parameters, ...)                            \
  extern "C" result name parameters {                                        \
    static auto* const real = simplescale::ucx::find<decltype(name)>(#name); \
    return real(__VA_ARGS__);                                                \
  }

SS_PASS_ON(ucs_status_t, ucp_init_version,
           (unsigned major, unsigned minor, const ucp_params_t* params, const ucp_config_t* config,
            ucp_context_h* context),
           major, minor, params, config, context)
SS_PASS_ON(void, ucp_cleanup, (ucp_context_h context), context)
SS_PASS_ON(ucs_status_t, ucp_config_read,
           (const char* prefix, const char* file, ucp_config_t** config), prefix, file, config)
SS_PASS_ON(ucs_status_t, ucp_config_modify,
           (ucp_config_t * config, const char* name, const char* value), config, name, value)
SS_PASS_ON(void, ucp_config_release, (ucp_config_t * config), config)
SS_PASS_ON(ucs_status_t, ucp_worker_create,
           (ucp_context_h context, const ucp_worker_params_t* params, ucp_worker_h* worker),
           context, params, worker)
SS_PASS_ON(void, ucp_worker_destroy, (ucp_worker_h worker), worker)
SS_PASS_ON(unsigned, ucp_worker_progress, (ucp_worker_h worker), worker)
SS_PASS_ON(ucs_status_t, ucp_worker_get_efd, (ucp_worker_h worker, int* fd), worker, fd)
SS_PASS_ON(ucs_status_t, ucp_worker_arm, (ucp_worker_h worker), worker)
SS_PASS_ON(ucs_status_t, ucp_worker_signal, (ucp_worker_h worker), worker)
SS_PASS_ON(ucs_status_t, ucp_worker_get_address,
           (ucp_worker_h worker, ucp_address_t** address, size_t* bytes), worker, address, bytes)
SS_PASS_ON(void, ucp_worker_release_address, (ucp_worker_h worker, ucp_address_t* address), worker,
           address)
SS_PASS_ON(ucs_status_t, ucp_worker_set_am_recv_handler,
           (ucp_worker_h worker, const ucp_am_handler_param_t* param), worker, param)
SS_PASS_ON(ucs_status_ptr_t, ucp_worker_flush_nbx,
           (ucp_worker_h worker, const ucp_request_param_t* param), worker, param)
SS_PASS_ON(ucs_status_t, ucp_ep_create,
           (ucp_worker_h worker, const ucp_ep_params_t* params, ucp_ep_h* endpoint), worker, params,
           endpoint)
SS_PASS_ON(ucs_status_ptr_t, ucp_ep_close_nbx,
           (ucp_ep_h endpoint, const ucp_request_param_t* param), endpoint, param)
SS_PASS_ON(ucs_status_ptr_t, ucp_am_send_nbx,
           (ucp_ep_h endpoint, unsigned id, const void* header, size_t header_bytes,
            const void* buffer, size_t count, const ucp_request_param_t* param),
           endpoint, id, header, header_bytes, buffer, count, param)
SS_PASS_ON(ucs_status_ptr_t, ucp_am_recv_data_nbx,
           (ucp_worker_h worker, void* descriptor, void* buffer, size_t count,
            const ucp_request_param_t* param),
           worker, descriptor, buffer, count, param)
SS_PASS_ON(void, ucp_am_data_release, (ucp_worker_h worker, void* data), worker, data)
SS_PASS_ON(ucs_status_t, ucp_request_check_status, (void* request), request)
SS_PASS_ON(void, ucp_request_free, (void* request), request)
SS_PASS_ON(const char*, ucs_status_string, (ucs_status_t status), status)

extern "C" void ucs_debug_disable_signal(int number);
extern "C" ucs_status_t ucs_global_opts_set_value(const char* name, const char* value);
SS_PASS_ON(void, ucs_debug_disable_signal, (int number), number)
SS_PASS_ON(ucs_status_t, ucs_global_opts_set_value, (const char* name, const char* value), name,
           value)
