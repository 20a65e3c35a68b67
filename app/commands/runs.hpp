// `runs`, `plot` and `sweep`: many runs beside each other.
#pragma once

#include <string>
#include <vector>

#include "app/commands/commands.hpp"

namespace simplescale {

/// A table of the runs in a folder.
Status runs_command(const std::string& folder, bool json);
/// One picture; a folder that is no run stands for all runs in it. output: .svg or .png.
Status plot_command(const std::vector<std::string>& runs, const std::string& output);

struct SweepOptions {
  std::string config, folder;  // folder: of the sweep (run.folder), or ""
  Overrides overrides;
  bool submit = false, dry_run = false;  // as a job array of Slurm; only shows the script
  bool summary = false;                  // only the table and the plot of what there is
};
/// Trains one run after the other that is not finished yet. gave_up: some failed.
Status sweep_command(SweepOptions options);

}  // namespace simplescale
