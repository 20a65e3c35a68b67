#include "model/cuda/library.hpp"

#include "model/cuda/cuda_backend.hpp"

extern "C" __attribute__((visibility("default"))) const simplescale::CudaLibrary*
simplescale_cuda_library() {
  static constexpr simplescale::CudaLibrary library{
      .make_backend = simplescale::cuda::make_backend,
      .hold_context = simplescale::cuda::hold_context,
      .drop_context = simplescale::cuda::drop_context};
  return &library;
}
