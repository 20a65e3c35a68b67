// The checksums of event files. Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace simplescale {

/// As in zlib; before: the checksum of what comes before data.
uint32_t crc32(std::string_view data, uint32_t before = 0);
/// Castagnoli's polynomial, as in iSCSI.
uint32_t crc32c(std::string_view data);

}  // namespace simplescale
