// How documents are found in the tokens of a source, and what follows from it for training
// (docs/data.md). Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/training/token_marks.hpp"

namespace simplescale {

struct DocumentRule {
  bool mask = false;          // tokens attend to tokens of their own document only
  bool pack = false;          // samples hold whole documents (packing.hpp)
  bool boundary_loss = true;  // false: the token behind the one that ends a document is no target
  // Ids of the token that begins each document and of the one that ends it; -1: there is none.
  int32_t first = -1, last = -1;
  bool by_index = false;  // the source's Megatron index says where documents begin
  /// `first` also ends the document before it, unless `end` stands there (-1: it never does).
  bool first_ends = false;
  int32_t end = -1;

  /// False: tokens stay as they are.
  bool marks() const { return mask || !boundary_loss; }
  /// True if documents must be found.
  bool finds() const { return marks() || pack; }
  /// Whether a document begins with the token `id`, by ids. before: the id before it; -1: none.
  bool begins(int32_t id, int32_t before) const {
    return (first >= 0 && id == first) || (last >= 0 && before == last);
  }
};

/// Marks the document that begins with tokens[at]. before: the id before tokens[0]; -1: there is
/// none. tokens[0] gets no mark: it is no target, and always begins what the sample shows of a
/// document.
inline void mark_document(const DocumentRule& rule, std::span<int32_t> tokens, size_t at,
                          int32_t before) {
  if (rule.mask && at > 0) tokens[at] |= kBeginsDocument;
  if (rule.boundary_loss) return;
  const int32_t left = at > 0 ? token_id(tokens[at - 1]) : before;
  const bool ends =
      rule.first_ends && token_id(tokens[at]) == rule.first && (left < 0 || left != rule.end);
  const size_t behind = at + ends;  // the token that ends the document before
  if (behind > 0 && behind < tokens.size()) tokens[behind] |= kNotTrained;
}

/// Marks documents by the rule's ids. tokens: a sample without marks.
inline void mark_by_ids(const DocumentRule& rule, std::span<int32_t> tokens, int32_t before) {
  for (size_t i = 0; i < tokens.size(); ++i)
    if (rule.begins(token_id(tokens[i]), i > 0 ? token_id(tokens[i - 1]) : -1))
      mark_document(rule, tokens, i, before);
}

}  // namespace simplescale
