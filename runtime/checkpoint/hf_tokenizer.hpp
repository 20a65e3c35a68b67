// Writes a tokenizer as the files that transformers loads. Any thread. Used
// in runtime/checkpoint/ only.
#pragma once

#include <string>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/file_ops.hpp"

namespace simplescale {

struct SpecialTokens {
  int bos = 1, eos = 2;  // ids; -1: none
};

/// Writes tokenizer_config.json, special_tokens_map.json and tokenizer.json. The last one is a copy,
/// or is made of the pieces and merges of a SentencePiece tokenizer.model, so that transformers
/// needs neither the sentencepiece nor the protobuf package; tokenizer.model is then copied, too.
/// path: a file that Tokenizer::load() reads. bad_data: it is damaged; io.
Result<SpecialTokens> write_hf_tokenizer(const std::string& path, const std::string& folder,
                                         int64_t block_size, FileOps& ops);

}  // namespace simplescale
