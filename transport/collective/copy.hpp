// Copies for large buffers that nobody reads again soon.
#pragma once

#include <cstddef>

namespace simplescale::collective {

/// memcpy; large ones bypass the cache where the processor can.
void copy_bytes(void* to, const void* from, size_t bytes);

}  // namespace simplescale::collective
