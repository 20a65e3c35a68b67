// Reads the fields of a protobuf message one after the other, without recursion and without
// allocation. Every length is checked. Used in runtime/tokenizer/ only.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace simplescale {

static_assert(std::endian::native == std::endian::little, "fixed32 is little-endian");

class ProtobufReader {
 public:
  enum Wire : unsigned char { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
  struct Field {
    uint32_t number = 0;
    Wire wire = varint;
    uint64_t value = 0;     // of a varint, fixed64 or fixed32
    std::string_view data;  // of `bytes`
    float real() const {
      const auto bits = static_cast<uint32_t>(value);
      return std::bit_cast<float>(bits);
    }
  };

  explicit ProtobufReader(std::string_view message) : rest_(message) {}

  /// Reads the next field. False at the end of the message, or if it is broken().
  bool next(Field& field) {
    if (rest_.empty() || broken_) return false;
    const uint64_t key = read_varint();
    if (broken_ || key >> 3 == 0 || key >> 3 > UINT32_MAX >> 3) return fail();
    field = {static_cast<uint32_t>(key >> 3), static_cast<Wire>(key & 7), 0, {}};
    switch (field.wire) {
      case varint:
        field.value = read_varint();
        return !broken_;
      case fixed64:
        return read_fixed(field, 8);
      case fixed32:
        return read_fixed(field, 4);
      case bytes: {
        const uint64_t size = read_varint();
        if (broken_ || size > rest_.size()) return fail();
        field.data = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return true;
      }
    }
    return fail();  // a group, or no wire type
  }
  bool broken() const { return broken_; }

 private:
  bool fail() {
    broken_ = true;
    return false;
  }
  bool read_fixed(Field& field, size_t size) {
    if (rest_.size() < size) return fail();
    std::memcpy(&field.value, rest_.data(), size);
    rest_.remove_prefix(size);
    return true;
  }
  uint64_t read_varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    broken_ = true;
    return 0;
  }
  std::string_view rest_;
  bool broken_ = false;
};

}  // namespace simplescale
