#include "runtime/data/data_location.hpp"

#include <filesystem>

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
    return fs::exists(source / "manifest.json", error) || fs::exists(source / "train.bin", error);
  return source.extension() == ".bin";
}

std::string token_path(const Config& config) {
  return source_is_tokens(config) ? config.data.source : data_folder(config);
}

Result<Dataset> open_tokens(const Config& config, const ModelShape& shape) {
  const bool tokens = source_is_tokens(config);
  SS_ASSIGN(Dataset dataset,
            open_dataset(token_path(config), tokens ? format_name(config.data.format) : "prepared",
                         shape.vocab, config.data.validation_fraction));
  SS_RETURN_IF_ERROR(dataset.train.require_block(shape.block_size));
  return dataset;
}

}  // namespace simplescale
