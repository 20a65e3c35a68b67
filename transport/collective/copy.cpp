#include "transport/collective/copy.hpp"

#include <cstring>

namespace simplescale::collective {

void copy_bytes(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

}  // namespace simplescale::collective
