// How a start of the run ended: the words for it in status.json and events, and control/end.json.
// Any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// "finished", "stopped" or "failed": no step follows in this start of the run.
inline bool ends_run(std::string_view word) {
  return word == "finished" || word == "stopped" || word == "failed";
}

/// The current start of the run; "" if none has begun.
std::string instance_of(const RunFolder& run);

/// How a start of the run ended.
struct RunEnd {
  int code;  // the exit code of the run
  std::string reason;
  std::string instance;  // the start that wrote it
};
/// control/end.json. Nothing: there is none, or it is damaged.
std::optional<RunEnd> end_of(const RunFolder& run);
/// The same, if the start `instance` wrote it.
std::optional<RunEnd> end_of(const RunFolder& run, const std::string& instance);

}  // namespace simplescale
