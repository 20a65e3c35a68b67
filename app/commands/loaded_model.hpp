// The model of a run or checkpoint, as a whole in the memory of this process. Blocks on the disk.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "runtime/training/model_shape.hpp"

namespace simplescale {

struct LoadedModel {
  ModelShape shape;
  std::string tokenizer;                  // path; may be empty
  std::vector<std::vector<float>> units;  // flat parameters, fp32
};

/// The run that a path names: a run folder, or RUN/checkpoints/CHECKPOINT. Links are not followed.
RunFolder run_of(const std::string& path);
/// path: a run's folder or a checkpoint. ema: the average of the weights. From then on this process
/// computes with the run's instructions; if this host lacks them, a warning is printed. Errors as
/// resolve_checkpoint(), weights_kind() and run_instructions().
Result<LoadedModel> load_model(const std::string& path, bool ema);
/// The model's tokenizer. bad_data: the checkpoint `path` has none, which `purpose` needs.
Result<Tokenizer> load_tokenizer(const LoadedModel& model, const std::string& path,
                                 const std::string& purpose);
/// Threads for computing with it: one for each core.
int model_threads();

}  // namespace simplescale
