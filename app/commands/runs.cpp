#include "app/commands/runs.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "actors/trainer/engine_setup.hpp"
#include "app/launch/auto_device.hpp"
#include "app/launch/run_start.hpp"
#include "app/terminal.hpp"
#include "runtime/base/words.hpp"
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

/// The last word of a command that draws.
Status tell(const Status& drawn, const std::string& output) {
  if (drawn.code() == Code::not_found) return Status(Code::bad_data, drawn.message());
  SS_RETURN_IF_ERROR(drawn);
  terminal::print("%s\n", output.c_str());
  return {};
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

Status plot_command(const std::vector<std::string>& folders, const Overrides& overrides,
                    const std::string& output, int64_t smooth_steps) {
  if (!overrides.empty())
    return Status(Code::usage,
                  overrides[0] + ": only plot --program takes keys of a configuration");
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
  return tell(draw_plot(plots, output, smooth_steps), output);
}

Status plot_program_command(const std::vector<std::string>& configs, const Overrides& overrides,
                            const std::string& output, double network_gbit) {
  if (configs.size() != 1) return Status(Code::usage, "plot --program takes one configuration");
  SS_ASSIGN(LoadedConfig loaded, load_user_config(configs[0], overrides));
  (void)resolve_device(loaded);
  SS_ASSIGN(const Plan plan, make_plan(loaded));
  const Config& config = loaded.config;
  const bool gpu = config.cluster.device == DeviceKind::cuda, known = config.cluster.peak_flops > 0;
  const double gbit = network_gbit > 0 ? network_gbit : gpu ? 400 : 10;
  const Speeds speeds{.flops = known ? config.cluster.peak_flops
                               : gpu ? 4e14
                                     : 1e11,
                      .memory_bytes = gpu ? 2e12 : 1e10,
                      .network_bytes = gbit * 1e9 / 8,
                      .host_bytes = 1e11,
                      .copy_bytes = 2.5e10};
  ProgramPlot plot{.units = units_of(plan.shape)};
  plot.title = fmt::format(
      "A step of {}: {} x {}, wave {}", std::filesystem::path(configs[0]).filename().string(),
      counted(plan.topology.groups, "group"), counted(plan.topology.shards, "shard"), plan.wave);
  plot.facts = fmt::format(
      "estimated from {:g} GFLOP/s ({}), {:g} GB/s of memory (assumed), {:g} Gb/s of network ({})",
      speeds.flops / 1e9, known ? "cluster.peak_flops" : "assumed", speeds.memory_bytes / 1e9, gbit,
      network_gbit > 0 ? "--network" : "assumed");
  plot.program = first_programs(config, plan)[0];
  SS_ASSIGN(plot.times, first_step(config, plan, speeds));
  return tell(draw_program(plot, output), output);
}

}  // namespace simplescale
