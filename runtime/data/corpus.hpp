// Text that training data is made from: a sequence of documents, read in chunks. One thread.
//
// Sources
//   a file             UTF-8 text; a line that is just <|endoftext|> begins a new document
//   a folder           its *.txt files (also in folders below), in the order of their names; each
//   at least one document debian:bible-kjv   the King James Bible of the Debian package of that
//   name, as plain prose: a book is a document, a
//                      chapter a line, verses without their numbers
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

/// Some whole lines of a document. A chunk that continues a document begins with the newline that
/// ended the one before; so no token crosses from chunk to chunk, and chunks can be encoded by
/// themselves (see prepare.cpp).
struct TextChunk {
  bool begins_document = false;
  std::string text;  // valid UTF-8, about 16 KiB unless a single line is longer
};

class Corpus {
 public:
  /// bad_data: the source does not exist, cannot be read, or its program is not installed (names
  /// the package).
  static Result<Corpus> open(const std::string& source);

  /// Changes whenever the source's files do: a hash of names, sizes and times. Cheap.
  const std::string& signature() const { return signature_; }
  /// Of its files: about the text's size, to plan with.
  uint64_t bytes() const { return bytes_; }

  /// Gives every chunk in order to `take`, and what part of the text has been read, in [0, 1].
  /// Stops at take's first error. bad_data with file and byte: text that is no UTF-8, or a line
  /// longer than 16 MiB; no text at all.
  Status read(const std::function<Status(TextChunk, double)>& take) const;

 private:
  std::string source_, signature_;
  std::vector<std::string> files_;  // empty: the Bible
  uint64_t bytes_ = 0;              // of the files
};

/// The output of `bible -f` as a text with a <|endoftext|> line between books. bad_data if verses
/// are missing.
Result<std::string> bible_prose(const std::string& verses);

/// The first byte that does not belong to valid UTF-8; text.size() if all do.
size_t first_invalid_utf8(std::string_view text);

}  // namespace simplescale
