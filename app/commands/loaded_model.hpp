// The model of a run or checkpoint, as a whole in the memory of this process. Blocks on the disk.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

struct LoadedModel {
  ModelShape shape;
  std::string tokenizer;                  // path; may be empty
  std::vector<std::vector<float>> units;  // flat parameters, fp32
};

/// path: a run's folder or a checkpoint. ema: the average of the weights. Errors as
/// resolve_checkpoint() and weights_kind().
Result<LoadedModel> load_model(const std::string& path, bool ema);
/// The model's tokenizer. bad_data: the checkpoint `path` has none, which `purpose` needs.
Result<Tokenizer> load_tokenizer(const LoadedModel& model, const std::string& path,
                                 const std::string& purpose);
/// Threads for computing with it: one for each core.
int model_threads();

}  // namespace simplescale
