// Checksums of the exported files: crc32 for W&B, crc32c for TensorBoard. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace simplescale {

/// CRC-32 as in zlib. before: the checksum of the bytes that precede `data`.
uint32_t crc32(std::string_view data, uint32_t before = 0);
/// CRC-32C (Castagnoli), as in iSCSI.
uint32_t crc32c(std::string_view data);

}  // namespace simplescale
