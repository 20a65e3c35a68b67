// Encodes the files of a text in parallel into pieces (token_piece.hpp). Blocks the caller, which
// alone calls back; works on threads of its own.
//
// As many files are read at once as there are jobs. Where fewer files are left, the encoding of each
// one uses several threads. Several processes may encode the files of one folder, also on several
// hosts: a process holds the lock of each piece that it makes, unless it has waited for that lock for
// long.
//
// Memory: about 2 MiB for each job, and for each file that is being read about ten times its longest
// line or row: the line, its text, and the ids of that text. A line of .jsonl has at most 64 MiB, one
// of text 16 MiB, and only two files have one of more than 2 MiB at a time (line_reader.hpp). A file
// of .parquet may take 2 GiB.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tools/prepare/corpus.hpp"

namespace simplescale {

struct EncodeProgress {
  double fraction = 0;      // of the bytes of the files
  uint64_t text_bytes = 0;  // encoded by this call
  uint64_t files = 0;       // encoded by this call
  uint64_t kept = 0;        // files whose pieces were there already, or came from other processes
  uint64_t kept_bytes = 0;  // of text that was encoded before an interruption, of the other files
};

struct EncodeOptions {
  std::string folder;  // of the pieces
  std::string tokenizer_hash;
  int token_bytes = 2;
  int32_t eos = -1;  // is put behind each document; -1: nothing is
  int jobs = 1;
  uint64_t keep_bytes = 16 << 20;  // of tokens; an interruption costs so many of each file
  /// Without a new piece for so long, this call makes those that other processes are making, too.
  std::chrono::milliseconds patience = std::chrono::minutes(10);
  /// If it is set, another process waits for the pieces, and this call helps it: it makes those that
  /// no process is making, and returns. Asked before each file, on any thread; false: the pieces are
  /// not needed any more.
  std::function<bool()> wanted;
};

/// The paths of the pieces in the order of the corpus's files. A piece that is there already and was
/// made from the same file with the same tokenizer is kept. A piece that was begun is continued: its
/// file is read from the start, but only what is not in the piece is encoded. So the pieces do not
/// depend on jobs, nor on interruptions, nor on helpers. Waits for those that other processes are
/// making, up to options.patience without a new one; then it makes them itself, each in a file of
/// its own, and the last one that is complete stays. Without options.wanted, it is called by one
/// process at a time. progress: called about ten times a second.
/// Errors are those of the first file that has one, as of Corpus::read(); then pieces of other files
/// may be complete.
Result<std::vector<std::string>> encode_files(
    const Corpus& corpus, const Tokenizer& tokenizer, const EncodeOptions& options,
    const std::function<void(const EncodeProgress&)>& progress);

/// Of the text as encode_files() would encode it: the hash of the pieces' hashes (PieceFacts::text).
/// Reads `jobs` files at once. progress: called about ten times a second, with the share of the bytes
/// that are read. Errors as of encode_files().
Result<std::string> text_hash(const Corpus& corpus, int jobs,
                              const std::function<void(double)>& progress);

}  // namespace simplescale
