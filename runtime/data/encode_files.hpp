// Encodes the files of a text in parallel into pieces (token_piece.hpp). Blocks the caller, which
// alone calls back; works on threads of its own.
//
// As many files are read at once as there are jobs. Where fewer files are left, the encoding of each
// one uses several threads. Memory: some hundred KiB for each job, and the longest line of each file
// that is being read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/data/corpus.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace simplescale {

struct EncodeProgress {
  double fraction = 0;      // of the bytes of the files
  uint64_t text_bytes = 0;  // encoded by this call
  uint64_t kept = 0;        // files whose pieces were there already
};

struct EncodeOptions {
  std::string folder;  // of the pieces; created if missing
  std::string tokenizer_hash;
  int token_bytes = 2;
  int jobs = 1;
};

/// The paths of the pieces in the order of the corpus's files. A piece that is there already and was
/// made from the same file with the same tokenizer is kept. So the pieces do not depend on jobs, nor
/// on interruptions. progress: called about ten times a second. Errors are those of the first file
/// that has one, as of Corpus::read(); then pieces of other files may be complete.
Result<std::vector<std::string>> encode_files(
    const Corpus& corpus, const Tokenizer& tokenizer, const EncodeOptions& options,
    const std::function<void(const EncodeProgress&)>& progress);

}  // namespace simplescale
