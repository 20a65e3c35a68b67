// What an import from Hugging Face recorded in a checkpoint's facts (CheckpointInfo::resume) for the
// next export. Pure functions, any thread.
#pragma once

#include <string>

#include "runtime/checkpoint/checkpoint.hpp"

namespace simplescale {

/// The names of these facts: the imported generation_config.json; what tokenizer_config.json said,
/// and the hash of the tokenizer that it belongs to.
inline constexpr const char* kGenerationConfigFact = "generation_config";
inline constexpr const char* kTokenizerConfigFact = "tokenizer_config";
inline constexpr const char* kTokenizerConfigOfFact = "tokenizer_config_of";

/// A JSON object of those that the checkpoint has. Later checkpoints keep them.
std::string imported_facts(const CheckpointInfo& info);

}  // namespace simplescale
