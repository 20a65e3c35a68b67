// Plots loss, gradient norm, learning rate and throughput of one or several runs over their steps,
// with their validations and incidents; and the program of a step over time. gnuplot draws the picture from a script that contains the
// data; it is started without a shell.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/program/replay.hpp"
#include "tools/report/records.hpp"

namespace simplescale {

struct PlotRun {
  std::string name;
  RunRecords records;
};

inline constexpr int64_t kSmoothAutomatically = -1;

/// The script for gnuplot. output: a file that ends in .svg or .png. Names may contain any
/// characters. smooth_steps: each point of a smooth curve is the mean of so many steps around it;
/// 0: no smooth curves; kSmoothAutomatically: a fiftieth of the longest run. Pure.
std::string plot_script(const std::vector<PlotRun>& runs, const std::string& output,
                        int64_t smooth_steps = kSmoothAutomatically);

/// Draws the picture and replaces `output` by it. usage: output ends in neither .svg nor .png;
/// not_found: gnuplot is not installed, or no run has a step; io.
Status draw_plot(const std::vector<PlotRun>& runs, const std::string& output,
                 int64_t smooth_steps = kSmoothAutomatically);

/// A trainer's tasks of a step, and when they run.
struct ProgramPlot {
  std::string title, facts;  // facts: a line, also what the times were estimated from
  Program program;
  std::vector<TimedTask> times;
  std::vector<Unit> units;
};
/// As plot_script(): a lane for the compute thread, and one for each kind of collective. Neighbours
/// that are narrower than a pixel are drawn together. Pure.
std::string program_script(const ProgramPlot& plot, const std::string& output);
/// As draw_plot().
Status draw_program(const ProgramPlot& plot, const std::string& output);

}  // namespace simplescale
