// Reads token files, from which training and validation samples come. Any thread may read. Samples
// are read with pread, so a truncated file or a failing disk gives an error Status.
//
// A source is a file or several files in the order of their names (token_format.hpp), or a folder:
//   with manifest.json            prepared (manifest.hpp): train.bin and validation.bin
//   with train.bin                as nanoGPT writes it, with val.bin or validation.bin
//   with other .bin files         all of them; for validation those with the word val or the like
// All files of a source have one format.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/data/data_files.hpp"
#include "runtime/data/documents.hpp"
#include "runtime/data/loss_mask.hpp"
#include "runtime/data/packing.hpp"
#include "runtime/data/token_format.hpp"

namespace simplescale {

/// A contiguous part of the tokens of one file or of several. Copies and slices share the open
/// files.
class TokenSource {
 public:
  TokenSource() = default;

  /// Opens token files, whose tokens follow each other, and the loss masks that lie beside them
  /// (loss_mask.hpp). vocab: all ids must be below it, which validate() checks. bad_data: a file is
  /// missing or empty, or of another format than those before it, or as token_layout() and
  /// LossMask::open(). bad_config: unknown format.
  static Result<TokenSource> open(const std::vector<std::string>& paths, const TokenKind& kind,
                                  int64_t vocab, const DataFiles& files = {});
  static Result<TokenSource> open(const std::string& path, const TokenKind& kind, int64_t vocab,
                                  const DataFiles& files = {});

  /// read_sample() marks documents as the rule says. Errors of opening a Megatron index.
  Status use_documents(const DocumentRule& rule);
  /// From now on samples are those of documents().pack, of block_size tokens, found in `folder` or made
  /// there (packing.hpp). Reads all tokens if they are made. bad_data: a wrong id; io.
  Status pack(int64_t block_size, const std::string& folder);
  /// Null: samples are cut wherever they end.
  const SamplePacking* packing() const { return packing_.get(); }
  /// True if Megatron indices say where the documents of all files begin.
  bool has_document_index() const;
  const DocumentRule& documents() const { return documents_; }

  /// Opens the files again by their paths after a failed read: a file may have been replaced, or
  /// its disk may have recovered. bad_data: a length has changed. After an error the old files stay
  /// open. Copies keep the files they have.
  Status reopen();

  /// Reads the loss masks and the indices of Megatron files. bad_data: one is damaged.
  Status validate_tables() const;
  /// Reads these and, unless they lie in a bucket, all tokens. bad_data: names the first id that is
  /// not below the vocabulary, and its byte; as read_sample().
  Status validate() const;
  /// bad_data unless there are at least block_size + 1 tokens.
  Status require_block(int64_t block_size) const;

  uint64_t tokens() const { return count_; }
  /// Number of samples of block_size + 1 tokens, where neighbours share one token:
  /// (tokens - 1) / block_size. After pack(): those of packing().
  uint64_t samples(int64_t block_size) const;
  /// Copies sample i = `position`, tokens[i*T : i*T+T+1) with T = block_size, to out, with marks
  /// (token_marks.hpp) of the loss mask, and of documents if use_documents() asked for them. After
  /// pack(): the pieces of the sample, the token behind the last one, and padding that does not count.
  /// bad_data: an id is not below the vocabulary, or a file has become shorter; io. After an error `out` is
  /// undefined.
  Status read_sample(uint64_t position, int64_t block_size, int32_t* out) const;

  /// Says that sample `position` will be read soon, for tokens in a bucket. False: say it again later.
  bool read_ahead(uint64_t position, int64_t block_size) const;
  const DataFiles& files() const { return files_; }

  /// Where sample `position` begins: "FILE, byte N". Requires position < samples(block_size).
  std::string place_of(uint64_t position, int64_t block_size) const;

  /// Tokens [first, first + count) of this source.
  TokenSource slice(uint64_t first, uint64_t count) const;
  /// Of the first file.
  const std::string& path() const { return parts_.front().file->path(); }
  int64_t vocab() const { return vocab_; }
  /// All that is read: the token files, their indices and loss masks.
  std::vector<std::string> paths() const;
  /// The files of which nothing but their contents says that ids have two bytes.
  std::vector<std::string> guessed() const;
  /// bad_data: the files of another part of the data have another format.
  Status check_format(const TokenSource& other) const;

 private:
  /// Consecutive tokens of one file.
  struct Part {
    std::shared_ptr<const DataFile> file;
    TokenLayout layout;  // of the tokens that are part of this source
    uint64_t first = 0;  // index of the first one in the source
    std::shared_ptr<const MegatronDocuments> documents;  // null: not used
    std::shared_ptr<const LossMask> mask;                // null: all tokens count
    /// What to add to an index in the source to get the one in the file, of which a slice may leave
    /// out the first tokens. May wrap around; the sums wrap back.
    uint64_t to_file = 0;
    uint64_t byte_of(uint64_t index) const;
  };
  static Status check_format(const Part& one, const Part& other);
  template <class Token>
  Status validate_as(const Part& part) const;
  template <class Token>
  Status read_as(const Part& part, uint64_t first, uint64_t count, int32_t* out) const;
  Status read_tokens(uint64_t first, uint64_t count, int32_t* out) const;
  Status read_packed(uint64_t position, std::span<int32_t> tokens) const;
  Status each_document(const std::function<Status(uint64_t first, uint64_t count)>& visit) const;
  Result<int32_t> id_before(uint64_t first) const;
  Status mark_documents(uint64_t first, std::span<int32_t> tokens) const;
  Status mark_untrained(uint64_t first, std::span<int32_t> tokens) const;
  Status bad_id(const Part& part, uint64_t index, uint64_t id) const;

  std::vector<Part> parts_;
  uint64_t count_ = 0;
  int64_t vocab_ = 0;
  DocumentRule documents_;
  std::shared_ptr<const SamplePacking> packing_;
  DataFiles files_;
};

/// True if a word for validation, between characters that are no letters, is in the file's name.
bool is_for_validation(const std::string& path);

/// The tokens to train on and those held back for validation, which may be none.
struct Dataset {
  TokenSource train, validation;
  std::string tokenizer;       // its path in a prepared folder; empty for bare token files
  bool documents_end = false;  // known: with the tokenizer's EOS, which is not its BOS
};

/// Opens a file, a Megatron prefix, or a folder. The last validation_fraction of the tokens is held
/// back unless the folder has files for validation (prepare() spreads the held-back tokens). Errors
/// as TokenSource::open(), and bad_data if a prepared folder is incomplete or was made for a larger
/// vocabulary.
Result<Dataset> open_dataset(const std::string& source, const TokenKind& kind, int64_t vocab,
                             double validation_fraction, const DataFiles& files = {});

}  // namespace simplescale
