// generate, evaluate and logits. B samples per forward pass, T = block_size, V = vocabulary.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "app/commands/generate.hpp"
#include "app/terminal.hpp"
#include "model/backend.hpp"
#include "runtime/checkpoint/commands.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/data/tokenizer.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

namespace {

/// A model in memory, ready to compute.
struct LoadedModel {
  ModelShape shape;
  std::string tokenizer;  // path; may be empty
  std::unique_ptr<Backend> backend;
  std::vector<std::vector<float>> units;  // flat parameters, fp32
  const void* tied() const { return shape.tie_embeddings ? units.front().data() : nullptr; }
  void forward(const int32_t* tokens) {
    backend->embed(units.front().data(), tokens);
    for (int layer = 0; layer < shape.layers; ++layer)
      backend->forward_block(layer, units[static_cast<size_t>(layer) + 1].data());
  }
};

Result<LoadedModel> load_model(const std::string& path, int batch) {
  SS_ASSIGN(Checkpoint checkpoint, resolve_checkpoint(path));
  LoadedModel model;
  model.shape = checkpoint.info().shape;
  model.tokenizer = checkpoint.info().tokenizer;
  for (size_t u = 0; u < checkpoint.units().size(); ++u) {
    model.units.emplace_back(checkpoint.units()[u].count);
    std::vector<float>& unit = model.units.back();
    SS_RETURN_IF_ERROR(checkpoint.stream_unit(
        StateKind::params, u, [&unit](size_t offset, std::span<const float> values) {
          std::copy(values.begin(), values.end(),
                    unit.begin() + static_cast<std::ptrdiff_t>(offset));
          return Status();
        }));
  }
  BackendOptions options;
  options.shape = model.shape;
  options.micro_batch_size = batch;
  options.training = false;
  options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  SS_ASSIGN(model.backend, make_cpu_backend(options));
  return model;
}

/// Samples one id from softmax(logits / temperature) over the top_k likeliest; temperature 0: the
/// likeliest. Among equal logits the smaller id comes first.
int32_t draw(std::span<const float> logits, const GenerateOptions& o, std::mt19937_64& random) {
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  const size_t k = o.temperature == 0 ? 1
                   : o.top_k > 0      ? std::min<size_t>(static_cast<size_t>(o.top_k), ids.size())
                                      : ids.size();
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k), ids.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)],
                                  y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  if (k == 1) return ids[0];
  std::vector<double> weights(k);
  double sum = 0;
  for (size_t i = 0; i < k; ++i)
    sum += weights[i] =
        std::exp((logits[static_cast<size_t>(ids[i])] - logits[static_cast<size_t>(ids[0])]) /
                 o.temperature);
  double at = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
  for (size_t i = 0; i < k; ++i)
    if ((at -= weights[i]) < 0) return ids[i];
  return ids[k - 1];
}

}  // namespace

Status generate_command(const GenerateOptions& o) {
  SS_ASSIGN(LoadedModel model, load_model(o.checkpoint, 1));
  if (model.tokenizer.empty())
    return Status(Code::bad_data,
                  o.checkpoint + " has no tokenizer.model, which text generation needs");
  SS_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(model.tokenizer));
  std::vector<int32_t> text;
  if (tokenizer.bos() >= 0) text.push_back(tokenizer.bos());
  for (int32_t id : tokenizer.encode(o.prompt)) text.push_back(id);
  const auto T = static_cast<size_t>(model.shape.block_size),
             V = static_cast<size_t>(model.shape.vocab);
  std::mt19937_64 random(o.seed);
  std::vector<int32_t> tokens(T + 1);
  std::vector<float> logits(T * V);
  for (int n = 0; n < o.max_tokens; ++n) {
    const size_t length = std::min(text.size(), T);  // the model sees the last T tokens
    std::fill(tokens.begin(), tokens.end(), 0);
    std::copy(text.end() - static_cast<std::ptrdiff_t>(length), text.end(), tokens.begin());
    model.forward(tokens.data());
    model.backend->logits(model.units.back().data(), model.tied(), logits.data());
    const int32_t id = draw({logits.data() + (length - 1) * V, V}, o, random);
    if (id == tokenizer.eos()) break;
    text.push_back(id);
  }
  terminal::print("%s\n", tokenizer.decode(text).c_str());
  return std::fflush(stdout) == 0 ? Status() : Status(Code::io, "cannot print the text");
}

namespace {
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
}  // namespace

Status evaluate_command(const EvaluateOptions& o) {
  constexpr int kBatch = 8;
  SS_ASSIGN(LoadedModel model, load_model(o.checkpoint, kBatch));
  TokenSource source;
  if (!o.data.empty()) {
    SS_ASSIGN(const Dataset dataset, open_dataset(o.data, "auto", model.shape.vocab, 0));
    source = dataset.validation.tokens() > 0 ? dataset.validation : dataset.train;
  } else {
    const RunFolder run = run_of(o.checkpoint);
    if (!std::filesystem::exists(run.config()))
      return Status(
          Code::usage,
          o.checkpoint + " is not in a run folder; name the tokens to evaluate with --data=PATH");
    SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
    SS_ASSIGN(const Dataset dataset, open_tokens(loaded.config, model.shape));
    source = dataset.validation;
    if (source.tokens() == 0)
      return Status(Code::bad_data, o.checkpoint +
                                        ": its data has no validation tokens; name the tokens "
                                        "to evaluate with --data=PATH");
  }
  SS_RETURN_IF_ERROR(source.require_block(model.shape.block_size));
  uint64_t samples = source.samples(model.shape.block_size);
  if (o.samples > 0) samples = std::min(samples, static_cast<uint64_t>(o.samples));
  const auto row = static_cast<size_t>(model.shape.block_size + 1);
  std::vector<int32_t> tokens(kBatch * row);
  double sum = 0;
  uint64_t counted = 0;
  // Whole batches. Each remaining sample fills a batch with copies of itself.
  for (uint64_t first = 0; first < samples;) {
    const uint64_t count = samples - first >= kBatch ? kBatch : 1;
    for (uint64_t b = 0; b < kBatch; ++b)
      SS_RETURN_IF_ERROR(source.read_sample(first + (count == 1 ? 0 : b), model.shape.block_size,
                                            tokens.data() + b * row));
    model.forward(tokens.data());
    sum += static_cast<double>(count) *
           model.backend->head(model.units.back().data(), model.tied(), 0, nullptr, nullptr);
    first += count;
    counted += count;
  }
  const double loss = sum / static_cast<double>(counted);
  const uint64_t count = counted * static_cast<uint64_t>(model.shape.block_size);
  if (o.json)
    terminal::print(
        "%s\n",
        nlohmann::json{{"val_loss", loss}, {"perplexity", std::exp(loss)}, {"tokens", count}}
            .dump()
            .c_str());
  else
    terminal::print("validation loss %.4f, perplexity %.2f, over %llu tokens\n", loss,
                    std::exp(loss), static_cast<unsigned long long>(count));
  return {};
}

Status logits_command(const LogitsOptions& o) {
  SS_ASSIGN(LoadedModel model, load_model(o.checkpoint, 1));
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
