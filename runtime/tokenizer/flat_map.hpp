// A hash table from integers to integers, in one array whose size is set once. Used where a lookup
// must cost one cache line. Reading is safe from any thread.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "runtime/base/seeded_hash.hpp"

namespace simplescale {

class FlatMap {
 public:
  static constexpr uint64_t none = UINT64_MAX;  // no key and no value of the table

  /// entries: how many keys will be inserted at most.
  explicit FlatMap(size_t entries = 0) : slots_(std::bit_ceil(2 * entries + 1)) {}

  /// Inserts or replaces.
  void set(uint64_t key, uint64_t value) {
    Slot& slot = slots_[place(key)];
    slot = {key, value};
  }
  /// The value of the key, or none.
  uint64_t get(uint64_t key) const { return slots_[place(key)].value; }

 private:
  struct Slot {
    uint64_t key = none, value = none;
  };
  size_t place(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t at = static_cast<size_t>(hash_(key)) & mask;
    while (slots_[at].key != none && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }
  SeededHash hash_;
  std::vector<Slot> slots_;
};

}  // namespace simplescale
