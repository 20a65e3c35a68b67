// The exported function through which the program calls libsimplescale_cuda.so.
#pragma once

#include <memory>

#include "model/backend.hpp"

namespace simplescale {

struct CudaLibrary {
  /// unavailable, with the reason: no driver, no such device, or a device that is too old.
  Result<std::unique_ptr<Backend>> (*make_backend)(const BackendOptions& options);
  Status (*hold_context)(int device_index);
  void (*drop_context)(int device_index);
};

inline constexpr const char* kCudaLibrary = "libsimplescale_cuda.so";
inline constexpr const char* kCudaLibrarySymbol = "simplescale_cuda_library";
using CudaLibraryFunction = const CudaLibrary* (*)();

}  // namespace simplescale
