#include "tools/convert/commands.hpp"

#include <filesystem>

#include "runtime/base/bare_path.hpp"
#include "runtime/base/log.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tools/convert/digest.hpp"
#include "tools/convert/huggingface.hpp"
#include "tools/convert/upcycle.hpp"
#include "tools/verify/verify_run.hpp"

namespace simplescale {

Result<Checkpoint> resolve_checkpoint(const std::string& path, Verify verify) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error))
    return Status(Code::bad_data, path + ": no such folder");
  if (std::filesystem::exists(path + "/manifest.json", error)) {
    SS_ASSIGN(Checkpoint checkpoint, Checkpoint::open(path));
    if (verify == Verify::full) SS_RETURN_IF_ERROR(checkpoint.verify());
    return checkpoint;
  }
  const bool run = std::filesystem::is_regular_file(path + "/config.toml", error) ||
                   std::filesystem::is_directory(path + "/checkpoints", error);
  auto found = find_newest_valid(run ? checkpoints_of({path}) : path, verify);
  if (!found.ok() && found.status().code() == Code::not_found)
    return Status(Code::bad_data, path + ": neither a checkpoint nor a folder with checkpoints");
  if (!found.ok()) return found.status();
  for (const std::string& warning : found->warnings)
    log::warn("skipped a damaged checkpoint: {}", warning);
  return std::move(found->checkpoint);
}

Status with_checkpoint(const std::string& path, const std::function<Status(Checkpoint&)>& use) {
  while (true) {
    SS_ASSIGN(Checkpoint checkpoint, resolve_checkpoint(path));
    const Status used = use(checkpoint);
    std::error_code error;
    if (used.ok() || std::filesystem::exists(checkpoint.folder() + "/manifest.json", error))
      return used;
    log::warn("{} was removed meanwhile, by the run that trains; the next one is taken",
              checkpoint.folder());
  }
}

Result<std::string> digest_command(const std::string& path) {
  std::string text;
  SS_RETURN_IF_ERROR(with_checkpoint(path, [&](Checkpoint& checkpoint) {
    auto made = digest(checkpoint);
    if (made.ok()) text = made.take();
    return made.status();
  }));
  return text;
}

Result<std::string> export_command(const std::string& path, const std::string& folder,
                                   const std::string& dtype, bool ema) {
  if (dtype != "float32" && dtype != "bfloat16")
    return Status(Code::usage, "--dtype " + dtype + ": must be float32 or bfloat16");
  std::string text;
  SS_RETURN_IF_ERROR(with_checkpoint(path, [&](Checkpoint& checkpoint) -> Status {
    SS_ASSIGN(const StateKind kind, weights_kind(checkpoint, ema));
    const Status done =
        export_hf(checkpoint, folder, dtype == "float32" ? DType::f32 : DType::bf16, kind);
    text =
        (ema ? "exported the averaged weights of step " : "exported step ") +
        std::to_string(checkpoint.info().step) + " of " + checkpoint.folder() + " to " + folder +
        " as " + dtype +
        (checkpoint.info().tokenizer.empty() ? ", without a tokenizer (the run has none)\n" : "\n");
    return done;
  }));
  return text;
}

namespace {

/// The dense model is a Hugging Face folder, which is imported beside the target first, a checkpoint
/// or a run.
Status import_upcycled(const std::string& folder, const std::string& path,
                       const std::string& parts) {
  SS_ASSIGN(const Upcycle upcycle, parse_upcycle(parts));
  std::error_code error;
  const bool ours = std::filesystem::exists(folder + "/manifest.json", error) ||
                    std::filesystem::exists(folder + "/config.toml", error) ||
                    !std::filesystem::exists(folder + "/config.json", error);
  if (ours)
    return with_checkpoint(
        folder, [&](Checkpoint& dense) { return upcycle_checkpoint(dense, upcycle, path); });
  SS_ASSIGN(const CheckpointInfo found, check_hf(folder));
  SS_RETURN_IF_ERROR(upcycled_shape(found.shape, upcycle).status().in(folder));
  const std::string dense_folder = bare_path(path) + ".dense";
  const auto make = [&]() -> Status {
    SS_RETURN_IF_ERROR(import_hf(folder, dense_folder));
    SS_ASSIGN(Checkpoint dense, Checkpoint::open(dense_folder));
    return upcycle_checkpoint(dense, upcycle, path);
  };
  SS_RETURN_IF_ERROR(remove_folder(system_files(), dense_folder));  // of an import that was killed
  const Status made = make();
  const Status removed = remove_folder(system_files(), dense_folder);
  return made.ok() ? removed : made;
}

}  // namespace

Result<std::string> import_command(const std::string& folder, const std::string& path,
                                   const std::string& upcycle) {
  SS_RETURN_IF_ERROR(upcycle.empty() ? import_hf(folder, path)
                                     : import_upcycled(folder, path, upcycle));
  SS_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(path));
  const std::string& tokenizer = checkpoint.info().tokenizer;
  const Status usable = tokenizer.empty() ? Status() : Tokenizer::load(tokenizer).status();
  const ModelShape& shape = checkpoint.info().shape;
  return (upcycle.empty() ? "imported " : "made " + options_text(shape) + ": ") +
         std::to_string(parameter_count(shape)) + " parameters from " + folder + " to " + path +
         (tokenizer.empty() ? ", without a tokenizer (no tokenizer.model or tokenizer.json there)\n"
                            : "\n") +
         (usable.ok() ? ""
                      : "warning: its tokenizer cannot be used here: " + usable.message() +
                            ". Train it on token files, which another program makes\n");
}

Result<VerifyText> verify_command(const std::string& run, const TrainedSamples& trained) {
  SS_ASSIGN(const VerifyReport report, verify_run(run, trained));
  return verify_text(run, report);
}

VerifyText verify_text(const std::string& run, const VerifyReport& report) {
  VerifyText out{report.ok, ""};
  for (const std::string& line : report.lines) out.text += line + "\n";
  out.text += run + (report.ok ? ": valid\n" : ": INVALID\n");
  return out;
}

}  // namespace simplescale
