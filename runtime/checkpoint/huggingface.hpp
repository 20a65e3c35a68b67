// Hugging Face Llama folders, out and in: config.json, model*.safetensors, tokenizer. Streams:
// never holds the whole model. Any thread.
#pragma once

#include <string>

#include "runtime/base/dtype.hpp"
#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// Files of weights are split above this size.
inline constexpr uint64_t kExportFileBytesMax = 5'000'000'000;

/// Writes the weights (and the tokenizer, if the checkpoint has one) as a folder that transformers'
/// AutoModelForCausalLM and AutoTokenizer load. folder must not exist or be empty. f32: bit for
/// bit; bf16: rounded to nearest even.
Status export_hf(Checkpoint& checkpoint, const std::string& folder, DType dtype,
                 uint64_t file_bytes_max = kExportFileBytesMax, FileOps& ops = system_files());

/// The shape that a config.json tells of. Errors: bad_data naming file and key.
Result<ModelShape> read_hf_config(const std::string& path);

/// Makes a checkpoint of step 0 (moments zero) from a Hugging Face Llama folder in F32, BF16 or
/// F16; every value is kept exactly. checkpoint_folder must not exist. Errors: bad_data naming file
/// and key, or the tensor that is missing, extra or of another shape.
Status import_hf(const std::string& folder, const std::string& checkpoint_folder,
                 FileOps& ops = system_files());

}  // namespace simplescale
