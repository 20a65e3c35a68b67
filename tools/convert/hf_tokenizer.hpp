// Writes a tokenizer as the files that transformers loads. Any thread. Used
// in runtime/checkpoint/ only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/checkpoint/file_ops.hpp"

namespace simplescale {

struct SpecialTokens {
  int bos = 1, eos = 2;  // ids; -1: none
};

/// Writes tokenizer_config.json, special_tokens_map.json and tokenizer.json. The last one is a
/// copy, or is made of the pieces and merges of a SentencePiece tokenizer.model, so that
/// transformers needs neither the sentencepiece nor the protobuf package; tokenizer.model is then
/// copied, too. A tokenizer.model that does more than merge pieces gets no tokenizer.json; a warning
/// says why. path: a file that Tokenizer::load() reads. facts: of the checkpoint; an object. What
/// hf_tokenizer_facts() put there is written again if it belongs to this tokenizer. bad_data: the
/// tokenizer is damaged; io.
Result<SpecialTokens> write_hf_tokenizer(const std::string& path, const std::string& folder,
                                         int64_t block_size, const nlohmann::ordered_json& facts,
                                         FileOps& ops);

/// The facts that keep a folder's tokenizer_config.json and chat_template.jinja: the chat template
/// and the choices of special tokens. path: the folder's tokenizer; "" if it has none. bad_data
/// names the file.
Result<nlohmann::json> hf_tokenizer_facts(const std::string& folder, const std::string& path);

}  // namespace simplescale
