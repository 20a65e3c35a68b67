// Converts text to token ids and back; wraps SentencePiece. Immutable after loading; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.hpp"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace simplescale {

class Tokenizer {
 public:
  /// Loads a tokenizer.model file. bad_data: it is missing or damaged.
  static Result<Tokenizer> load(const std::string& path);
  /// Loads the contents of such a file. name: for messages.
  static Result<Tokenizer> from_bytes(const std::string& model, const std::string& name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// The ids of a text, without BOS or EOS. Bytes that are not UTF-8 become U+FFFD.
  std::vector<int32_t> encode(std::string_view text) const;
  /// The text of ids. Control tokens give no text; ids outside the vocabulary are decoded as the
  /// unknown token.
  std::string decode(std::span<const int32_t> ids) const;

  int64_t vocab() const;
  int32_t bos() const;  // -1: the tokenizer has none
  int32_t eos() const;

 private:
  Tokenizer();
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

/// Trains a byte-pair tokenizer with Llama's settings (unk 0, bos 1, eos 2, byte fallback, every
/// digit a token, no normalization) and returns the contents of tokenizer.model; the same lines
/// give the same bytes. lines: without newlines. bad_data: too little text for the vocabulary.
Result<std::string> train_tokenizer(const std::vector<std::string>& lines, int64_t vocab);

}  // namespace simplescale
