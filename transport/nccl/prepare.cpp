#include "transport/nccl/prepare.hpp"

#include <system_error>
#include <thread>
#include <utility>

#include "transport/nccl/status.hpp"
#include "transport/nccl/stream.hpp"

namespace simplescale::nccl {
namespace {

Status make_and_end(int device_index, int timeout_ms) {
  const auto limit = Clock::now() + std::chrono::milliseconds(timeout_ms);
  SS_RETURN_IF_ERROR(SS_CUDA_STATUS(cudaSetDevice(device_index)));
  ncclUniqueId id;
  SS_RETURN_IF_ERROR(nccl_status(ncclGetUniqueId(&id), "identifier", nullptr));
  ncclComm_t comm = nullptr;
  const auto done = [&](ncclResult_t begun, const char* what) {
    if (is_error(begun)) return nccl_status(begun, what, comm);
    const Status status = poll(limit, [&]() -> Result<bool> {
      ncclResult_t state = ncclSuccess;
      SS_RETURN_IF_ERROR(nccl_status(ncclCommGetAsyncError(comm, &state), what, comm));
      SS_RETURN_IF_ERROR(nccl_status(state, what, comm));
      return state == ncclSuccess;
    });
    if (status.code() != Code::deadline) return status;
    return Status(Code::unavailable, std::string("NCCL: ") + what + " did not end within " +
                                         std::to_string(timeout_ms) + " ms");
  };
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  Status status = done(ncclCommInitRankConfig(&comm, 1, id, 0, &config), "init");
  if (status.ok()) status = done(ncclCommFinalize(comm), "finalize");
  if (status.ok()) return nccl_status(ncclCommDestroy(comm), "destroy", nullptr);
  if (comm) (void)ncclCommAbort(comm);
  return status;
}

}  // namespace

std::shared_future<Status> prepare(int device_index, int timeout_ms) {
  std::promise<Status> result;
  std::shared_future<Status> future = result.get_future();
  try {
    std::thread([=, made = std::move(result)]() mutable {
      made.set_value(make_and_end(device_index, timeout_ms));
    }).detach();
  } catch (const std::system_error& error) {
    std::promise<Status> none;
    none.set_value(Status(Code::unavailable, std::string("no thread for NCCL: ") + error.what()));
    return none.get_future();
  }
  return future;
}

}  // namespace simplescale::nccl
