// The config.json of a Hugging Face model. Pure. Used in runtime/checkpoint/ only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/base/dtype.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// What transformers' class of the model needs, without the ids of special tokens. shape:
/// hugging_face_class() is not null.
nlohmann::ordered_json hf_config(const ModelShape& shape, DType dtype);

/// What the class calls a parameter: Mixtral has names of its own for routers and experts.
std::string hf_tensor_name(const ModelShape& shape, const std::string& parameter);

}  // namespace simplescale
