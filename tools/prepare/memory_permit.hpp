// The memory that long rows of text take, over all threads of a process.
#pragma once

namespace simplescale {

/// What becomes of a row takes several times its memory. So whatever reads a row of more than a few MiB
/// holds a permit until the row is used, and a process has two of them. Any thread. Waits for one
/// without a deadline: the threads that hold them read files, whose reads have one.
class MemoryPermit {
 public:
  MemoryPermit();
  MemoryPermit(const MemoryPermit&) = delete;
  MemoryPermit& operator=(const MemoryPermit&) = delete;
  ~MemoryPermit();
};

}  // namespace simplescale
