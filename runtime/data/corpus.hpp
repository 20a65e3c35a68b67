// runtime/data: the way from text to a trainer, in the order of its headers: corpus, tokenizer,
// prepare (which makes a folder with a manifest), token_file, sample_order, ring_filler,
// token_ring.
//
// The text that training data is made from: a sequence of documents, read in chunks. One thread.
//
// Sources:
//   a file             UTF-8 text; a line with only <|endoftext|> begins a new document
//   a folder           its *.txt files (also in folders below) in the order of their paths; every
//                      file begins a new document
//   debian:bible-kjv   the King James Bible of that Debian package as plain prose: a document per
//                      book, a line per chapter, verses without their numbers
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Whole lines of a document. A chunk that continues a document begins with the newline that ended
/// the chunk before it. So no token spans two chunks, and chunks can be encoded independently
/// (prepare.cpp).
struct TextChunk {
  bool begins_document = false;
  std::string text;  // valid UTF-8, about 16 KiB unless a single line is longer
};

class Corpus {
 public:
  /// source: one of the list above. bad_data: it does not exist, cannot be read, or its package is
  /// not installed.
  static Result<Corpus> open(const std::string& source);

  /// A hash of the names, sizes and modification times of the source's files, to detect changes.
  const std::string& signature() const { return signature_; }
  /// Size of the source's files, which is about that of the text.
  uint64_t bytes() const { return bytes_; }

  /// Calls `take` for every chunk in order, with the share of the text read so far, in [0, 1].
  /// Stops at the first error of take. bad_data with file and byte: not UTF-8, or a line longer
  /// than 16 MiB; bad_data: the source has no text.
  Status read(const std::function<Status(TextChunk, double)>& take) const;

 private:
  std::string source_, signature_;
  std::vector<std::string> files_;  // empty: the Bible
  uint64_t bytes_ = 0;
};

/// Converts the output of `bible -f` to prose with a <|endoftext|> line between books. bad_data:
/// verses are missing.
Result<std::string> bible_prose(const std::string& verses);

/// Index of the first byte that is not part of valid UTF-8; text.size() if there is none.
size_t first_invalid_utf8(std::string_view text);

}  // namespace simplescale
