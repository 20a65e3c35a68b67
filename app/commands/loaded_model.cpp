#include "app/commands/loaded_model.hpp"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "app/terminal.hpp"
#include "model/cpu/instructions.hpp"
#include "runtime/config/run_instructions.hpp"
#include "tools/convert/commands.hpp"

namespace simplescale {

namespace {
Status use_instructions_of(const RunFolder& run) {
  SS_ASSIGN(const InstructionSet set, run_instructions(run));
  if (set == InstructionSet::automatic) return {};
  if (can_use(best_instructions(), set)) return cpu::use_instructions(set);
  terminal::error(
      "simplescale: warning: the run's trainers compute with %s instructions, and the best of this "
      "host are %s: the last digits may differ\n",
      to_string(set), to_string(best_instructions()));
  return {};
}
}  // namespace

RunFolder run_of(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path folder = fs::absolute(path).lexically_normal();
  if (folder.filename().empty()) folder = folder.parent_path();
  std::error_code error;
  const fs::path around = folder.parent_path();
  const bool inside =
      !fs::exists(folder / "config.toml", error) && around.filename() == "checkpoints";
  return {(inside ? around.parent_path() : folder).string()};
}

Result<LoadedModel> load_model(const std::string& path, bool ema) {
  SS_RETURN_IF_ERROR(use_instructions_of(run_of(path)));
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
