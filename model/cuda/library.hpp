// The one symbol by which the program reaches libsimplescale_cuda.so.
#pragma once

#include <memory>

#include "model/backend.hpp"

namespace simplescale {

struct CudaLibrary {
  /// unavailable with the reason where there is no driver, no such device, or one too old.
  Result<std::unique_ptr<Backend>> (*make_backend)(const BackendOptions& options);
};

inline constexpr const char* kCudaLibrary = "libsimplescale_cuda.so";
inline constexpr const char* kCudaLibrarySymbol = "simplescale_cuda_library";
using CudaLibraryFunction = const CudaLibrary* (*)();

}  // namespace simplescale
