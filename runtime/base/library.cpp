#include "runtime/base/library.hpp"

#include <dlfcn.h>

#include <filesystem>

namespace simplescale {

Result<void*> load_symbol(const std::string& library, const std::string& symbol,
                          const std::string& advice) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status(Code::unavailable, "/proc/self/exe: " + error.message());
  const std::string path = program.parent_path() / library;
  if (!std::filesystem::exists(path, error))
    return Status(Code::unavailable, path + " is missing: " + advice);
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return Status(Code::unavailable, std::string("cannot load ") + dlerror() +
                                         " (searched: LD_LIBRARY_PATH, the run paths of " + path +
                                         " and of libtorch, the system's folders)");
  if (void* address = dlsym(handle, symbol.c_str())) return address;
  return Status(Code::unavailable,
                path + " is of another version, build again: it has no " + symbol);
}

Status load_gpu_driver() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) return {};
  return Status(Code::unavailable, std::string("no NVIDIA driver: ") + dlerror());
}

Result<void*> load_gpu_symbol(const std::string& library, const std::string& symbol) {
  // The driver's library first: it is small, and without it loading the rest is a waste.
  SS_RETURN_IF_ERROR(load_gpu_driver());
  return load_symbol(library, symbol, "build again on a machine that has nvcc");
}

}  // namespace simplescale
