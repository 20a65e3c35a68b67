// evaluate and logits. B samples per forward pass, T = block_size, V = vocabulary.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/commands/generate.hpp"
#include "app/commands/loaded_model.hpp"
#include "app/terminal.hpp"
#include "model/backend.hpp"
#include "model/cpu/decoder.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/data/task_file.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/training/token_marks.hpp"

namespace simplescale {

namespace {

/// A model and what computes a whole batch of samples with it.
struct BatchModel : LoadedModel {
  std::unique_ptr<Backend> backend;
  const void* tied() const { return shape.tie_embeddings ? units.front().data() : nullptr; }
  void forward(const int32_t* tokens) {
    backend->embed(units.front().data(), tokens);
    for (int layer = 0; layer < shape.layers; ++layer)
      backend->forward_block(layer, units[static_cast<size_t>(layer) + 1].data());
  }
};

Result<BatchModel> load_batch_model(const std::string& path, bool ema, int batch) {
  SS_ASSIGN(LoadedModel loaded, load_model(path, ema));
  BatchModel model{std::move(loaded), nullptr};
  BackendOptions options;
  options.shape = model.shape;
  options.micro_batch_size = batch;
  options.training = false;
  options.threads = model_threads();
  SS_ASSIGN(model.backend, make_cpu_backend(options));
  return model;
}

/// The run that a path names: a run folder, or RUN/checkpoints/CHECKPOINT. Links are not followed.
RunFolder run_of(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path folder = fs::absolute(path).lexically_normal();
  if (folder.filename().empty()) folder = folder.parent_path();
  std::error_code error;
  const fs::path around = folder.parent_path();
  const bool inside =
      !fs::exists(folder / "config.toml", error) && around.filename() == "checkpoints";
  return {(inside ? around.parent_path() : folder).string()};
}

/// usage: `data` is text, or the name of a text, not tokens. tokenizer: of the model; may be empty.
Status check_is_tokens(const std::string& data, const std::string& checkpoint,
                       const std::string& tokenizer) {
  Config config;
  config.data.source = data;
  std::error_code error;
  const bool is_text = std::filesystem::exists(data, error) || data.starts_with("debian:");
  if (!is_text || source_is_tokens(config)) return {};
  return Status(Code::usage,
                data +
                    " is text, and evaluate reads tokens; make tokens with the model's "
                    "tokenizer: simplescale prepare CONFIG --data.source=" +
                    data +
                    " --tokenizer.path=" + (tokenizer.empty() ? "tokenizer.model" : tokenizer) +
                    " --data.folder=NEW_FOLDER; then: simplescale evaluate " + checkpoint +
                    " --data=NEW_FOLDER");
}

/// Scores rows of a task file as lm-evaluation-harness does, each text after BOS (or EOS where the
/// tokenizer has no BOS).
class TaskScorer {
 public:
  TaskScorer(const LoadedModel& model, const Tokenizer& tokenizer)
      : tokenizer_(tokenizer),
        decoder_(model.shape, model.units, model_threads()),
        context_(static_cast<size_t>(model.shape.block_size)) {}

  void add(const TaskRow& row, TaskScore& score) {
    if (!row.text.empty()) return score.add_text(row, text(row.text));
    // Spaces at the end of a prompt belong to the first token of the choice.
    const size_t end = row.prompt.find_last_not_of(" \t\r\n") + 1;
    const size_t prompt_tokens = tokens(row.prompt.substr(0, end)).size();
    std::vector<double> choices;
    for (const std::string& choice : row.choices)
      choices.push_back(last_of(tokens(row.prompt + choice), prompt_tokens));
    score.add_question(row, choices);
  }

 private:
  std::vector<int32_t> tokens(const std::string& text) const {
    std::vector<int32_t> ids = tokenizer_.encode(text);
    ids.insert(ids.begin(), tokenizer_.bos() >= 0 ? tokenizer_.bos() : tokenizer_.eos());
    return ids;
  }

  /// log p of the tokens from `begin` on, after as many of those before as fit the context.
  double last_of(std::span<const int32_t> ids, size_t begin) {
    begin = std::min(begin, ids.size() - 1);
    const size_t first = ids.size() - 1 > context_ ? ids.size() - 1 - context_ : 0;
    begin = std::max(begin, first + 1);
    const std::span prefix = ids.subspan(first, begin - first);
    if (!std::ranges::equal(prefix, prefix_)) {
      decoder_.clear();
      const std::span<const float> logits = decoder_.append(prefix);
      logits_.assign(logits.begin(), logits.end());
      prefix_.assign(prefix.begin(), prefix.end());
    }
    decoder_.rewind(static_cast<int64_t>(prefix_.size()));
    return decoder_.score(logits_, ids.subspan(begin)).log_likelihood;
  }

  /// Of a whole text, in pieces of the context's length. The last piece sees a full context.
  double text(const std::string& text) {
    const std::vector<int32_t> ids = tokens(text);
    double sum = 0;
    for (size_t begin = 1; begin < ids.size(); begin += context_) {
      const size_t end = std::min(begin + context_, ids.size());
      sum += last_of(std::span(ids).first(end), begin);
    }
    return sum;
  }

  const Tokenizer& tokenizer_;
  cpu::Decoder decoder_;
  const size_t context_;
  std::vector<int32_t> prefix_;  // what the decoder has seen before the last score()
  std::vector<float> logits_;    // after prefix_
};

Status evaluate_tasks(const EvaluateOptions& o) {
  SS_ASSIGN(std::vector<TaskRow> rows, read_tasks(o.tasks));
  SS_ASSIGN(const LoadedModel model, load_model(o.checkpoint, o.ema));
  SS_ASSIGN(const Tokenizer tokenizer, load_tokenizer(model, o.checkpoint, "--tasks"));
  if (tokenizer.bos() < 0 && tokenizer.eos() < 0)
    return Status(Code::bad_data, model.tokenizer + " has neither BOS nor EOS to begin a text");
  if (o.samples > 0 && rows.size() > static_cast<size_t>(o.samples))
    rows.resize(static_cast<size_t>(o.samples));
  TaskScorer scorer(model, tokenizer);
  TaskScores scores;
  for (const TaskRow& row : rows) scorer.add(row, scores[row.task]);
  terminal::text(o.json ? task_json(scores) : task_table(scores));
  return {};
}

}  // namespace

namespace {

constexpr int kBatch = 8;

/// The validation tokens to evaluate, by the names of their sources ("": only one).
struct NamedTokens {
  std::string name;
  TokenSource tokens;
};

/// Documents count in other tokens as they did in the run's training, if the model is from a run.
Status use_documents_of_run(const EvaluateOptions& o, const BatchModel& model, Dataset& dataset) {
  const RunFolder run = run_of(o.checkpoint);
  if (!std::filesystem::exists(run.config())) return {};
  SS_ASSIGN(LoadedConfig loaded, load_config(run.config()));
  loaded.config.data.blend.clear();
  loaded.config.data.source = o.data;
  if (dataset.tokenizer.empty()) dataset.tokenizer = model.tokenizer;
  return use_documents(loaded.config, dataset);
}

Result<std::vector<NamedTokens>> validation_tokens(const EvaluateOptions& o,
                                                   const BatchModel& model) {
  std::vector<NamedTokens> found;
  if (!o.data.empty()) {
    SS_RETURN_IF_ERROR(check_is_tokens(o.data, o.checkpoint, model.tokenizer));
    SS_ASSIGN(Dataset dataset, open_dataset(o.data, "auto", model.shape.vocab, 0));
    SS_RETURN_IF_ERROR(use_documents_of_run(o, model, dataset));
    found.push_back({"", dataset.validation.tokens() > 0 ? dataset.validation : dataset.train});
  } else {
    const RunFolder run = run_of(o.checkpoint);
    if (!std::filesystem::exists(run.config()))
      return Status(
          Code::usage,
          o.checkpoint + " is not in a run folder; name the tokens to evaluate with --data=PATH");
    SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
    SS_ASSIGN(const RunData data, open_tokens(loaded.config, model.shape));
    for (const RunData::Source& source : data.sources)
      if (const TokenSource& held = source.data.validation;
          held.samples(model.shape.block_size) > 0 ||
          (held.tokens() > 0 && data.sources.size() == 1))  // too few: an error that says so
        found.push_back({source.name, held});
    if (found.empty())
      return Status(Code::bad_data, o.checkpoint +
                                        ": its data has no validation tokens; name the tokens "
                                        "to evaluate with --data=PATH");
  }
  for (const NamedTokens& source : found)
    SS_RETURN_IF_ERROR(source.tokens.require_block(model.shape.block_size));
  return found;
}

/// Of samples: the sum of their mean losses in nats over all targets, to which those that are not
/// trained add nothing, and the number of the trained ones.
struct Losses {
  double sum = 0;
  uint64_t trained = 0;
};

/// Of the first `samples` samples.
Result<Losses> losses_of(BatchModel& model, const TokenSource& source, uint64_t samples) {
  const auto row = static_cast<size_t>(model.shape.block_size + 1);
  std::vector<int32_t> tokens(kBatch * row);
  Losses losses;
  // Whole batches. Each remaining sample fills a batch with copies of itself.
  for (uint64_t first = 0; first < samples;) {
    const uint64_t count = samples - first >= kBatch ? kBatch : 1;
    for (uint64_t b = 0; b < kBatch; ++b)
      SS_RETURN_IF_ERROR(source.read_sample(first + (count == 1 ? 0 : b), model.shape.block_size,
                                            tokens.data() + b * row));
    model.forward(tokens.data());
    losses.trained +=
        trained_targets(tokens.data(), static_cast<int64_t>(count), model.shape.block_size);
    losses.sum += static_cast<double>(count) *
                  model.backend->head(model.units.back().data(), model.tied(), 0, nullptr, nullptr);
    first += count;
  }
  return losses;
}

}  // namespace

Status evaluate_command(const EvaluateOptions& o) {
  if (!o.tasks.empty()) return evaluate_tasks(o);
  SS_ASSIGN(BatchModel model, load_batch_model(o.checkpoint, o.ema, kBatch));
  SS_ASSIGN(const std::vector<NamedTokens> sources, validation_tokens(o, model));
  nlohmann::json by_source;
  double sum = 0;
  uint64_t counted = 0, trained = 0;
  const auto T = static_cast<uint64_t>(model.shape.block_size);
  for (const auto& [name, source] : sources) {
    uint64_t samples = source.samples(model.shape.block_size);
    if (o.samples > 0) samples = std::min(samples, static_cast<uint64_t>(o.samples));
    SS_ASSIGN(const Losses losses, losses_of(model, source, samples));
    const double loss =
        losses.sum / static_cast<double>(samples) * over_trained(samples * T, losses.trained);
    if (!name.empty()) by_source[name] = loss;
    if (!name.empty() && !o.json)
      terminal::print("%s: validation loss %.4f, over %llu samples\n", name.c_str(), loss,
                      static_cast<unsigned long long>(samples));
    sum += losses.sum;
    counted += samples;
    trained += losses.trained;
  }
  const double loss = sum / static_cast<double>(counted) * over_trained(counted * T, trained);
  const uint64_t count = trained;
  if (o.json) {
    nlohmann::json result = {{"val_loss", loss}, {"perplexity", std::exp(loss)}, {"tokens", count}};
    if (!by_source.is_null()) result["val_losses"] = by_source;
    terminal::print("%s\n", result.dump().c_str());
  } else {
    terminal::print("validation loss %.4f, perplexity %.2f, over %llu tokens\n", loss,
                    std::exp(loss), static_cast<unsigned long long>(count));
  }
  return {};
}

Status logits_command(const LogitsOptions& o) {
  SS_ASSIGN(BatchModel model, load_batch_model(o.checkpoint, false, 1));
  SS_ASSIGN(const Dataset dataset, open_dataset(o.data, "auto", model.shape.vocab, 0));
  SS_RETURN_IF_ERROR(dataset.train.require_block(model.shape.block_size));
  const auto samples = static_cast<uint64_t>(o.samples);
  if (samples > dataset.train.samples(model.shape.block_size))
    return Status(Code::bad_data,
                  o.data + " has only " +
                      std::to_string(dataset.train.samples(model.shape.block_size)) +
                      " samples; lower --samples");
  const auto T = static_cast<size_t>(model.shape.block_size),
             V = static_cast<size_t>(model.shape.vocab);
  // NumPy's format 1.0: magic, version, header length, header, padded to a multiple of 64 bytes.
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" +
                       std::to_string(samples) + ", " + std::to_string(T) + ", " +
                       std::to_string(V) + "), }";
  header.resize((header.size() + 11 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  std::ofstream file(o.out, std::ios::binary);
  file.write("\x93NUMPY\x01\x00", 8)
      .put(static_cast<char>(header.size() & 0xff))
      .put(static_cast<char>(header.size() >> 8));
  file << header;
  std::vector<int32_t> tokens(T + 1);
  std::vector<float> logits(T * V);
  for (uint64_t sample = 0; sample < samples; ++sample) {
    SS_RETURN_IF_ERROR(dataset.train.read_sample(sample, model.shape.block_size, tokens.data()));
    model.forward(tokens.data());
    model.backend->logits(model.units.back().data(), model.tied(), logits.data());
    file.write(reinterpret_cast<const char*>(logits.data()),
               static_cast<std::streamsize>(logits.size() * sizeof(float)));
  }
  file.close();
  return file ? Status() : Status(Code::io, "cannot write " + o.out);
}

}  // namespace simplescale
