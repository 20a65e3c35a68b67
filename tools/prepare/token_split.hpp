// The token files of a prepared folder: what is trained on, and what is held back for validation.
// One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/open_output.hpp"
#include "runtime/base/status.hpp"
#include "runtime/data/loss_mask.hpp"
#include "runtime/data/manifest.hpp"

namespace simplescale {

/// The bytes of ids in a file, token_bytes (2 or 4) each; valid until the next call.
class NarrowTokens {
 public:
  explicit NarrowTokens(int token_bytes) : token_bytes_(static_cast<size_t>(token_bytes)) {}
  std::string_view of(std::span<const int32_t> ids);

 private:
  const size_t token_bytes_;
  std::string buffer_;
};

/// Writes a token file in llm.c format; finish() fills in the header.
class TokenWriter {
 public:
  TokenWriter(const std::string& path, int token_bytes);
  Status write(std::span<const int32_t> ids);
  /// Writes the header; the file is complete.
  Status finish();
  uint64_t count() const { return count_; }

 private:
  const int token_bytes_;
  NarrowTokens narrow_;
  OutputStream out_;
  uint64_t count_ = 0;
};

/// Distributes tokens to train.bin and validation.bin, in pieces: documents, and parts of documents
/// that are longer than piece_max tokens. A piece is held back for validation whenever fewer tokens
/// have been held back than their share of the tokens so far, so the held-back pieces are spread
/// evenly over the text. Tokens that do not count in the loss are in train.mask and validation.mask
/// (loss_mask.hpp), which are written if there are such tokens.
///
/// A part of a document that does not follow its file's last part of that document begins with BOS,
/// like a document: what is before it in the file is none of its text.
class TokenSplit {
 public:
  struct Options {
    int token_bytes = 2;
    double fraction = 0;         // of the tokens, for validation
    uint64_t text_bytes = 0;     // about the size of the text, which piece_max depends on
    int32_t bos = -1, eos = -1;  // of documents; -1: they have none
  };
  TokenSplit(const std::string& folder, const Options& options);
  /// masked: indices of `ids`.
  Status write(std::span<const int32_t> ids, bool begins_document, const IndexRanges& masked);
  /// Gives the files their final names and records them.
  Status finish(Manifest& made);

 private:
  /// A token file and its loss mask, on the way to their final names.
  struct Output {
    Output(const std::string& folder, const std::string& name, int token_bytes);
    Status write(std::span<const int32_t> ids, const IndexRanges& masked);
    /// Renames both, and records them.
    Status finish(FileRecord& tokens, FileRecord& mask, uint64_t& masked_tokens);
    const std::string folder, name;  // "train"
    TokenWriter tokens;
    std::optional<LossMaskWriter> mask;  // none yet: no token is masked
  };
  Status begin_piece(bool begins_document);

  const std::string folder_;
  const Options options_;
  const uint64_t piece_max_;
  Output train_;
  std::optional<Output> validation_;
  uint64_t piece_ = 0;  // tokens of the current piece
  bool held_back_ = false;
};

}  // namespace simplescale
