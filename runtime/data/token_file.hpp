// Token files, read-only: where training and validation samples come from. Any thread may read.
// Samples are read by pread where they are wanted: a file that is cut off, or whose disk fails, is
// a Status.
//
// Formats ("auto" takes the first that fits):
//   prepared   a folder with manifest.json (manifest.hpp), holding train.bin and validation.bin
//   (a folder without manifest that holds train.bin and val.bin or validation.bin, as nanoGPT
//   writes it, is read too) llmc       256 int32: magic 20240520 (u16 tokens) or 20240801 (u32),
//   version, token count; then the tokens.
//              "auto" takes a file for llmc if its first four bytes are one of the magics.
//   nanogpt    u16 tokens, nothing else: what "auto" takes every other file for
// All is little-endian.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/input_file.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// A run of tokens of one file. Copies and slices share the open file.
class TokenSource {
 public:
  TokenSource() = default;

  /// Opens a token file. vocab: ids must be below it. Checks all but the ids (see validate()).
  /// bad_data with file and byte offset: missing, empty, odd length, wrong magic or version, count
  /// not that of the file. bad_config: an unknown format.
  static Result<TokenSource> open(const std::string& path, const std::string& format,
                                  int64_t vocab);

  /// Opens the file again under its name, for one that cannot be read any more: another may have
  /// taken its place, or its disk have come back. bad_data unless it is as long as it was; then,
  /// and for any other error, all stays as it is. Copies stay with the file they have.
  Status reopen();

  /// Reads every token once: bad_data names the first id that is not below the vocabulary, with its
  /// byte. Errors as read_sample().
  Status validate() const;
  /// bad_data unless there are at least block_size + 1 tokens.
  Status require_block(int64_t block_size) const;

  uint64_t tokens() const { return count_; }
  /// Whole samples of block_size + 1 tokens, neighbours sharing one token: (tokens - 1) /
  /// block_size.
  uint64_t samples(int64_t block_size) const;
  /// Copies sample `position` (block_size + 1 ids, tokens[i*T : i*T+T+1]) to out. bad_data if an id
  /// is beyond the vocabulary (no bad id ever reaches the model), or the file has become shorter;
  /// io. After an error out holds anything.
  Status read_sample(uint64_t position, int64_t block_size, int32_t* out) const;

  /// Tokens [first, first + count) as a source of their own.
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
  uint64_t offset_ = 0;  // of the first token in the file, bytes
  uint64_t count_ = 0;
  int64_t vocab_ = 0;
  int token_bytes_ = 2;
};

/// [data] of the configuration: what is trained on, and what is held back. validation may have no
/// tokens.
struct Dataset {
  TokenSource train, validation;
  std::string tokenizer;  // path of tokenizer.model; empty for bare token files
};

/// Opens a file or a folder. Of a single file the last validation_fraction of its tokens is held
/// back; a folder says itself which tokens are. Errors as TokenSource::open, and bad_data if a
/// prepared folder is incomplete or has been made for a larger vocabulary.
Result<Dataset> open_dataset(const std::string& path, const std::string& format, int64_t vocab,
                             double validation_fraction);

namespace llmc {
inline constexpr uint32_t magic_u16 = 20240520, magic_u32 = 20240801;
inline constexpr uint32_t version_u16 = 1, version_u32 = 7;  // as llm.c's own writers put them
inline constexpr uint64_t header_bytes = 1024;
/// The header's 256 words. Word 2 is the count's low half; word 3, zero in llm.c, is its high half.
std::string header(int token_bytes, uint64_t tokens);
}  // namespace llmc

}  // namespace simplescale
