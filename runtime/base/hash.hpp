// xxh3-128, the checksum of all stored and transferred data. Any thread; a Hasher belongs to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace simplescale {

struct Hash128 {
  uint64_t high = 0, low = 0;
  bool operator==(const Hash128&) const = default;
  /// 32 lower-case hex digits, high half first.
  std::string hex() const;
};

Hash128 hash128(const void* data, size_t bytes);

/// Hashes data piece by piece; digest() equals hash128() of the concatenated pieces.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void update(const void* data, size_t bytes);
  Hash128 digest() const;

 private:
  void* state_;
};

}  // namespace simplescale
