// A micro-batch of tokens, prepared for the forward and backward passes. Pure functions over host
// memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/training/token_marks.hpp"

namespace simplescale {

/// tokens: (B, T + 1), row-wise, with marks (token_marks.hpp). inputs (B * T) receives the ids of
/// columns 0..T-1, targets (B * T) those of columns 1..T; -1: a target that is not trained. False if
/// an id is not in [0, V).
inline bool split_tokens(const int32_t* tokens, int64_t B, int64_t T, int64_t V, int32_t* inputs,
                         int32_t* targets) {
  const auto valid = [&](int32_t token) { return token >= 0 && token_id(token) < V; };
  if (!std::all_of(tokens, tokens + B * (T + 1), valid)) return false;
  for (int64_t b = 0; b < B; ++b) {
    const int32_t* row = tokens + b * (T + 1);
    for (int64_t t = 0; t < T; ++t) {
      inputs[b * T + t] = token_id(row[t]);
      targets[b * T + t] = row[t + 1] & kNotTrained ? -1 : token_id(row[t + 1]);
    }
  }
  return true;
}

/// The documents of a micro-batch: runs of rows that see each other only. Every sample begins one.
struct Documents {
  std::vector<int32_t> begin;  // the first row of each, in order; then B * T
  std::vector<int32_t> first;  // (B + 1): the index of each sample's first one; then their number
  std::vector<int32_t>
      prompt;            // of each, the index of the one that it sees, too (kSeesPrompt); or -1
  bool prompts = false;  // there are such

  int64_t count() const { return static_cast<int64_t>(begin.size()) - 1; }
};

/// tokens: as above. documents: keeps its memory.
inline void find_documents(const int32_t* tokens, int64_t B, int64_t T, Documents& documents) {
  documents.begin.clear();
  documents.first.clear();
  documents.prompt.clear();
  documents.prompts = false;
  for (int64_t b = 0; b < B; ++b) {
    auto last = static_cast<int32_t>(documents.begin.size());  // that sees itself only
    documents.first.push_back(last);
    for (int64_t t = 0; t < T; ++t) {
      const int32_t token = tokens[b * (T + 1) + t];
      if (t > 0 && (token & kBeginsDocument) == 0) continue;
      const bool sees = t > 0 && (token & kSeesPrompt) != 0;
      if (!sees) last = static_cast<int32_t>(documents.begin.size());
      documents.begin.push_back(static_cast<int32_t>(b * T + t));
      documents.prompt.push_back(sees ? last : -1);
      documents.prompts = documents.prompts || sees;
    }
  }
  documents.first.push_back(static_cast<int32_t>(documents.begin.size()));
  documents.begin.push_back(static_cast<int32_t>(B * T));
}

/// A counting sort of the indices of `inputs` by token, stable within a token: the indices of token
/// v are rows[begin[v]] ... rows[begin[v + 1] - 1]. inputs: (N), each in [0, V); begin: (V + 1);
/// rows: (N).
inline void group_by_token(std::span<const int32_t> inputs, int64_t V, int32_t* begin,
                           int32_t* rows) {
  std::fill_n(begin, V + 1, 0);
  for (const int32_t token : inputs) ++begin[token + 1];
  for (int64_t v = 0; v < V; ++v) begin[v + 1] += begin[v];
  // Filling rows advances begin[v] to the start of token v + 1; the shift afterwards undoes that.
  for (size_t i = 0; i < inputs.size(); ++i) rows[begin[inputs[i]]++] = static_cast<int32_t>(i);
  std::copy_backward(begin, begin + V, begin + V + 1);
  begin[0] = 0;
}

}  // namespace simplescale
