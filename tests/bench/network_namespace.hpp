// Moves a benchmark's process to a network namespace that `ip netns add` has made, as if it were on
// a host of its own.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace simplescale {

/// Call it before other threads exist. Mounts the namespace's own /sys, where UCX looks for
/// interfaces. Ends the process if it fails: it needs root.
inline void enter_network_namespace(const std::string& name) {
  const int space = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) != 0 || unshare(CLONE_NEWNS) != 0 ||
      mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) != 0 ||
      (umount2("/sys", MNT_DETACH), mount("sys", "/sys", "sysfs", MS_RDONLY, nullptr)) != 0) {
    std::perror(("cannot enter the network namespace " + name).c_str());
    _exit(1);
  }
  close(space);
}

}  // namespace simplescale
