// The current start of the run, what it writes into control/ for other processes, and how it ended:
// the words for it in status.json and events, and control/end.json. Any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// True for "finished", "stopped" and "failed": no step follows in this start of the run.
inline bool ends_run(std::string_view word) {
  return word == "finished" || word == "stopped" || word == "failed";
}

/// The current start of the run; "" if none has begun.
std::string instance_of(const RunFolder& run);
/// The document control/status.json. Null: it does not exist, it is damaged, or another start than
/// `instance` wrote it, whose nodes and processes are gone.
nlohmann::json status_of(const RunFolder& run, const std::string& instance);
/// The address of the run's page, with its token, from control/http.json; "" if the current start
/// serves no page.
std::string page_url_of(const RunFolder& run);

/// How a start of the run ended.
struct RunEnd {
  int code;  // the exit code of the run
  std::string reason;
  std::string instance;  // of the start that wrote it
  uint64_t term = 0;     // term of the supervisor that wrote it; 0: unknown
};
/// The text of control/end.json.
std::string end_text(const RunEnd& end);
/// Reads control/end.json. Nothing: it does not exist or is damaged, or (LEAD-1) a supervisor wrote
/// it that a newer one had replaced: such a delayed write ends no run.
std::optional<RunEnd> end_of(const RunFolder& run);
/// The same, if the start `instance` wrote it.
std::optional<RunEnd> end_of(const RunFolder& run, const std::string& instance);

}  // namespace simplescale
