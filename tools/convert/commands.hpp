// The commands digest, export, import and verify, as functions that return the text to print or an
// error. Any thread; block on the disk.
#pragma once

#include <functional>
#include <string>

#include "runtime/base/dtype.hpp"
#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "tools/verify/verify_run.hpp"

namespace simplescale {

/// Opens a checkpoint. path: its folder; or a checkpoints folder or run folder, whose newest valid
/// checkpoint is taken (damaged ones are logged as warnings).
Result<Checkpoint> resolve_checkpoint(const std::string& path, Verify verify = Verify::sizes);

/// Calls `use` with it. A run that trains may remove it meanwhile: then with the next one, and says so.
Status with_checkpoint(const std::string& path, const std::function<Status(Checkpoint&)>& use);

Result<std::string> digest_command(const std::string& checkpoint);
/// dtype: "float32" or "bfloat16". ema: the average of the weights instead of the weights.
Result<std::string> export_command(const std::string& checkpoint, const std::string& folder,
                                   const std::string& dtype, bool ema = false);
/// upcycle: "", or what parse_upcycle() reads; then the folder may also be a checkpoint or a run.
Result<std::string> import_command(const std::string& folder, const std::string& checkpoint,
                                   const std::string& upcycle = "");
/// What `verify` prints, and whether the run is valid.
struct VerifyText {
  bool ok = true;
  std::string text;
};
VerifyText verify_text(const std::string& run, const VerifyReport& report);
Result<VerifyText> verify_command(const std::string& run, const TrainedSamples& trained = {});

}  // namespace simplescale
