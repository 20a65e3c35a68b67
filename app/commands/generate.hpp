// The commands generate, evaluate and logits of simplescale-compute. Each one loads the whole model
// from a checkpoint into one process and computes on the CPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/sampler.hpp"

#include "runtime/base/status.hpp"

namespace simplescale {

struct GenerateOptions {
  std::string checkpoint, prompt;
  bool prompt_given = false;
  int max_tokens = 64;
  Sampling sampling;
  std::vector<std::string> stops;  // the text ends before any of these
  uint64_t seed = 1;
  bool ema = false;  // with the average of the weights
};
/// Prints the prompt and its continuation, as it comes. The same seed gives the same text. Without
/// a prompt, and on a terminal, asks for one again and again until the input ends.
Status generate_command(const GenerateOptions& options);

struct EvaluateOptions {
  std::string checkpoint, data;
  std::string tasks;  // a file of questions, which are scored instead of validation tokens
  int64_t samples = 0;
  bool json = false;
  bool ema = false;  // the average of the weights
};
/// Prints the mean loss in nats per token, and the perplexity, its exponential; or what the
/// answers to the tasks come to.
Status evaluate_command(const EvaluateOptions& options);

struct LogitsOptions {
  std::string checkpoint, data, out;
  int64_t samples = 1;
};
/// Writes the logits of the first samples of `data` to `out`, a .npy file of float32 (samples, T,
/// V), for comparison with other programs.
Status logits_command(const LogitsOptions& options);

}  // namespace simplescale
