// Plots loss, throughput and recoveries of one or several runs over their steps. gnuplot draws the
// picture from a script that contains the data; it is started without a shell.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/exports/records.hpp"

namespace simplescale {

struct PlotRun {
  std::string name;
  RunRecords records;
};

/// The script for gnuplot. output: a file that ends in .svg or .png. Names may contain any
/// characters. Pure.
std::string plot_script(const std::vector<PlotRun>& runs, const std::string& output);

/// Draws the picture and replaces `output` by it. usage: output ends in neither .svg nor .png;
/// not_found: gnuplot is not installed, or no run has a step; io.
Status draw_plot(const std::vector<PlotRun>& runs, const std::string& output);

}  // namespace simplescale
