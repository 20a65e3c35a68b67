// The memory of this host as far as this process may use it: control groups (Slurm's --mem, a
// container's limit) bound it, versions 1 and 2. Any thread; reads /proc and /sys.
#pragma once

#include <cstdint>
#include <string>

namespace simplescale {

/// Bytes of memory of this host, or the lowest limit of this process's control groups; 0: unknown.
/// root: a folder with `proc` and `sys`.
uint64_t memory_of_host(const std::string& root = "/");

/// Bytes that this process may still use: the least of what the host has left, swap space included,
/// and of what each control group's limit leaves. File cache, which the kernel gives back, counts
/// as left; shared memory does not. UINT64_MAX: unknown. root: as above.
uint64_t memory_left(const std::string& root = "/");

}  // namespace simplescale
