#include "runtime/data/data_location.hpp"

#include <filesystem>

#include "runtime/data/corpus.hpp"
#include "runtime/data/manifest.hpp"

namespace simplescale {

namespace {
const char* format_name(DataFormat format) {
  switch (format) {
    case DataFormat::prepared:
      return "prepared";
    case DataFormat::nanogpt:
      return "nanogpt";
    case DataFormat::llmc:
      return "llmc";
    case DataFormat::megatron:
      return "megatron";
    case DataFormat::litgpt:
      return "litgpt";
    default:
      return "auto";
  }
}
}  // namespace

bool source_is_tokens(const Config& config) {
  namespace fs = std::filesystem;
  if (config.data.format == DataFormat::text) return false;
  if (config.data.format != DataFormat::automatic) return true;
  const fs::path source = config.data.source;
  if (source.string().starts_with("debian:")) return false;
  std::error_code error;
  if (fs::is_directory(source, error))
    return fs::exists(source / "manifest.json", error) || fs::exists(source / "train.bin", error) ||
           (!token_files(source.string()).empty() && !Corpus::open(source.string()).ok());
  return fs::path(token_file_of(source.string())).extension() == ".bin";
}

bool needs_preparation(const Config& config) {
  if (config.data.source.empty() || source_is_tokens(config)) return false;
  const auto manifest = read_manifest(data_folder(config));
  return !manifest.ok() || !manifest->complete();
}

std::string token_path(const Config& config) {
  return source_is_tokens(config) ? config.data.source : data_folder(config);
}

BatchLayout batch_layout(const Plan& plan, uint64_t groups) {
  return {groups, static_cast<uint64_t>(plan.topology.shards), static_cast<uint64_t>(plan.rows()),
          static_cast<uint64_t>(plan.micro_batch_size)};
}

std::vector<uint64_t> samples_of(const Plan& plan, uint64_t groups, uint64_t group, uint64_t shard,
                                 uint64_t step) {
  const BatchLayout layout = batch_layout(plan, groups);
  std::vector<uint64_t> samples;
  for (uint64_t k = 0; k < layout.accumulation(group); ++k) {
    const auto runs = plan.skipped.samples_at(
        first_sample(layout, step - 1, leaf_of(layout, group, shard, k)), layout.micro_batch_size);
    samples.insert(samples.end(), runs.begin(), runs.end());
  }
  return samples;
}

SampleOrder sample_order(const Config& config, const Plan& plan, const Dataset& dataset) {
  return {dataset.train.samples(plan.shape.block_size), data_seed(config), config.data.shuffle,
          plan.skipped};
}

std::string places_text(const TokenSource& tokens, const SampleOrder& order, int64_t block_size,
                        const std::vector<uint64_t>& runs, uint64_t most) {
  std::string text;
  uint64_t count = 0;
  for (size_t i = 0; i + 1 < runs.size(); i += 2) {
    for (uint64_t k = 0; k < runs[i + 1] && count + k < most; ++k)
      text += (text.empty() ? "sample " : "; sample ") + std::to_string(runs[i] + k) + ": " +
              tokens.place_of(order.position(runs[i] + k), block_size);
    count += runs[i + 1];
  }
  return count <= most ? text : text + "; and " + std::to_string(count - most) + " more";
}

Result<Dataset> open_tokens(const Config& config, const ModelShape& shape) {
  const bool tokens = source_is_tokens(config);
  SS_ASSIGN(Dataset dataset,
            open_dataset(token_path(config), tokens ? format_name(config.data.format) : "prepared",
                         shape.vocab, config.data.validation_fraction));
  SS_RETURN_IF_ERROR(dataset.train.require_block(shape.block_size));
  return dataset;
}

Status check_tokens(const Config& config, const Dataset& dataset) {
  if (const auto manifest = read_manifest(token_path(config)); manifest.ok())
    SS_RETURN_IF_ERROR(check_files(token_path(config), *manifest));
  SS_RETURN_IF_ERROR(dataset.train.validate());
  return dataset.validation.tokens() > 0 ? dataset.validation.validate() : Status();
}

}  // namespace simplescale
