// Byte-pair encoding of one word, as the model "BPE" of Hugging Face's tokenizers: the word becomes
// symbols (bytes or characters), and the pair of neighbours that comes first in the list of merges
// becomes one symbol, until no pair is in the list. BpeModel is plain data, immutable once it is
// filled; any thread. A BpeScratch belongs to one thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/seeded_hash.hpp"
#include "runtime/tokenizer/flat_map.hpp"

namespace simplescale {

using Vocabulary = std::unordered_map<std::string, int32_t, SeededHash, std::equal_to<>>;

struct BpeModel {
  bool byte_level = false;              // symbols are bytes, else characters
  bool byte_fallback = false;           // a character without id becomes the ids of its bytes
  bool fuse_unknown = false;            // neighbouring unknown characters become one unknown
  bool ignore_merges = false;           // a word that has an id of its own gets it
  bool words_at_spaces = false;         // no merge leads over the front of a U+2581 (bpe_parse.cpp)
  int32_t unknown = -1;                 // id; -1: characters without id are left out
  Vocabulary ids;                       // of words; byte_level: keys are bytes
  std::array<int32_t, 256> byte_ids{};  // byte_level: of symbols; else of <0x00>, ...; -1: none
  FlatMap character_ids;                // not byte_level: of symbols, by code point
  FlatMap merges;  // pair_key(left, right) -> rank << 32 | id of the merged symbol
};

inline uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

/// A bounded memory of words and their ids. A word that hashes to the place of another one replaces
/// it, so what is in it never changes a result.
class WordCache {
 public:
  WordCache() : slots_(slot_count) {}
  /// Appends the word's ids. False: it is not known.
  bool find(std::string_view word, uint64_t hash, std::vector<int32_t>& out) const {
    const Slot& slot = slots_[hash & (slot_count - 1)];
    if (slot.size != word.size() || word != std::string_view(slot.word, slot.size)) return false;
    out.insert(out.end(), slot.ids, slot.ids + slot.count);
    return true;
  }
  void put(std::string_view word, uint64_t hash, const int32_t* ids, size_t count);

 private:
  static constexpr size_t slot_count = 1 << 15;
  struct Slot {
    uint8_t size = 0, count = 0;
    char word[26];
    int32_t ids[9];
  };
  std::vector<Slot> slots_;
};

struct BpeScratch {
  struct Link {
    int32_t id = 0, previous = -1, next = -1;
  };
  struct Candidate {
    uint64_t rank_and_at = 0;  // rank << 32 | index of the left symbol
    int32_t left = 0, right = 0, merged = 0;
  };
  WordCache cache;
  std::vector<int32_t> symbols;
  std::vector<uint64_t> pairs;
  std::vector<Link> links;
  std::vector<Candidate> heap;
};

/// Appends the ids of a word. word: valid UTF-8, at most 2^31 bytes.
void encode_word(const BpeModel& model, std::string_view word, BpeScratch& scratch,
                 std::vector<int32_t>& out);

}  // namespace simplescale
