// Loads libsimplescale_nccl.so on first use, and passes the calls of device_plane.hpp to it. The
// program itself does not link CUDA or NCCL.
#include "runtime/base/library.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

namespace {

Result<const NcclLibrary*> nccl_library() {
  SS_ASSIGN(void* symbol, load_gpu_symbol(kNcclLibrary, kNcclLibrarySymbol));
  return reinterpret_cast<NcclLibraryFunction>(symbol)();
}

}  // namespace

Result<DevicePlaneOptions> choose_device(int index, int trainers) {
  SS_ASSIGN(const NcclLibrary* library, nccl_library());
  return library->choose_device(index, trainers);
}

Result<std::unique_ptr<DataPlane>> make_device_plane(std::unique_ptr<DataPlane> host,
                                                     const DevicePlaneOptions& options) {
  SS_ASSIGN(const NcclLibrary* library, nccl_library());
  return library->make_device_plane(std::move(host), options);
}

std::shared_future<Status> prepare_nccl(int device_index, int timeout_ms) {
  const Result<const NcclLibrary*> library = nccl_library();
  if (library.ok()) return (*library)->prepare(device_index, timeout_ms);
  std::promise<Status> missing;
  missing.set_value(library.status());
  return missing.get_future();
}

}  // namespace simplescale
