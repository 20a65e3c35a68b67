#include "tools/exports/checksum.hpp"

#include <array>

namespace simplescale {

namespace {

using Table = std::array<uint32_t, 256>;

/// polynomial: in reversed bit order.
constexpr Table table_of(uint32_t polynomial) {
  Table table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ polynomial : crc >> 1;
    table[i] = crc;
  }
  return table;
}

uint32_t checksum(const Table& table, std::string_view data, uint32_t before) {
  uint32_t crc = ~before;
  for (const char c : data) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

}  // namespace

uint32_t crc32(std::string_view data, uint32_t before) {
  static constexpr Table table = table_of(0xEDB88320);
  return checksum(table, data, before);
}

uint32_t crc32c(std::string_view data) {
  static constexpr Table table = table_of(0x82F63B78);
  return checksum(table, data, 0);
}

}  // namespace simplescale
