// Reads token files, from which training and validation samples come. Any thread may read. Samples
// are read with pread, so a truncated file or a failing disk gives an error Status.
//
// Formats (docs/formats.md), all little-endian; "auto" chooses the first that fits:
//   prepared   a folder with manifest.json (manifest.hpp), train.bin and validation.bin
//   llmc       a file with a header of 256 int32 (magic 20240520: u16 tokens, 20240801: u32 tokens;
//              version; token count), then the tokens; "auto" recognizes it by its magic
//   nanogpt    a file of u16 tokens and nothing else; "auto" for every other file
// A folder without manifest.json but with train.bin and val.bin or validation.bin, as nanoGPT
// writes it, is read, too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/input_file.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// A contiguous part of the tokens of a file. Copies and slices share the open file.
class TokenSource {
 public:
  TokenSource() = default;

  /// Opens a token file. vocab: all ids must be below it, which validate() checks. bad_data with
  /// file and byte: the file is missing, empty, of odd length, of wrong magic or version, or its
  /// length does not match its token count. bad_config: unknown format.
  static Result<TokenSource> open(const std::string& path, const std::string& format,
                                  int64_t vocab);

  /// Opens the file's path again after a failed read: the file may have been replaced, or its disk
  /// may have recovered. bad_data: its length has changed. After an error the old file stays open.
  /// Copies keep the file they have.
  Status reopen();

  /// Reads all tokens. bad_data: names the first id that is not below the vocabulary, and its byte;
  /// otherwise errors as read_sample().
  Status validate() const;
  /// bad_data unless there are at least block_size + 1 tokens.
  Status require_block(int64_t block_size) const;

  uint64_t tokens() const { return count_; }
  /// Number of samples of block_size + 1 tokens, where neighbours share one token:
  /// (tokens - 1) / block_size.
  uint64_t samples(int64_t block_size) const;
  /// Copies sample i = `position`, tokens[i*T : i*T+T+1] with T = block_size, to out. bad_data: an
  /// id is not below the vocabulary, or the file has become shorter; io. After an error `out` is
  /// undefined.
  Status read_sample(uint64_t position, int64_t block_size, int32_t* out) const;

  /// Tokens [first, first + count) of this source.
  TokenSource slice(uint64_t first, uint64_t count) const;
  const std::string& path() const { return path_; }
  int64_t vocab() const { return vocab_; }

 private:
  uint64_t byte_of(uint64_t index) const;
  template <class Token>
  Status validate_as() const;
  template <class Token>
  Status read_as(uint64_t first, uint64_t count, int32_t* out) const;
  Status bad_id(uint64_t index, uint64_t id) const;

  std::string path_;
  std::shared_ptr<const InputFile> file_;
  uint64_t offset_ = 0;  // byte offset of the first token in the file
  uint64_t count_ = 0;
  int64_t vocab_ = 0;
  int token_bytes_ = 2;
};

/// The tokens to train on and those held back for validation, which may be none.
struct Dataset {
  TokenSource train, validation;
  std::string tokenizer;  // path of tokenizer.model; empty for bare token files
};

/// Opens a file or a folder. The last validation_fraction of a file's tokens is held back; a folder
/// has files for both (prepare() spreads the held-back tokens). Errors as TokenSource::open(), and
/// bad_data if a prepared folder is incomplete or was made for a larger vocabulary.
Result<Dataset> open_dataset(const std::string& path, const std::string& format, int64_t vocab,
                             double validation_fraction);

namespace llmc {
inline constexpr uint32_t magic_u16 = 20240520, magic_u32 = 20240801;
inline constexpr uint32_t version_u16 = 1, version_u32 = 7;  // as llm.c writes them
inline constexpr uint64_t header_bytes = 1024;
/// The 256 words of the header. Word 2 is the low half of the token count; word 3, which is zero in
/// llm.c, the high half.
std::string header(int token_bytes, uint64_t tokens);
}  // namespace llmc

}  // namespace simplescale
