#include "app/commands/runs.hpp"

#include <filesystem>

#include "app/terminal.hpp"
#include "runtime/run/notice.hpp"
#include "runtime/run/run_state.hpp"
#include "tools/report/summary.hpp"

namespace simplescale {

namespace {

/// Warns if what the folder of a run that is under way says is old.
void tell_if_old(const std::string& folder) {
  const RunFolder run{folder};
  if (!RunLock::held(run)) return;
  if (const std::string notice = notice_of(run, status_of(run, instance_of(run))); !notice.empty())
    terminal::error("simplescale: warning: %s\n", notice.c_str());
}

}  // namespace

Status runs_command(const std::string& folder, bool json) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    return Status(Code::bad_data, folder + " is not a folder; name the folder that holds the runs");
  std::vector<RunSummary> runs;
  for (const std::string& run : find_runs(folder)) {
    auto summary = summarize(run);
    if (!summary.ok()) continue;
    tell_if_old(run);
    runs.push_back(summary.take());
  }
  if (json)
    terminal::text(summary_json(runs));
  else if (runs.empty())
    terminal::print("no runs in %s\n", folder.c_str());
  else
    terminal::text(summary_table(runs, folder));
  return {};
}

Status plot_command(const std::vector<std::string>& folders, const std::string& output,
                    int64_t smooth_steps) {
  std::vector<PlotRun> plots;
  for (const std::string& folder : folders) {
    const std::vector<std::string> runs = find_runs(folder);
    if (runs.empty()) return Status(Code::bad_data, folder + " is not a run folder and holds none");
    for (const std::string& run : runs) {
      PlotRun plot;
      SS_ASSIGN(const RunSummary summary, summarize(run, &plot.records));
      plot.name = summary.name;
      plots.push_back(std::move(plot));
      tell_if_old(run);
    }
  }
  if (Status drawn = draw_plot(plots, output, smooth_steps); !drawn.ok())
    return drawn.code() == Code::not_found ? Status(Code::bad_data, drawn.message()) : drawn;
  terminal::print("%s\n", output.c_str());
  return {};
}

}  // namespace simplescale
