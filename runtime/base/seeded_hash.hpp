// Hashes for tables in memory whose keys a stranger may choose: the words of a tokenizer, or of a
// text. Without the seed, which every process draws anew, no keys can be chosen that share a hash
// and so make a table as slow as a list. The order of such a table differs between processes:
// nothing may depend on it. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace simplescale {

class SeededHash {
 public:
  using is_transparent = void;
  SeededHash();
  size_t operator()(std::string_view text) const;
  /// All bits depend on all bits of the key.
  uint64_t operator()(uint64_t key) const {
    uint64_t hash = (key ^ seed_) * factor_;
    hash = (hash ^ hash >> 32) * factor_;
    return hash ^ hash >> 32;
  }

 private:
  uint64_t seed_, factor_;
};

}  // namespace simplescale
