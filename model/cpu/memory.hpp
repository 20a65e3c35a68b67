// Zeroed memory that is allocated once, on huge pages if the system has them, and touched before it
// is used: a training step takes no page faults and calls no allocator.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale::cpu {

class Memory {
 public:
  Memory() = default;
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Zeroed, 64-byte aligned memory that lives as long as this object. io: the error names the
  /// size.
  Result<void*> allocate(size_t bytes);

 private:
  struct Mapping {
    void* address;
    size_t bytes;
  };
  std::vector<Mapping> mappings_;
};

}  // namespace simplescale::cpu
