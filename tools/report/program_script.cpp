// The script that gnuplot draws the program of a step from: one data block for each kind of task, of
// boxes in the lanes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tools/report/gnuplot.hpp"
#include "tools/report/plot.hpp"

namespace simplescale {

using gnuplot::block, gnuplot::picture, gnuplot::quoted;

namespace {

constexpr double kPixels = 1'000;  // across the picture
constexpr size_t kNamed = 60;      // with more boxes in the first lane, units are not named

struct Kind {
  const char *name, *color;
};
/// As Color in plot_script.cpp; waits are gray.
constexpr std::array<Kind, 9> kKinds = {{{"forward", "#56b4e9"},
                                         {"head", "#0072b2"},
                                         {"backward", "#009e73"},
                                         {"sums", "#e69f00"},
                                         {"state", "#cc79a7"},
                                         {"waits", "#cccccc"},
                                         {"gather", "#d55e00"},
                                         {"exchange", "#555555"},
                                         {"download", "#f0e442"}}};
constexpr std::array<const char*, 6> kLanes = {"computes",  "gathers",   "reduces",
                                               "exchanges", "downloads", "hashes"};

size_t kind_of(const Task& task) {
  switch (task.op) {
    case Op::embed:
    case Op::forward:
      return 0;
    case Op::head:
    case Op::evaluate:
      return 1;
    case Op::backward:
    case Op::backward_embed:
      return 2;
    case Op::add:
    case Op::reduce:
      return 3;
    case Op::gather:
    case Op::route:
    case Op::combine:
    case Op::route_backward:
    case Op::combine_backward:
      return 6;
    case Op::exchange:
      return 7;
    case Op::download:
      return 8;
    case Op::reduced:
    case Op::downloaded:
    case Op::finish:
    case Op::vote:
      return 5;
    default:
      return 4;
  }
}

struct Box {
  double begin, end;
  std::string name;
};

/// The boxes of a kind in a lane, from left to right.
std::vector<Box> boxes_of(const ProgramPlot& plot, size_t kind, Lane lane, double pixel) {
  std::vector<Box> boxes;
  for (size_t i = 0; i < plot.program.size(); ++i) {
    const TimedTask& time = plot.times[i];
    const Task& task = plot.program[i];
    if (kind_of(task) != kind || time.lane != lane || time.end_s <= time.begin_s) continue;
    const bool narrow = time.end_s - time.begin_s < pixel;
    if (narrow && !boxes.empty() && time.begin_s - boxes.back().end < pixel) {
      boxes.back().end = time.end_s;
      boxes.back().name.clear();
      continue;
    }
    boxes.push_back({time.begin_s, time.end_s,
                     task.unit < plot.units.size() ? plot.units[task.unit].name : "lm_head"});
  }
  return boxes;
}

}  // namespace

std::string program_script(const ProgramPlot& plot, const std::string& output) {
  double end = 0;
  for (const TimedTask& time : plot.times) end = std::max(end, time.end_s);
  const double unit = end >= 1 ? 1 : end >= 1e-3 ? 1e-3 : 1e-6;
  std::string data, curves, names, tics;
  size_t last_lane = static_cast<size_t>(Lane::exchange);
  for (size_t lane = 0; lane < kLanes.size(); ++lane) {
    const int y = -static_cast<int>(lane);
    bool used = false;
    std::string labels;
    size_t boxes = 0;
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      std::string lines;
      for (const Box& box : boxes_of(plot, kind, Lane(lane), end / kPixels)) {
        lines += fmt::format("{:.7g} {} {:.7g} {:.7g} {} {}\n", box.begin / unit, y,
                             box.begin / unit, box.end / unit, y - 0.4, y + 0.4);
        if (box.end - box.begin > 20 * end / kPixels && kind < 3)
          labels += fmt::format("set label {} at {:.7g},{} rotate by 90 center front font ',9'\n",
                                quoted(box.name), (box.begin + box.end) / 2 / unit, y);
        ++boxes;
      }
      if (lines.empty()) continue;
      used = true;
      const std::string name = fmt::format("lane{}_{}", lane, kKinds[kind].name);
      data += block(name, lines);
      curves += fmt::format(
          "{}${} using 1:2:3:4:5:6 with boxxyerror fs solid 1 border lc rgb "
          "'#ffffff' fc rgb '{}' title '{}'",
          curves.empty() ? "plot " : ", \\\n  ", name, kKinds[kind].color, kKinds[kind].name);
    }
    if (boxes <= kNamed) names += labels;
    if (used) last_lane = std::max(last_lane, lane);
    if (used) tics += fmt::format("{}'{}' {}", tics.empty() ? "" : ",", kLanes[lane], y);
  }
  return data + picture(output, 420, plot.title, plot.facts) + names +
         fmt::format(
             "set tmargin at screen 0.78\nset bmargin at screen 0.12\n"
             "set lmargin at screen 0.09\nset rmargin at screen 0.97\n"
             "set border 1 lc rgb '#888888'\nset tics nomirror out scale 0.5\n"
             "set ytics scale 0 ({})\nset xrange [0:{:.7g}]\nset yrange [-{}.6:0.6]\n"
             "set key at graph 1,1.12 right horizontal samplen 1\nset xlabel '{}'\n",
             tics, end > 0 ? end / unit : 1, last_lane,
             unit == 1      ? "s"
             : unit == 1e-3 ? "ms"
                            : "µs") +
         (curves.empty() ? "plot NaN notitle" : curves) + "\n";
}

}  // namespace simplescale
