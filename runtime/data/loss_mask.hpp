// The loss mask of a token file: ranges of tokens that do not count in the loss as targets. It lies
// beside the tokens, in a file of its own (docs/formats.md):
//
//   u64        magic "SSLMASK1"
//   u64        tokens of the token file
//   u64        ranges
//   u64[2]...  the ranges: begin, end. They are in order; between two of them is a token at least
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/index_ranges.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/status.hpp"
#include "runtime/data/data_files.hpp"

namespace simplescale {

/// The path of the loss mask of a token file: with .mask in place of .bin.
std::string loss_mask_of(const std::string& token_file);

/// Writes a loss mask. One thread.
class LossMaskWriter {
 public:
  explicit LossMaskWriter(const std::string& path);
  /// Ranges of the file's tokens, behind those of the calls before.
  Status add(const IndexRanges& ranges);
  /// tokens: of the token file. The file is complete.
  Status finish(uint64_t tokens);
  uint64_t masked() const { return masked_; }  // tokens

 private:
  Status write(const IndexRange& range);

  OutputStream out_;
  std::optional<IndexRange> last_;  // is not written yet: the next one may continue it
  uint64_t ranges_ = 0, masked_ = 0;
};

/// An open loss mask. Any thread may ask.
class LossMask {
 public:
  /// tokens: of the token file. bad_data with file and byte: it is no loss mask, or was made for
  /// another number of tokens, or is cut off; not_found; io.
  static Result<LossMask> open(const std::string& path, uint64_t tokens,
                               const DataFiles& files = {});
  /// The masked tokens of [begin, end), counted from the file's first one. bad_data: the ranges are
  /// out of order; io.
  Result<IndexRanges> masked(uint64_t begin, uint64_t end) const;
  /// Reads all ranges. bad_data with file and byte: one is empty, out of order, touches the one
  /// before it, or ends behind the last token.
  Status validate() const;
  const std::string& path() const { return file_->path(); }
  uint64_t tokens() const { return tokens_; }

 private:
  LossMask(std::shared_ptr<const DataFile> file, uint64_t tokens, uint64_t ranges)
      : file_(std::move(file)), tokens_(tokens), ranges_(ranges) {}
  Result<IndexRange> range(uint64_t index) const;

  std::shared_ptr<const DataFile> file_;
  uint64_t tokens_, ranges_;
};

}  // namespace simplescale
