// Loads the CUDA backend's library on demand; the program itself does not link CUDA.
#include "model/cuda/library.hpp"
#include "runtime/base/library.hpp"

namespace simplescale {

Result<std::unique_ptr<Backend>> make_cuda_backend(const BackendOptions& options) {
  SS_ASSIGN(void* symbol, load_gpu_symbol(kCudaLibrary, kCudaLibrarySymbol));
  return reinterpret_cast<CudaLibraryFunction>(symbol)()->make_backend(options);
}

Status load_cuda_backend() {
  return load_gpu_symbol(kCudaLibrary, kCudaLibrarySymbol).status();
}

}  // namespace simplescale
