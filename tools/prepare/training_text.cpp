#include "tools/prepare/training_text.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/hash.hpp"

namespace simplescale {

namespace {

// More text makes a tokenizer no better, only training slower.
constexpr double bytes_max = 32 << 20;
constexpr double repeats_max = 1000;

/// From 0 up to, not including, 1.
template <size_t N>
double draw_of(const uint64_t (&numbers)[N]) {
  return std::ldexp(static_cast<double>(hash128(numbers, sizeof numbers).low >> 11), -53);
}

/// About `bytes` bytes of a text. SentencePiece takes lines; tokens of byte-level BPE may hold
/// newlines.
Result<std::vector<std::string>> sample(const TrainingText& from, double bytes, uint64_t seed,
                                        bool by_line, const std::function<void(double)>& progress) {
  SS_ASSIGN(const Corpus corpus, Corpus::open(from.source, from.corpus));
  const double kept = std::min(1.0, bytes / static_cast<double>(corpus.bytes()));
  std::vector<std::string> texts;
  uint64_t number[2] = {seed, 0};
  const auto read = corpus.read([&](const TextChunk& chunk, double fraction) {
    progress(fraction);
    for (size_t at = 0; at < chunk.text.size(); ++number[1]) {
      const size_t newline = by_line ? chunk.text.find('\n', at) : std::string::npos;
      const size_t end = std::min(newline, chunk.text.size());
      if (end > at && draw_of(number) < kept) texts.push_back(chunk.text.substr(at, end - at));
      at = end + 1;
    }
    return Status();
  });
  SS_RETURN_IF_ERROR(read.status());
  return texts;
}

double bytes_of(const std::vector<std::string>& texts) {
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  return static_cast<double>(bytes);
}

}  // namespace

Result<std::string> training_signature(const std::vector<TrainingText>& from) {
  Hasher hasher;
  for (const TrainingText& text : from) {
    SS_ASSIGN(const Corpus corpus, Corpus::open(text.source, text.corpus));
    if (from.size() == 1) return corpus.signature();
    hasher.update(corpus.signature().c_str(), corpus.signature().size() + 1);
    hasher.update(&text.weight, sizeof text.weight);
  }
  return hasher.digest().hex();
}

Result<std::vector<std::string>> training_texts(const std::vector<TrainingText>& from,
                                                uint64_t seed, bool by_line,
                                                const std::function<void(double)>& progress) {
  double weights = 0;
  for (const TrainingText& text : from) weights += text.weight;
  std::vector<std::vector<std::string>> samples;
  double bytes = 0;  // so many would hold each text as a whole
  for (const TrainingText& text : from) {
    const double share = text.weight / weights;
    SS_ASSIGN(auto made, sample(text, share * bytes_max, seed, by_line, [&](double fraction) {
                progress((static_cast<double>(samples.size()) + fraction) /
                         static_cast<double>(from.size()));
              }));
    bytes = std::max(bytes, bytes_of(made) / share);
    samples.push_back(std::move(made));
  }
  if (samples.size() == 1) return std::move(samples.front());
  std::vector<std::string> texts;
  for (size_t i = 0; i < samples.size(); ++i) {
    const double wanted = std::min(bytes, bytes_max) * from[i].weight / weights;
    const double copies = std::min(repeats_max, wanted / std::max(1.0, bytes_of(samples[i])));
    for (size_t k = 0; k < samples[i].size(); ++k) {
      const auto count = static_cast<size_t>(copies + draw_of({seed, k, i + 1}));
      texts.insert(texts.end(), count, samples[i][k]);
    }
  }
  return texts;
}

}  // namespace simplescale
