// Exports and imports Hugging Face folders: config.json, model*.safetensors, tokenizer. The families
// are those of hugging_face_class().
// Streams: never holds the whole model. Any thread; blocks on the disk.
#pragma once

#include <string>

#include "runtime/base/dtype.hpp"
#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// Default size above which the weights are split into several files.
inline constexpr uint64_t kExportFileBytesMax = 5'000'000'000;

/// Writes the weights, and the tokenizer if the checkpoint has one, to a folder that
/// AutoModelForCausalLM and AutoTokenizer of transformers load. folder: must be empty or not exist.
/// dtype: f32 keeps all bits, bf16 rounds to nearest even. kind: as weights_kind() returns it.
/// bad_config: no class of transformers computes the model; bad_data, io.
Status export_hf(Checkpoint& checkpoint, const std::string& folder, DType dtype,
                 StateKind kind = StateKind::params, uint64_t file_bytes_max = kExportFileBytesMax,
                 FileOps& ops = system_files());

/// Reads the shape of the model from a config.json. bad_data: names file and key.
Result<ModelShape> read_hf_config(const std::string& path);

/// bad_data: a file of the folder that import_hf() or a tokenizer would read is a link to a file
/// outside of it. Links into the cache of huggingface_hub are fine.
Status check_hf_links(const std::string& folder);

/// The errors that import_hf() finds without reading the weights' values, and what it would make.
/// Reads headers, and the embeddings of a tied model.
Result<CheckpointInfo> check_hf(const std::string& folder);

/// Makes a checkpoint of step 0 (moments zero) from a Hugging Face folder in F32, BF16 or
/// F16; every value is converted exactly. checkpoint_folder: must not exist. bad_data: names file
/// and key, or the tensor that is missing, unexpected, of another shape, or not finite.
Status import_hf(const std::string& folder, const std::string& checkpoint_folder,
                 FileOps& ops = system_files());

}  // namespace simplescale
