// The commands about many runs: `runs`, `plot` and `sweep`.
#pragma once

#include <string>
#include <vector>

#include "app/commands/commands.hpp"
#include "tools/report/plot.hpp"

namespace simplescale {

/// Prints a table of the runs in a folder.
Status runs_command(const std::string& folder, bool json);
/// Plots runs into one picture. A folder that is not a run stands for all runs in it. output: a
/// file name that ends in .svg or .png. smooth_steps: as in plot_script(). usage: there are
/// overrides, which runs do not take.
Status plot_command(const std::vector<std::string>& runs, const Overrides& overrides,
                    const std::string& output, int64_t smooth_steps);
/// Plots when a trainer executes the tasks of the first step, by estimated costs. configs: one file.
/// network_gbit: that a trainer receives in a second; 0: assumed.
Status plot_program_command(const std::vector<std::string>& configs, const Overrides& overrides,
                            const std::string& output, double network_gbit);

struct SweepOptions {
  std::string config;
  std::string folder;  // of the sweep; overrides run.folder unless it is ""
  Overrides overrides;
  bool submit = false;   // as a Slurm job array
  bool dry_run = false;  // only list the runs; with submit: only print the script
  bool summary = false;  // only write the table and the plot of the results so far
};
/// Trains all runs that are not finished, one after the other. gave_up: some runs failed.
Status sweep_command(SweepOptions options);

}  // namespace simplescale
