#include "runtime/tokenizer/bpe.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/utf8.hpp"

namespace simplescale {

namespace {

constexpr size_t short_word = 48;  // symbols; merging by looking at all pairs is faster up to here

void append_bytes(const BpeModel& model, std::string_view word, std::vector<int32_t>& symbols) {
  bool unknown = false;  // the byte before was
  for (const char c : word) {
    const int32_t id = model.byte_ids[static_cast<unsigned char>(c)];
    if (id >= 0)
      symbols.push_back(id);
    else if (model.unknown >= 0 && !(model.fuse_unknown && unknown))
      symbols.push_back(model.unknown);
    unknown = id < 0;
  }
}

void append_characters(const BpeModel& model, std::string_view word,
                       std::vector<int32_t>& symbols) {
  bool unknown = false;  // an unknown symbol has not been written yet
  const auto write_unknown = [&] {
    if (unknown) symbols.push_back(model.unknown);
    unknown = false;
  };
  for (size_t at = 0; at < word.size();) {
    const CodePoint c = code_point_at(word, at);
    const std::string_view bytes = word.substr(at, c.bytes);
    at += c.bytes;
    if (const uint64_t id = model.character_ids.get(c.value); id != FlatMap::none) {
      write_unknown();
      symbols.push_back(static_cast<int32_t>(id));
      continue;
    }
    const auto byte_id = [&](char b) { return model.byte_ids[static_cast<unsigned char>(b)]; };
    if (model.byte_fallback &&
        std::ranges::all_of(bytes, [&](char b) { return byte_id(b) >= 0; })) {
      for (const char b : bytes) symbols.push_back(byte_id(b));
      continue;
    }
    if (model.unknown < 0) continue;
    if (!model.fuse_unknown) write_unknown();
    unknown = true;
  }
  write_unknown();
}

/// Merges in place. pairs[i]: what symbols i and i + 1 become, as in BpeModel::merges.
void merge_short(const FlatMap& merges, std::vector<int32_t>& symbols,
                 std::vector<uint64_t>& pairs) {
  size_t count = symbols.size();
  pairs.resize(count);
  for (size_t i = 0; i + 1 < count; ++i)
    pairs[i] = merges.get(pair_key(symbols[i], symbols[i + 1]));
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (pairs[i] >> 32 < pairs[best] >> 32) best = i;
    if (pairs[best] == FlatMap::none) break;
    symbols[best] = static_cast<int32_t>(pairs[best] & UINT32_MAX);
    const auto close = [&](auto& list) {
      auto* at = list.data() + best + 1;
      std::memmove(at, at + 1, (count - best - 2) * sizeof *at);
    };
    close(symbols);
    close(pairs);
    --count;
    if (best > 0) pairs[best - 1] = merges.get(pair_key(symbols[best - 1], symbols[best]));
    pairs[best] =
        best + 1 < count ? merges.get(pair_key(symbols[best], symbols[best + 1])) : FlatMap::none;
  }
  symbols.resize(count);
}

/// The same for words of any length: the pairs wait in a heap, the first of the lowest rank on top.
void merge_long(const FlatMap& merges, std::vector<int32_t>& symbols, BpeScratch& scratch) {
  using Candidate = BpeScratch::Candidate;
  auto& links = scratch.links;
  auto& heap = scratch.heap;
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank_and_at > b.rank_and_at;
  };
  const auto size = static_cast<int32_t>(symbols.size());
  links.resize(symbols.size());
  heap.clear();
  for (int32_t i = 0; i < size; ++i)
    links[static_cast<size_t>(i)] = {symbols[static_cast<size_t>(i)], i - 1,
                                     i + 1 < size ? i + 1 : -1};
  const auto add = [&](int32_t at, bool push) {
    const auto& left = links[static_cast<size_t>(at)];
    if (left.next < 0) return;
    const int32_t right = links[static_cast<size_t>(left.next)].id;
    const uint64_t pair = merges.get(pair_key(left.id, right));
    if (pair == FlatMap::none) return;
    heap.push_back({(pair >> 32) << 32 | static_cast<uint32_t>(at), left.id, right,
                    static_cast<int32_t>(pair & UINT32_MAX)});
    if (push) std::ranges::push_heap(heap, later);
  };
  for (int32_t i = 0; i < size; ++i) add(i, false);
  std::ranges::make_heap(heap, later);
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, later);
    const Candidate best = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(best.rank_and_at & UINT32_MAX);
    auto& left = links[static_cast<size_t>(at)];
    if (left.id != best.left || left.next < 0) continue;
    auto& right = links[static_cast<size_t>(left.next)];
    if (right.id != best.right) continue;
    left.id = best.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) links[static_cast<size_t>(left.next)].previous = at;
    if (left.previous >= 0) add(left.previous, true);
    add(at, true);
  }
  symbols.clear();
  for (int32_t i = 0; i >= 0; i = links[static_cast<size_t>(i)].next)
    symbols.push_back(links[static_cast<size_t>(i)].id);
}

}  // namespace

void WordCache::put(std::string_view word, uint64_t hash, const int32_t* ids, size_t count) {
  Slot& slot = slots_[hash & (slot_count - 1)];
  if (word.empty() || word.size() > sizeof slot.word || count > std::size(slot.ids)) return;
  slot.size = static_cast<uint8_t>(word.size());
  slot.count = static_cast<uint8_t>(count);
  std::memcpy(slot.word, word.data(), word.size());
  std::copy(ids, ids + count, slot.ids);
}

void encode_word(const BpeModel& model, std::string_view word, BpeScratch& scratch,
                 std::vector<int32_t>& out) {
  if (word.empty()) return;
  const uint64_t hash = XXH3_64bits(word.data(), word.size());
  if (scratch.cache.find(word, hash, out)) return;
  if (model.ignore_merges)
    if (const auto whole = model.ids.find(word); whole != model.ids.end()) {
      out.push_back(whole->second);
      return scratch.cache.put(word, hash, &whole->second, 1);
    }
  auto& symbols = scratch.symbols;
  symbols.clear();
  model.byte_level ? append_bytes(model, word, symbols) : append_characters(model, word, symbols);
  if (symbols.size() > short_word)
    merge_long(model.merges, symbols, scratch);
  else
    merge_short(model.merges, symbols, scratch.pairs);
  scratch.cache.put(word, hash, symbols.data(), symbols.size());
  out.insert(out.end(), symbols.begin(), symbols.end());
}

}  // namespace simplescale
