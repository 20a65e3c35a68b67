// generate: text that continues a prompt.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <random>

#include "app/commands/generate.hpp"
#include "app/commands/loaded_model.hpp"
#include "app/terminal.hpp"
#include "model/cpu/decoder.hpp"
#include "model/sampler.hpp"
#include "runtime/tokenizer/text_stream.hpp"

namespace simplescale {

namespace {

/// Tokens that follow the prompt, and what ended them.
class Generator {
 public:
  Generator(const LoadedModel& model, const Tokenizer& tokenizer, const GenerateOptions& options)
      : tokenizer_(tokenizer),
        options_(options),
        decoder_(model.shape, model.units, model_threads()),
        context_(static_cast<size_t>(model.shape.block_size)) {}

  /// Prints the prompt and its continuation, as it comes. Each call gives the same text.
  Status print(const std::string& prompt) {
    Status encoded;
    std::vector<int32_t> ids = tokenizer_.encode(prompt, &encoded);
    SS_RETURN_IF_ERROR(encoded.in("the prompt"));
    if (tokenizer_.bos() >= 0) ids.insert(ids.begin(), tokenizer_.bos());
    if (ids.empty())
      return Status(Code::usage, "the tokenizer has no first token (BOS); give a --prompt");
    const auto decode = [this](std::span<const int32_t> some) { return tokenizer_.decode(some); };
    terminal::text(decode(ids));
    TextStream text(decode, ids, options_.stops);
    std::mt19937_64 random(options_.seed);
    decoder_.clear();
    std::span<const int32_t> unseen = ids;
    for (int n = 0; n < options_.max_tokens && !text.stopped(); ++n) {
      const int32_t id = sample_token(logits(ids, unseen), options_.sampling, random);
      if (id == tokenizer_.eos() || id == tokenizer_.bos()) break;  // either ends a document
      ids.push_back(id);
      unseen = std::span(ids).last(1);
      SS_RETURN_IF_ERROR(show(text.add(id)));
    }
    return show(text.finish() + "\n");
  }

 private:
  /// The logits after `ids`. unseen: the last of them, which the decoder has not seen. A full
  /// context continues with its last half, so the model sees that many tokens at least.
  std::span<const float> logits(std::span<const int32_t> ids, std::span<const int32_t> unseen) {
    if (static_cast<size_t>(decoder_.length()) + unseen.size() > context_) {
      decoder_.clear();
      unseen = ids.last(std::min(ids.size(), (context_ + 1) / 2));
    }
    return decoder_.append(unseen);
  }

  static Status show(const std::string& text) {
    terminal::text(text);
    return std::fflush(stdout) == 0 ? Status() : Status(Code::io, "cannot print the text");
  }

  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  cpu::Decoder decoder_;
  const size_t context_;
};

/// "-": everything that comes from stdin.
std::string read_prompt(const std::string& prompt) {
  if (prompt != "-") return prompt;
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

}  // namespace

Status generate_command(const GenerateOptions& o) {
  SS_ASSIGN(const LoadedModel model, load_model(o.checkpoint, o.ema));
  SS_ASSIGN(const Tokenizer tokenizer, load_tokenizer(model, o.checkpoint, "text generation"));
  Generator generator(model, tokenizer, o);
  if (o.prompt_given || isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0)
    return generator.print(read_prompt(o.prompt));
  for (std::string line;;) {
    terminal::print("prompt> ");
    std::fflush(stdout);
    if (!std::getline(std::cin, line)) break;
    SS_RETURN_IF_ERROR(generator.print(line));
  }
  terminal::print("\n");
  return {};
}

}  // namespace simplescale
