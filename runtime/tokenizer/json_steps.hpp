// Reads the parts of a tokenizer.json that are lists of steps. Used in runtime/tokenizer/ only.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/tokenizer/decode.hpp"
#include "runtime/tokenizer/normalize.hpp"
#include "runtime/tokenizer/pre_tokenize.hpp"

namespace simplescale {

struct PreTokenizer {
  std::vector<PreTokenizerStep> steps;
  bool byte_level = false;  // the last step makes bytes of the words
};

/// null gives no steps. bad_data names the step that is wrong or not supported.
Result<std::vector<NormalizerStep>> read_normalizer(const nlohmann::json& value);
Result<PreTokenizer> read_pre_tokenizer(const nlohmann::json& value);
Result<std::vector<DecoderStep>> read_decoder(const nlohmann::json& value);

}  // namespace simplescale
