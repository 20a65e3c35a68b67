// evaluate and logits. B samples per forward pass, T = block_size, V = vocabulary.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "app/commands/generate.hpp"
#include "app/commands/loaded_model.hpp"
#include "app/terminal.hpp"
#include "model/backend.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/feed/samples_ahead.hpp"
#include "runtime/feed/task_batches.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/training/router_counts.hpp"
#include "runtime/training/token_marks.hpp"
#include "tools/prepare/task_encode.hpp"
#include "tools/prepare/task_file.hpp"
#include "tools/prepare/token_notes.hpp"

namespace simplescale {

namespace {

/// A model and what computes a whole batch of samples with it.
struct BatchModel : LoadedModel {
  int batch = 1;  // B
  std::unique_ptr<Backend> backend;
  std::vector<std::vector<uint16_t>> rounded;  // the units in bf16, instead of `units`

  const void* unit(size_t index) const {
    return rounded.empty() ? static_cast<const void*>(units[index].data()) : rounded[index].data();
  }
  size_t last() const { return unit_of_block(shape, shape.layers); }
  const void* tied() const { return shape.tie_embeddings ? unit(0) : nullptr; }
  void forward(const int32_t* tokens) {
    backend->embed(0, unit(0), tokens);
    for (int layer = 0; layer < shape.layers; ++layer) {
      const size_t of_block = unit_of_block(shape, layer);
      backend->forward_block(0, layer, unit(of_block));
      if (shape.has_experts(layer)) backend->forward_experts(0, layer, unit(of_block + 1));
    }
  }
  /// As Backend::loss(), after forward().
  double loss() {
    backend->head(0, unit(last()), tied(), 0, nullptr, nullptr);
    return backend->loss(0);
  }
};

Result<BatchModel> load_batch_model(const std::string& path, bool ema, int batch,
                                    DType precision = DType::f32) {
  SS_ASSIGN(LoadedModel loaded, load_model(path, ema));
  BatchModel model{std::move(loaded), batch, nullptr, {}};
  BackendOptions options;
  options.shape = model.shape;
  options.micro_batch_size = batch;
  options.precision = precision;
  options.training = false;
  options.threads = model_threads();
  SS_ASSIGN(model.backend, make_cpu_backend(options));
  if (precision == DType::f32) return model;
  for (std::vector<float>& unit : model.units) {
    model.rounded.emplace_back(unit.size());
    model.backend->cast(unit.data(), model.rounded.back().data(), unit.size());
    unit = {};
  }
  return model;
}

constexpr int kBatch = 8;

/// With the precision and the micro-batches of the run that the model is from; in fp32 if it is not
/// from a run.
Result<BatchModel> load_for_tasks(const std::string& path, bool ema) {
  const RunFolder run = run_of(path);
  if (!std::filesystem::exists(run.config())) return load_batch_model(path, ema, kBatch);
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  const TrainConfig& train = loaded.config.train;
  return load_batch_model(path, ema, static_cast<int>(train.micro_batch_size), train.precision);
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

/// The rows' scores, computed as a run's trainers do, with the same bits on the CPU.
TaskScores score(BatchModel& model, const TaskBatches& tasks) {
  std::vector<int32_t> tokens(static_cast<size_t>(model.batch) *
                              static_cast<size_t>(model.shape.block_size + 1));
  std::vector<double> log_likelihoods(tasks.sequences());
  for (uint64_t batch = 0; batch < tasks.batches(); ++batch) {
    tasks.fill(batch, tokens.data());
    model.forward(tokens.data());
    model.loss();
    tasks.sum(batch, model.backend->losses(0), log_likelihoods.data() + tasks.first(batch));
  }
  return tasks.scores(log_likelihoods);
}

Status evaluate_tasks(const EvaluateOptions& o) {
  std::string warning;
  SS_ASSIGN(std::vector<TaskRow> rows, read_tasks(o.tasks, &warning));
  if (!warning.empty()) terminal::error("simplescale: warning: %s\n", warning.c_str());
  SS_ASSIGN(BatchModel model, load_for_tasks(o.checkpoint, o.ema));
  SS_ASSIGN(const Tokenizer tokenizer, load_tokenizer(model, o.checkpoint, "--tasks"));
  if (o.samples > 0 && rows.size() > static_cast<size_t>(o.samples))
    rows.resize(static_cast<size_t>(o.samples));
  auto tokens = encode_tasks(rows, tokenizer, model.shape.block_size, model.shape.vocab);
  if (!tokens.ok()) return tokens.status().in(model.tokenizer);
  const TaskScores scores =
      score(model, TaskBatches(tokens.take(), model.shape.block_size, model.batch,
                               /*share_prompts=*/true));
  terminal::text(o.json ? json_text(task_json(scores)) + "\n"
                        : task_table(scores) + depth_table(scores));
  return {};
}

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
    Config config;
    config.data.source = o.data;
    SS_ASSIGN(const DataFiles files, DataFiles::of(config));
    auto opened = open_dataset(o.data, "auto", model.shape.vocab, 0, files);
    const auto of_run = load_config(run_of(o.checkpoint).config());
    if (!opened.ok() && of_run.ok() && of_run->config.data.token_bytes != 0)  // as its own data
      opened = open_dataset(o.data, {"auto", of_run->config.data.token_bytes}, model.shape.vocab, 0,
                            files);
    SS_RETURN_IF_ERROR(opened.status());
    Dataset dataset = opened.take();
    SS_ASSIGN(const auto notes, token_notes(o.data, "auto", dataset, files));
    for (const std::string& note : notes)
      terminal::error("simplescale: warning: %s\n", note.c_str());
    SS_RETURN_IF_ERROR(use_documents_of_run(o, model, dataset));
    found.push_back({"", dataset.validation.tokens() > 0 ? dataset.validation : dataset.train});
  } else {
    const RunFolder run = run_of(o.checkpoint);
    if (!std::filesystem::exists(run.config()))
      return Status(
          Code::usage,
          o.checkpoint + " is not in a run folder; name the tokens to evaluate with --data=PATH");
    SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
    const auto data = open_tokens(loaded.config, model.shape);
    if (!data.ok())
      return Status(data.status().code(),
                    data.status().message() +
                        "; if the tokens of the run lie elsewhere now, name them with --data=PATH");
    for (const RunData::Source& source : data->sources)
      if (const TokenSource& held = source.data.validation;
          held.samples(model.shape.block_size) > 0 ||
          (held.tokens() > 0 && data->sources.size() == 1))  // too few: an error that says so
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
  uint64_t samples = 0, trained = 0;
  std::vector<int64_t> router_counts;  // of all tokens

  /// Over the trained targets; NaN without any.
  double mean(int64_t block_size) const {
    if (trained == 0) return NAN;
    return sum / static_cast<double>(samples) *
           over_trained(samples * static_cast<uint64_t>(block_size), trained);
  }
};

/// "none" for NaN.
std::string shown(double value, int digits) {
  return std::isnan(value) ? "none" : fmt::format("{:.{}f}", value, digits);
}

void add(std::span<const int64_t> counts, int64_t divisor, std::vector<int64_t>& sum) {
  sum.resize(std::max(sum.size(), counts.size()));
  for (size_t i = 0; i < counts.size(); ++i) sum[i] += counts[i] / divisor;
}

/// The load of experts, a line for each layer.
std::string load_table(std::span<const ExpertLoad> layers) {
  std::string text;
  for (const ExpertLoad& layer : layers)
    text += fmt::format(
        "experts of layer {}: load {:.2f} to {:.2f} of the mean, entropy {:.3f}, close choices "
        "{:.1f} %, no token dropped\n",
        layer.layer, layer.least(), layer.most(), layer.entropy, 100 * layer.close);
  return text;
}

/// Of the first `samples` samples.
Result<Losses> losses_of(BatchModel& model, const TokenSource& source, uint64_t samples) {
  const auto row = static_cast<size_t>(model.shape.block_size + 1);
  std::vector<int32_t> tokens(kBatch * row);
  Losses losses{.samples = samples};
  constexpr uint64_t kAhead = 8 * kBatch;
  SamplesAhead ahead(source, model.shape.block_size, samples, kAhead, std::identity());
  // Whole batches. Each remaining sample fills a batch with copies of itself.
  for (uint64_t first = 0; first < samples;) {
    const uint64_t count = samples - first >= kBatch ? kBatch : 1;
    ahead.announce_from(first);
    for (uint64_t b = 0; b < kBatch; ++b)
      SS_RETURN_IF_ERROR(source.read_sample(first + (count == 1 ? 0 : b), model.shape.block_size,
                                            tokens.data() + b * row));
    model.forward(tokens.data());
    losses.trained +=
        trained_targets(tokens.data(), static_cast<int64_t>(count), model.shape.block_size);
    losses.sum += static_cast<double>(count) * model.loss();
    // Each other sample has filled a batch with copies of itself.
    add(model.backend->router_counts(0), kBatch / static_cast<int64_t>(count),
        losses.router_counts);
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
  Losses all;
  for (const auto& [name, source] : sources) {
    uint64_t samples = source.samples(model.shape.block_size);
    if (o.samples > 0) samples = std::min(samples, static_cast<uint64_t>(o.samples));
    SS_ASSIGN(const Losses losses, losses_of(model, source, samples));
    const double loss = losses.mean(model.shape.block_size);
    if (losses.trained == 0)
      terminal::error(
          "simplescale: warning: %sno target counts in the loss (data.loss_mask_key, "
          "data.document_boundary_loss), so there is no validation loss\n",
          name.empty() ? "" : (name + ": ").c_str());
    if (!name.empty()) by_source[name] = number_or_null(loss);
    if (!name.empty() && !o.json)
      terminal::print("%s: validation loss %s, over %llu samples\n", name.c_str(),
                      shown(loss, 4).c_str(), static_cast<unsigned long long>(samples));
    all.sum += losses.sum;
    all.samples += losses.samples;
    all.trained += losses.trained;
    add(losses.router_counts, 1, all.router_counts);
  }
  const std::vector<ExpertLoad> loads = expert_loads(all.router_counts, model.shape);
  const double loss = all.mean(model.shape.block_size);
  if (o.json) {
    nlohmann::json result = {{"val_loss", number_or_null(loss)},
                             {"perplexity", number_or_null(std::exp(loss))},
                             {"tokens", all.trained}};
    if (!by_source.is_null()) result["val_losses"] = by_source;
    if (!loads.empty()) result["experts"] = json_of(loads);
    terminal::print("%s\n", json_text(result).c_str());
  } else {
    terminal::print("validation loss %s, perplexity %s, over %llu tokens\n", shown(loss, 4).c_str(),
                    shown(std::exp(loss), 2).c_str(), static_cast<unsigned long long>(all.trained));
    terminal::text(load_table(loads));
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
  OutputStream file;
  std::error_code error;
  const bool device = std::filesystem::is_other(std::filesystem::status(o.out, error));
  if (device)  // or a pipe: it is written to, not replaced
    file.std::ofstream::open(o.out, std::ios::binary | std::ios::out);
  else
    file.open(o.out, Output::replace);
  file.write("\x93NUMPY\x01\x00", 8)
      .put(static_cast<char>(header.size() & 0xff))
      .put(static_cast<char>(header.size() >> 8));
  file << header;
  std::vector<int32_t> tokens(T + 1);
  std::vector<float> logits(T * V);
  for (uint64_t sample = 0; sample < samples; ++sample) {
    SS_RETURN_IF_ERROR(dataset.train.read_sample(sample, model.shape.block_size, tokens.data()));
    model.forward(tokens.data());
    model.backend->logits(0, model.unit(model.last()), model.tied(), logits.data());
    file.write(reinterpret_cast<const char*>(logits.data()),
               static_cast<std::streamsize>(logits.size() * sizeof(float)));
  }
  file.close();
  return device && !file.good() ? system_error("cannot write", o.out, errno) : file.status();
}

}  // namespace simplescale
