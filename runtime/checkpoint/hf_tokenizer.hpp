// Converts a SentencePiece tokenizer.model to the files that transformers loads. Any thread. Used
// in runtime/checkpoint/ only.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/file_ops.hpp"

namespace simplescale {

struct SpecialTokens {
  int bos = 1, eos = 2;  // ids; -1: none
};

/// Writes tokenizer.model (a copy), tokenizer.json (the same pieces and merges, so that
/// transformers needs neither the sentencepiece nor the protobuf package), tokenizer_config.json
/// and special_tokens_map.json. bad_data: it is not a SentencePiece model; io.
Result<SpecialTokens> write_hf_tokenizer(const std::string& model_path, const std::string& folder,
                                         int64_t block_size, FileOps& ops);

}  // namespace simplescale
