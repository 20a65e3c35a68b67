#include "model/cpu/memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/limits.hpp"

namespace simplescale::cpu {

Memory::~Memory() {
  for (const Mapping& mapping : mappings_) munmap(mapping.address, mapping.bytes);
}

Result<void*> Memory::allocate(size_t bytes) {
  constexpr size_t kSmall = 4096, kHuge = size_t{2} << 20;
  const size_t page = bytes >= kHuge ? kHuge : kSmall;
  const size_t rounded = (bytes + page - 1) / page * page + (bytes == 0 ? page : 0);
  // A mapping is aligned to small pages only, so this maps one huge page more and starts at the
  // first huge page boundary.
  const size_t mapped = rounded + (page == kHuge ? kHuge : 0);
  void* address = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    const int error = errno;
    return Status(Code::io, "cannot allocate " + std::to_string(bytes) + " bytes of memory" +
                                address_space_hint() + ": " + strerror(error));
  }
  mappings_.push_back({address, mapped});
  const auto start = (reinterpret_cast<size_t>(address) + page - 1) / page * page;
  auto* aligned = reinterpret_cast<unsigned char*>(start);
  if (page == kHuge) madvise(aligned, rounded, MADV_HUGEPAGE);
  for (size_t i = 0; i < rounded; i += kSmall) static_cast<volatile unsigned char*>(aligned)[i] = 0;
  return static_cast<void*>(aligned);
}

}  // namespace simplescale::cpu
