// How documents are found in the tokens of a source, and what follows from it for training
// (docs/data.md). Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/training/token_marks.hpp"

namespace simplescale {

struct DocumentRule {
  bool mask = false;          // tokens attend to tokens of their own document only
  bool boundary_loss = true;  // false: the first token of a document is no target
  // Ids of the token that begins each document and of the one that ends it; -1: there is none.
  int32_t first = -1, last = -1;
  bool by_index = false;  // the source's Megatron index says where documents begin

  /// False: tokens stay as they are.
  bool marks() const { return mask || !boundary_loss; }
  /// The marks of a token that begins a document.
  int32_t mark() const { return (mask ? kBeginsDocument : 0) | (boundary_loss ? 0 : kNotTrained); }
};

/// Marks the tokens that begin a document by the rule's ids. tokens: a sample without marks. Its
/// first token is no target and always begins what the sample shows of a document, so it needs no
/// mark.
inline void mark_by_ids(const DocumentRule& rule, std::span<int32_t> tokens) {
  for (size_t i = tokens.size(); i-- > 1;)
    if ((tokens[i] == rule.first && rule.first >= 0) ||
        (tokens[i - 1] == rule.last && rule.last >= 0))
      tokens[i] |= rule.mark();
}

}  // namespace simplescale
