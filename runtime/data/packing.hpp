// Whole documents as samples (data.pack = "best_fit"): which tokens of a source a sample holds.
//
//   PACK-1  Each token of a source is an input of exactly one sample of an epoch, and no document that
//           fits a sample is cut.
//
// A longer document is cut into full samples and a rest. Documents and rests are packed best-fit
// decreasing (each into the fullest sample that has room, long ones first), so many at a time, in the
// order of the source. So the samples depend on the tokens and the block size only. T = block_size;
// a sample has T inputs, and those that are not filled are padding.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/input_file.hpp"
#include "runtime/base/status.hpp"

namespace simplescale {

/// Consecutive tokens of a source that are inputs of one sample. begins, ends: the first one begins a
/// document, the last one ends one.
struct PackedPiece {
  uint64_t first = 0;
  uint32_t count = 0;
  bool begins = false, ends = false;
  bool operator==(const PackedPiece&) const = default;
};

/// Packs lengths (1 to `room`) into bins of `room`, best-fit decreasing. Returns the indices in each
/// bin, in order; the bins are in the order of their first indices. Pure function.
std::vector<std::vector<uint32_t>> best_fit(std::span<const uint32_t> lengths, uint32_t room);

/// Makes samples of documents that are named in their order. Memory: of kWindow pieces. One thread.
class Packer {
 public:
  static constexpr size_t kWindow = 65'536;  // pieces that are packed together; decides samples
  using Use = std::function<Status(std::span<const PackedPiece> sample)>;
  Packer(int64_t block_size, Use use, size_t window = kWindow);
  /// A document of tokens [first, first + count), count > 0. Errors of `use`.
  Status add(uint64_t first, uint64_t count);
  /// After the last document.
  Status finish();

 private:
  const uint64_t T_;
  const Use use_;
  const size_t window_;
  std::vector<PackedPiece> waiting_;
};

/// The samples of a source, in a file of this host that is made once. Any thread may read.
///
///   "SSPACK01", then u64: block size, tokens, pieces, samples; the key (32 characters)
///   u64 of each piece: first token << 22 | (count - 1) << 2 | ends << 1 | begins
///   u64 of each sample and of the end: its first piece
class SamplePacking {
 public:
  static constexpr uint64_t kTokensMax = uint64_t{1} << 42;
  /// Visits all documents of a source in their order.
  using Documents =
      std::function<Status(const std::function<Status(uint64_t first, uint64_t count)>& visit)>;

  /// Opens the file of this key (32 characters) in `folder`, which only this user can write. Makes it
  /// first if it is not there, or is not whole. tokens: of the source. Errors of `documents`; io.
  static Result<SamplePacking> open(const std::string& folder, const std::string& key,
                                    int64_t block_size, uint64_t tokens,
                                    const Documents& documents);
  int64_t block_size() const { return block_size_; }
  uint64_t samples() const { return samples_; }
  /// Inputs of all samples that are padding.
  uint64_t padding() const { return samples_ * static_cast<uint64_t>(block_size_) - tokens_; }
  /// The pieces of a sample, whose counts are block_size at most together. Requires position <
  /// samples(). bad_data: the file is damaged; io.
  Result<std::vector<PackedPiece>> sample(uint64_t position) const;

 private:
  explicit SamplePacking(InputFile file) : file_(std::move(file)) {}
  static Result<SamplePacking> open_file(const std::string& path, const std::string& key,
                                         int64_t block_size, uint64_t tokens);
  InputFile file_;
  int64_t block_size_ = 0;
  uint64_t tokens_ = 0, pieces_ = 0, samples_ = 0;
};

}  // namespace simplescale
