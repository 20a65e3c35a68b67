// The text that a tokenizer is trained on: about 32 MiB of one source, or of all texts of a blend.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "tools/prepare/corpus.hpp"

namespace simplescale {

struct TrainingText {
  std::string source;  // of corpus.hpp
  CorpusOptions corpus;
  double weight = 1;  // above 0; only the proportions of several texts count
};

/// Corpus::signature() of one text; of several, a hash of theirs and of the weights. Errors of
/// Corpus::open().
Result<std::string> training_signature(const std::vector<TrainingText>& from);

/// The lines (by_line) or chunks of the texts to train on, in order: all, or about 32 MiB of them,
/// chosen by a hash of seed and number. Of several texts, their bytes are in proportion to the
/// weights: a small text is repeated, up to a thousand times. progress: gets the fraction that has
/// been read. Errors of Corpus.
Result<std::vector<std::string>> training_texts(const std::vector<TrainingText>& from,
                                                uint64_t seed, bool by_line,
                                                const std::function<void(double)>& progress);

}  // namespace simplescale
