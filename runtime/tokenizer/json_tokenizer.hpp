// A tokenizer.json of Hugging Face's tokenizers with a BPE model: Llama 3, Qwen, GPT-2, OLMo 2,
// SmolLM, and Llama 2 or Mistral in that format. encode() gives the ids that `tokenizers` gives
// (tests/runtime/tokenizer). Immutable after loading; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/index_ranges.hpp"
#include "runtime/base/status.hpp"
#include "runtime/tokenizer/added_tokens.hpp"
#include "runtime/tokenizer/bpe.hpp"
#include "runtime/tokenizer/decode.hpp"
#include "runtime/tokenizer/normalize.hpp"
#include "runtime/tokenizer/pre_tokenize.hpp"

namespace simplescale {

/// What each id of a text stands for, in bytes of the text after normalizing and pre-tokenizing.
struct TokenPlaces {
  IndexRanges of_ids;   // one for each id; those of a word may be equal, or empty
  uint64_t length = 0;  // of that text
};

/// What a tokenizer.json says, in the order in which a text goes through it. Plain data.
struct TokenizerJson {
  AddedTokenFinder raw_tokens;  // are looked for in the text
  std::vector<NormalizerStep> normalizer;
  AddedTokenFinder normalized_tokens;  // are looked for in the normalized text
  std::vector<PreTokenizerStep> pre_tokenizer;
  BpeModel model;
  std::vector<DecoderStep> decoder;
  bool spaces_between_tokens = false;  // there is no decoder

  std::vector<std::string> tokens;                      // by id; "": there is none
  std::unordered_map<int32_t, std::string> normalized;  // decode() gives that for an added token
  std::vector<bool> special;                            // by id
  bool token_has_spaces = false;  // a letter and a space behind it may belong to an added token
  int32_t bos = -1, eos = -1;
  std::string guessed_ends;  // as Tokenizer::guessed_ends()
};

/// Reads the text of a tokenizer.json. bad_data names the part that is wrong or not supported.
Result<TokenizerJson> parse_tokenizer_json(std::string_view text);

class JsonTokenizer {
 public:
  static Result<JsonTokenizer> from_text(std::string_view text);

  /// The ids of a text without those that a template adds. Bytes that are not UTF-8 become U+FFFD.
  /// continues: the text continues a document that was cut before a space. error: becomes bad_data if
  /// a pattern needs too many steps for the text; its ids are unknown then. null: they do not matter.
  std::vector<int32_t> encode(std::string_view text, bool continues = false,
                              Status* error = nullptr) const {
    return encode(text, continues, nullptr, error);
  }
  /// As encode(). masked: for each id, whether it stands for a byte of `ranges`, which are bytes of
  /// the text. So many ranges that placing them would take long are joined: what lies between is
  /// masked, too.
  std::vector<int32_t> encode_masked(std::string_view text, bool continues,
                                     const IndexRanges& ranges, std::vector<bool>& masked,
                                     Status* error = nullptr) const;
  /// The text of ids. Special tokens and ids outside the vocabulary give no text.
  std::string decode(std::span<const int32_t> ids) const;
  /// True if a document that is cut between a letter and a space before another letter gives the
  /// ids of the whole document. Tries all such cuts, so ask once.
  bool cuts_at_spaces() const;

  int64_t vocab() const { return std::ssize(data_->tokens); }
  int32_t bos() const { return data_->bos; }
  int32_t eos() const { return data_->eos; }
  const std::string& guessed_ends() const { return data_->guessed_ends; }

 private:
  struct Scratch {
    PatternScratch regex;
    BpeScratch bpe;
    Words words;
    std::vector<TextPart> parts, inner;
  };
  /// Scratch memory that no thread uses now; it keeps the caches of words.
  struct Idle {
    std::mutex mutex;
    std::vector<std::unique_ptr<Scratch>> all;
  };
  class Borrowed;

  /// What encode() appends to: ids and, if wanted, their places.
  struct Output {
    std::vector<int32_t> ids;
    TokenPlaces* places = nullptr;
  };
  std::vector<int32_t> encode(std::string_view text, bool continues, TokenPlaces* places,
                              Status* error) const;
  void encode_part(std::string_view text, bool at_start, bool continues, Scratch& scratch,
                   Output& out) const;
  void encode_words(std::string_view text, bool at_start, Scratch& scratch, Output& out) const;
  void append_token(const TextPart& part, Output& out) const;
  void place_word(size_t bytes, size_t first_id, const std::vector<int32_t>& ids,
                  TokenPlaces& places) const;
  size_t bytes_of(int32_t id) const;
  bool keeps_bytes(std::string_view text) const;
  void place_ranges(std::string_view text, bool continues, uint64_t length,
                    IndexRanges& ranges) const;

  std::unique_ptr<const TokenizerJson> data_;
  std::unique_ptr<Idle> idle_;
};

}  // namespace simplescale
