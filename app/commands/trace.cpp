// `trace`: merges the traces that a run's processes have written into one file for Perfetto. It
// only reads the run's folder: it works on a run that is over, and does not slow down one that
// trains.

#include "app/commands/commands.hpp"
#include "app/commands/run_status.hpp"
#include "app/terminal.hpp"
#include "runtime/base/files.hpp"
#include "tools/trace/trace_merge.hpp"

namespace simplescale {

Status trace_command(const std::string& run, const std::string& name, const std::string& output,
                     bool list) {
  SS_RETURN_IF_ERROR(check_is_run(run));
  const RunFolder folder{run};
  const std::vector<std::string> names = trace_names(folder);
  if (names.empty())
    return Status(Code::bad_data,
                  "there are no traces in " + folder.traces() +
                      "; select steps with metrics.trace_steps, or with `trace` in the console");
  if (list) {
    for (const std::string& known : names) terminal::print("%s\n", known.c_str());
    return {};
  }
  const std::string& chosen = name.empty() ? names.back() : name;
  auto merged = merge_trace(folder, chosen);
  if (!merged.ok())
    return Status(
        Code::bad_data,
        merged.status().message() +
            (merged.status().code() == Code::not_found ? "; --list shows all traces" : ""));
  const std::string file = output.empty() ? folder.traces() + "/" + chosen + ".json" : output;
  SS_RETURN_IF_ERROR(write_output(file, merged->json));
  for (const std::string& note : merged->notes) terminal::error("%s\n", note.c_str());
  terminal::print(
      "%s: %zu processes, %zu events, %zu messages, %.1f ms; open it at "
      "https://ui.perfetto.dev\n",
      file.c_str(), merged->processes, merged->events, merged->messages, merged->ms);
  return {};
}

}  // namespace simplescale
