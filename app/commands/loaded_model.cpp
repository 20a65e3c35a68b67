#include "app/commands/loaded_model.hpp"

#include <algorithm>
#include <thread>

#include "tools/convert/commands.hpp"

namespace simplescale {

Result<LoadedModel> load_model(const std::string& path, bool ema) {
  SS_ASSIGN(Checkpoint checkpoint, resolve_checkpoint(path));
  SS_ASSIGN(const StateKind kind, weights_kind(checkpoint, ema));
  LoadedModel model;
  model.shape = checkpoint.info().shape;
  model.tokenizer = checkpoint.info().tokenizer;
  for (size_t u = 0; u < checkpoint.units().size(); ++u) {
    model.units.emplace_back(checkpoint.units()[u].count);
    std::vector<float>& unit = model.units.back();
    SS_RETURN_IF_ERROR(
        checkpoint.stream_unit(kind, u, [&unit](size_t offset, std::span<const float> values) {
          std::copy(values.begin(), values.end(),
                    unit.begin() + static_cast<std::ptrdiff_t>(offset));
          return Status();
        }));
  }
  return model;
}

Result<Tokenizer> load_tokenizer(const LoadedModel& model, const std::string& path,
                                 const std::string& purpose) {
  if (model.tokenizer.empty())
    return Status(Code::bad_data, path + " has no tokenizer, which " + purpose + " needs");
  return Tokenizer::load(model.tokenizer);
}

int model_threads() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace simplescale
