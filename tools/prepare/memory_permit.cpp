#include "tools/prepare/memory_permit.hpp"

#include <semaphore>

namespace simplescale {

namespace {
std::counting_semaphore<> permits{2};
}

MemoryPermit::MemoryPermit() {
  permits.acquire();
}

MemoryPermit::~MemoryPermit() {
  permits.release();
}

}  // namespace simplescale
