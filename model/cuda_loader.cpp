// Loads the CUDA backend's library on demand; the program itself does not link CUDA.
#include "model/cuda/library.hpp"
#include "runtime/base/library.hpp"

namespace simplescale {

namespace {
Result<const CudaLibrary*> library() {
  SS_ASSIGN(void* symbol, load_gpu_symbol(kCudaLibrary, kCudaLibrarySymbol));
  return reinterpret_cast<CudaLibraryFunction>(symbol)();
}
}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendOptions& options) {
  SS_ASSIGN(const CudaLibrary* cuda, library());
  return cuda->make_backend(options);
}

Status load_cuda_backend() {
  return library().status();
}

Status hold_cuda_context(int device_index) {
  SS_ASSIGN(const CudaLibrary* cuda, library());
  return cuda->hold_context(device_index);
}

void drop_cuda_context(int device_index) {
  if (const auto cuda = library(); cuda.ok()) (*cuda)->drop_context(device_index);
}

}  // namespace simplescale
