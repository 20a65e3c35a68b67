// Cuts documents where the tokenizer allows it, so that pieces of a document can be encoded
// independently. One thread.
#pragma once

#include <functional>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tools/prepare/corpus.hpp"

namespace simplescale {

/// Takes the chunks of a corpus, which are cut before newlines, and gives chunks that are cut as
/// `cuts` says. Where a document has no such place for piece_bytes_max bytes, it is cut before a
/// newline all the same: the ids around that cut may differ from those of the whole document.
class DocumentCutter {
 public:
  static constexpr size_t piece_bytes = 16 << 10, piece_bytes_max = 4 << 20;

  DocumentCutter(Tokenizer::Cuts cuts, std::function<Status(TextChunk)> take)
      : cuts_(cuts), take_(std::move(take)) {}
  Status add(TextChunk chunk);
  /// The last document is complete.
  Status finish();

 private:
  Status emit(size_t begin, size_t end);

  const Tokenizer::Cuts cuts_;
  const std::function<Status(TextChunk)> take_;
  TextChunk pending_;    // what has not been emitted of the current document
  size_t searched_ = 1;  // no place to cut is before this byte of it
};

}  // namespace simplescale
