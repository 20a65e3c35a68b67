// The commands digest, export, import and verify as functions of their arguments: the text to
// print, or a Status. Any thread.
#pragma once

#include <string>

#include "runtime/base/dtype.hpp"
#include "runtime/base/status.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace simplescale {

/// A checkpoint folder, a checkpoints folder or a run folder: the checkpoint itself, or the newest
/// valid one (others are logged as warnings).
Result<Checkpoint> resolve_checkpoint(const std::string& path, Verify verify = Verify::sizes);

Result<std::string> digest_command(const std::string& checkpoint);
/// dtype: "float32" or "bfloat16".
Result<std::string> export_command(const std::string& checkpoint, const std::string& folder,
                                   const std::string& dtype);
Result<std::string> import_command(const std::string& folder, const std::string& checkpoint);
/// The text is given also if something is wrong; ok says which.
struct VerifyText {
  bool ok = true;
  std::string text;
};
Result<VerifyText> verify_command(const std::string& run);

}  // namespace simplescale
