// Converts text to token ids and back, with a SentencePiece tokenizer.model or a tokenizer.json of
// Hugging Face's tokenizers. Immutable after loading; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/index_ranges.hpp"
#include "runtime/base/status.hpp"
#include "runtime/tokenizer/json_tokenizer.hpp"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace simplescale {

/// The names that a tokenizer's file has in prepared folders, checkpoints and exports.
inline constexpr const char* kSentencePieceFile = "tokenizer.model";
inline constexpr const char* kTokenizerJsonFile = "tokenizer.json";
/// The name of a trained tokenizer's file: train_byte_bpe() makes a tokenizer.json.
constexpr const char* trained_tokenizer_file(bool byte_level) {
  return byte_level ? kTokenizerJsonFile : kSentencePieceFile;
}
/// Which of the two the file `path` is: tokenizer.json if its name ends with .json.
const char* tokenizer_file_name(const std::string& path);
/// The tokenizer's file in a folder: tokenizer.json, or tokenizer.model if the other is missing; "" if
/// there is none.
std::string find_tokenizer(const std::string& folder);

/// The contents of a tokenizer's file, which are copied to data folders and checkpoints. Its folder
/// may be a stranger's. bad_data: a link of another user leads out of it; not_found; io.
Result<std::string> read_tokenizer(const std::string& path);

class Tokenizer {
 public:
  /// Loads a file. bad_data: it is damaged, or has a part that is not supported (and there is a
  /// tokenizer.model beside it, if the message says so); otherwise errors of read_tokenizer().
  static Result<Tokenizer> load(const std::string& path);
  /// Loads the contents of such a file. name: for messages, and for tokenizer_file_name().
  static Result<Tokenizer> from_bytes(const std::string& bytes, const std::string& name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// The ids of a text, without BOS or EOS. Bytes that are not UTF-8 become U+FFFD. error: becomes
  /// bad_data if a pattern of tokenizer.json needs too many steps for the text, whose ids are unknown
  /// then. null: they do not matter.
  std::vector<int32_t> encode(std::string_view text, Status* error = nullptr) const;
  /// The ids of the rest of a document, cut where cuts() says.
  std::vector<int32_t> encode_rest(std::string_view text, Status* error = nullptr) const;
  /// As encode() or, if the text is the rest of a document, encode_rest(). masked: for each id,
  /// whether it stands for a byte of `ranges`, which are bytes of the text.
  std::vector<int32_t> encode_masked(std::string_view text, bool rest, const IndexRanges& ranges,
                                     std::vector<bool>& masked, Status* error = nullptr) const;
  /// The text of ids. Control tokens give no text. Ids outside the vocabulary are decoded as the
  /// unknown token (SentencePiece), or give no text (tokenizer.json).
  std::string decode(std::span<const int32_t> ids) const;

  /// Where a document can be cut so that encode() of its front and encode_rest() of its rest give
  /// the ids of the whole: before a newline, or between a letter and a space that is before another
  /// ASCII letter. `nowhere`: no such places are known. Ask once: it tries thousands of cuts.
  enum class Cuts : unsigned char { newline, space, nowhere };
  Cuts cuts() const;

  int64_t vocab() const;
  int32_t bos() const;  // is put before each document; -1: the tokenizer has none
  int32_t eos() const;
  /// "" or which tokens EOS could be, if a tokenizer.json has no template, and one was chosen by its
  /// name.
  std::string guessed_ends() const;

 private:
  Tokenizer();
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;  // or null
  std::optional<JsonTokenizer> json_;
  size_t prefix_ = 0;  // ids before that of a newline with which a text begins (SentencePiece)
};

/// Trains a byte-pair tokenizer with Llama's settings (unk 0, bos 1, eos 2, byte fallback, every
/// digit a token, no normalization) and returns the contents of tokenizer.model; the same lines
/// give the same bytes. lines: without newlines. bad_data: too little text for the vocabulary.
Result<std::string> train_tokenizer(const std::vector<std::string>& lines, int64_t vocab);
/// Trains a byte-level BPE tokenizer with the words of Llama 3 and one special token,
/// <|endoftext|> (id 0), and returns the contents of tokenizer.json; the same texts give the same
/// bytes. It has less than `vocab` tokens if the texts give no more, as with `tokenizers`. bad_data:
/// no text.
Result<std::string> train_byte_bpe(const std::vector<std::string>& texts, int64_t vocab);

}  // namespace simplescale
