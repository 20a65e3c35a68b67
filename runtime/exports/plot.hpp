// One picture of one or several runs: loss, throughput and recoveries over steps. Drawn by gnuplot,
// which is started without a shell and reads a script with the data in it.
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

/// output: .svg or .png, nothing else. Names are shown as they are, whatever they hold. Pure.
std::string plot_script(const std::vector<PlotRun>& runs, const std::string& output);

/// Replaces output. usage: neither .svg nor .png; not_found: no gnuplot here, and what to do; io.
Status draw_plot(const std::vector<PlotRun>& runs, const std::string& output);

}  // namespace simplescale
