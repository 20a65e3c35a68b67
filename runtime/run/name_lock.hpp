// The name of a node within a start of the run: the command that runs its agent locks a file for it.
//
//   control/name-<instance>-<node>
//
//   LOCK-2  At most one living command has the name of a node. If the command dies, the kernel, or
//           the file server, releases the name.
//
// Blocks on the file system; one thread.
#pragma once

#include <string>
#include <utility>

#include "runtime/run/run_folder.hpp"

namespace simplescale {

class NameLock {
 public:
  NameLock(NameLock&& other) noexcept : node_(other.node_), fd_(std::exchange(other.fd_, -1)) {}
  NameLock& operator=(NameLock&&) = delete;
  ~NameLock();
  /// Takes the name of this node. Waits at most one second for a command that is about to end.
  /// unavailable: a living command has it; io.
  static Result<NameLock> take(const RunFolder& run, const std::string& instance, int node);
  /// Takes the first free name of nodes `begin` to nodes_max - 1, or else of those below `begin`,
  /// whose commands are gone. unavailable: living commands have all of them; io.
  static Result<NameLock> take_free(const RunFolder& run, const std::string& instance, int begin,
                                    int nodes_max);
  int node() const { return node_; }

 private:
  NameLock(int node, int fd) : node_(node), fd_(fd) {}
  static Result<NameLock> attempt(const RunFolder& run, const std::string& instance, int node);
  int node_ = 0, fd_ = -1;
};

}  // namespace simplescale
