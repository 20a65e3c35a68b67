// Shared by the calls that take the places of the C library's.
#pragma once

#include <dlfcn.h>

#include <cerrno>

#include "faults.hpp"

namespace file_faults {

/// The function of the C library that a function here replaces.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// True if the call must fail; sets errno.
inline bool fails(Call call, const Path& path) {
  if (!path) return false;
  const Choice choice = choose(call, path);
  if (choice.effect != Effect::fail) return false;
  errno = choice.error;
  return true;
}

}  // namespace file_faults
