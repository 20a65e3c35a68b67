// Trains byte-level BPE: begins with the 256 bytes, and again and again makes a token of the two
// neighbours that occur most often (Sennrich et al., arXiv 1508.07909). Of pairs that occur equally
// often the one with the smaller ids is taken, as in Hugging Face's `tokenizers`, so the merges are
// the same.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "runtime/base/utf8.hpp"
#include "runtime/tokenizer/bpe.hpp"
#include "runtime/tokenizer/decode.hpp"
#include "runtime/tokenizer/json_steps.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

constexpr const char* kEndOfText = "<|endoftext|>";
/// Longer words are divided: every merge looks through the words that it is in.
constexpr size_t word_bytes_max = 4096;
/// The words of Llama 3.
constexpr const char* kWords =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+"
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/// A step of the pre-tokenizer, and the decoder.
json byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", false}};
}

json pre_tokenizer() {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", kWords}}},
             {"behavior", "Isolated"},
             {"invert", false}},
            byte_level()}}};
}

using Pair = std::pair<int32_t, int32_t>;
struct PairHash {
  size_t operator()(const Pair& pair) const { return hash(pair_key(pair.first, pair.second)); }
  SeededHash hash;
};

struct CountedWord {
  std::vector<int32_t> ids;
  int64_t count = 0;
};

/// How often each word occurs in the texts, in the order of their first occurrence.
Result<std::vector<CountedWord>> count_words(const std::vector<std::string>& texts,
                                             const std::array<int32_t, 256>& byte_ids) {
  SS_ASSIGN(const PreTokenizer steps, read_pre_tokenizer(pre_tokenizer()));
  PatternScratch scratch;
  Words words;
  std::unordered_map<std::string, size_t, SeededHash> place;
  std::vector<CountedWord> counted;
  for (const std::string& text : texts) {
    if (first_invalid_utf8(text) != text.size()) continue;  // a reader leaves U+FFFD in its place
    scratch.begin(text.size());
    pre_tokenize(steps.steps, text, true, scratch, words);
    SS_RETURN_IF_ERROR(scratch.status());
    for (const Words::Word& word : words.words)
      for (size_t begin = 0; begin < word.text.size(); begin += word_bytes_max) {
        const std::string_view part = word.text.substr(begin, word_bytes_max);
        const auto [at, is_new] = place.try_emplace(std::string(part), counted.size());
        if (is_new) {
          CountedWord& made = counted.emplace_back();
          for (const char c : part) made.ids.push_back(byte_ids[static_cast<unsigned char>(c)]);
        }
        ++counted[at->second].count;
      }
  }
  return counted;
}

/// The pairs of neighbours in all words.
class Pairs {
 public:
  explicit Pairs(std::vector<CountedWord> words) : words_(std::move(words)) {
    std::unordered_set<Pair, PairHash> all;
    for (size_t i = 0; i < words_.size(); ++i)
      for_each_pair(i,
                    [&](const Pair& pair) { change(pair, words_[i].count, i), all.insert(pair); });
    for (const Pair& pair : all) queue_.push({pairs_[pair].count, pair});
  }

  /// The pair that occurs most often; none: every word is one token.
  std::optional<Pair> most_frequent() {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const int64_t count = pairs_[best.pair].count;
      if (count == best.count && count > 0) return best.pair;
      if (count > 0) queue_.push({count, best.pair});  // it has become rarer
    }
    return std::nullopt;
  }

  /// Puts `made` in the place of the pair everywhere. Looks up only the pairs beside such places.
  void merge(const Pair& pair, int32_t made) {
    const std::unordered_set<size_t> places = std::move(pairs_[pair].words);
    pairs_.erase(pair);
    std::unordered_set<Pair, PairHash> new_pairs;
    for (const size_t i : places) {
      CountedWord& word = words_[i];
      std::vector<int32_t>& ids = word.ids;
      const auto becomes = [&](const Pair& old, const Pair& now) {
        if (old != pair) change(old, -word.count, i);
        change(now, word.count, i);
        new_pairs.insert(now);
      };
      size_t to = 0;
      for (size_t from = 0; from < ids.size(); ++from) {
        const bool here =
            from + 1 < ids.size() && ids[from] == pair.first && ids[from + 1] == pair.second;
        if (here && to > 0) becomes({ids[to - 1], pair.first}, {ids[to - 1], made});
        if (here && from + 2 < ids.size())
          becomes({pair.second, ids[from + 2]}, {made, ids[from + 2]});
        ids[to++] = here ? made : ids[from];
        from += here;
      }
      ids.resize(to);
    }
    for (const Pair& now : new_pairs) queue_.push({pairs_[now].count, now});
  }

 private:
  struct Known {
    int64_t count = 0;
    std::unordered_set<size_t> words;  // that had the pair; some may have lost it
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };
  template <class Use>
  void for_each_pair(size_t word, const Use& use) const {
    const std::vector<int32_t>& ids = words_[word].ids;
    for (size_t k = 0; k + 1 < ids.size(); ++k) use({ids[k], ids[k + 1]});
  }
  void change(const Pair& pair, int64_t by, size_t word) {
    Known& known = pairs_[pair];
    known.count += by;
    known.words.insert(word);
  }

  std::vector<CountedWord> words_;
  std::unordered_map<Pair, Known, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
};

/// The tokens, by id, and the merges as pairs of their texts.
struct TrainedTokens {
  std::vector<std::string> tokens;
  Vocabulary ids;
  json merges = json::array();

  int32_t add(const std::string& token) {
    const auto [at, is_new] = ids.try_emplace(token, static_cast<int32_t>(tokens.size()));
    if (is_new) tokens.push_back(token);
    return at->second;
  }
};

std::string text_of(char32_t character) {
  std::string text;
  append_utf8(text, character);
  return text;
}

std::string document_of(const TrainedTokens& vocabulary) {
  json ids = json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) ids[vocabulary.tokens[id]] = id;
  const json document = {{"version", "1.0"},
                         {"truncation", nullptr},
                         {"padding", nullptr},
                         {"added_tokens",
                          {{{"id", 0},
                            {"content", kEndOfText},
                            {"single_word", false},
                            {"lstrip", false},
                            {"rstrip", false},
                            {"normalized", false},
                            {"special", true}}}},
                         {"normalizer", nullptr},
                         {"pre_tokenizer", pre_tokenizer()},
                         {"post_processor", nullptr},
                         {"decoder", byte_level()},
                         {"model",
                          {{"type", "BPE"},
                           {"dropout", nullptr},
                           {"unk_token", nullptr},
                           {"continuing_subword_prefix", nullptr},
                           {"end_of_word_suffix", nullptr},
                           {"fuse_unk", false},
                           {"byte_fallback", false},
                           {"ignore_merges", false},
                           {"vocab", std::move(ids)},
                           {"merges", vocabulary.merges}}}};
  return document.dump() + "\n";
}

}  // namespace

Result<std::string> train_byte_bpe(const std::vector<std::string>& texts, int64_t vocab) {
  if (texts.empty()) return Status(Code::bad_data, "no text to train a tokenizer on");
  TrainedTokens vocabulary;
  vocabulary.add(kEndOfText);
  std::array<char32_t, 256> characters = byte_alphabet();
  std::ranges::sort(characters);
  for (const char32_t c : characters) vocabulary.add(text_of(c));
  std::array<int32_t, 256> byte_ids{};
  for (size_t byte = 0; byte < 256; ++byte)
    byte_ids[byte] = vocabulary.ids.at(text_of(byte_alphabet()[byte]));
  SS_ASSIGN(std::vector<CountedWord> words, count_words(texts, byte_ids));
  Pairs pairs(std::move(words));
  while (static_cast<int64_t>(vocabulary.tokens.size()) < vocab) {
    const std::optional<Pair> best = pairs.most_frequent();
    if (!best) break;
    const std::string left = vocabulary.tokens[static_cast<size_t>(best->first)],
                      right = vocabulary.tokens[static_cast<size_t>(best->second)];
    vocabulary.merges.push_back({left, right});
    pairs.merge(*best, vocabulary.add(left + right));
  }
  return document_of(vocabulary);
}

}  // namespace simplescale
