// Zeroed memory that is asked for once, on huge pages where the system has them, and touched before
// it is used: no page faults and no allocator in the steady state.
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

  /// Lives as long as this object; 64-byte aligned, zeroed. An error names the size.
  Result<void*> allocate(size_t bytes);

 private:
  struct Mapping {
    void* address;
    size_t bytes;
  };
  std::vector<Mapping> mappings_;
};

}  // namespace simplescale::cpu
