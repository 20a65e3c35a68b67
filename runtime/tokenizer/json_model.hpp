// Reads the model and the added tokens of a tokenizer.json. Used in runtime/tokenizer/ only.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/tokenizer/added_tokens.hpp"
#include "runtime/tokenizer/bpe.hpp"

namespace simplescale {

struct ModelAndTokens {
  BpeModel model;
  std::vector<AddedToken> added;
  std::vector<std::string> tokens;  // by id; "": there is none
};

/// bad_data: it is not BPE.
Status check_model_type(const nlohmann::json& model);

/// byte_level: the words are bytes. bad_data names the part that is wrong or not supported.
Result<ModelAndTokens> read_model(const nlohmann::json& model, const nlohmann::json& added,
                                  bool byte_level);

}  // namespace simplescale
