// runtime/data: the way from text to a trainer, in the order of its headers: corpus, tokenizer,
// prepare (which makes a folder with a manifest), token_file, sample_order, ring_filler,
// token_ring.
//
// The text that training data is made from: a sequence of documents, read in chunks. One thread.
//
// Sources:
//   a file             by its name, in capitals or not, without .gz, .zst, .xz or .bz2 if it is
//                      compressed:
//                        .jsonl    every line is a JSON object, whose text is a document; so are
//                                  .ndjson and .json, the latter in folders only if it is compressed
//                        .parquet  every row is a document
//                        others    UTF-8 text; a line with only <|endoftext|> begins a new
//                                  document; blanks at both ends of a document do not count
//   a folder           its .txt and .jsonl files, compressed or not, compressed .json files (taken
//                      for .jsonl), and .parquet files, also in folders below and in those that
//                      links lead to, in the order of their paths; every file begins a new document
//   s3://BUCKET/KEY    such a file or folder in a bucket
//   debian:bible-kjv   the King James Bible of that Debian package as plain prose: a document per
//                      book, a line per chapter, verses without their numbers
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/index_ranges.hpp"
#include "runtime/base/status.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/data/data_files.hpp"

namespace simplescale {

/// Whole lines of a document. The chunks of a row of .jsonl or .parquet are its text, byte for byte;
/// a row without text is left out. A chunk that continues a document begins with the newline that
/// ended the chunk before it. So no token spans two chunks, and chunks can be encoded independently
/// (prepare.cpp).
struct TextChunk {
  bool begins_document = false;
  std::string text;    // valid UTF-8, about 16 KiB unless a single line is longer
  IndexRanges masked;  // bytes of `text` whose tokens do not count in the loss
};

struct CorpusOptions {
  std::string text_key = "text";  // member of a JSON line, column of a parquet, with the text
  /// Member of a JSON line, column of a parquet, with ranges of the text whose tokens do not count
  /// in the loss: [begin, end) in characters (code points), in any order. "": there are none.
  std::string mask_key;
  /// So many bad lines are left out: not UTF-8, no JSON, without text, with a range that is beyond
  /// the text, longer than 64 MiB (of text: 16 MiB). The next one is an error.
  uint64_t skip_bad = 0;
  DataFiles files;  // where sources in a bucket are read
};

class Corpus {
 public:
  /// source: one of the list above. bad_data: it does not exist, cannot be read, its package is not
  /// installed, or a link in the folder leads nowhere, or is another user's and leads out of it.
  static Result<Corpus> open(const std::string& source, CorpusOptions options = {});

  /// A hash of the names, sizes and modification times of the source's files, and of text_key and
  /// mask_key if they matter, to detect changes.
  const std::string& signature() const { return signature_; }
  /// Size of the source's files, which is about that of the text unless they are compressed.
  uint64_t bytes() const { return bytes_; }

  const CorpusOptions& options() const { return options_; }
  /// What the user must know of the source's folder, one line each: what is not read of it, and what
  /// is read more than once.
  std::vector<std::string> notes() const;

  // The files of the source, in their order; the Bible is one.
  size_t files() const { return files_.size(); }
  const std::string& path(size_t file) const { return files_[file].path; }
  /// A hash of the name, size and modification time of a file, and of text_key and mask_key if they
  /// matter.
  const std::string& signature(size_t file) const { return files_[file].signature; }
  uint64_t bytes(size_t file) const { return files_[file].bytes; }
  /// Its path in the source if that is a folder, else its whole path.
  const std::string& name(size_t file) const { return files_[file].name; }
  /// Calls take(chunk, bytes of the file read so far) for every chunk of a file, in order. Returns
  /// how many of its bad lines were left out. bad_before: those of the files before it. Errors as
  /// read(). Several threads may read files at once.
  Result<uint64_t> read_file(size_t file, uint64_t bad_before,
                             const std::function<Status(TextChunk, uint64_t)>& take) const;

  /// The error of a source without text.
  Status no_text() const;

  /// Calls `take` for every chunk in order, with the share of the files read so far, in [0, 1].
  /// Returns how many bad lines were left out; the first ten are logged. Stops at the first error
  /// of take. bad_data with the file and the line or byte: a bad line, or one that is longer than
  /// 64 MiB (of text: 16 MiB); bad_data: the source has no text.
  Result<uint64_t> read(const std::function<Status(TextChunk, double)>& take) const;

 private:
  std::string source_, signature_;
  CorpusOptions options_;
  struct File {
    std::string path, name, signature;
    uint64_t bytes = 0;
  };
  std::vector<File> files_;
  std::vector<std::string> left_out_, again_;
  uint64_t bytes_ = 0;
};

/// Converts the output of `bible -f` to prose with a <|endoftext|> line between books. bad_data:
/// verses are missing.
Result<std::string> bible_prose(const std::string& verses);

}  // namespace simplescale
