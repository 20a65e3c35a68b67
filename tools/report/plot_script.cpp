// The script that gnuplot draws a plot from: data blocks, then one diagram after the other.
#include "tools/report/gnuplot.hpp"
#include "tools/report/plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace simplescale {

using gnuplot::block, gnuplot::picture, gnuplot::quoted;

namespace {

constexpr size_t kPoints = 2'000;   // most points per curve; more are averaged
constexpr size_t kNames = 24;       // most names in the legend
constexpr size_t kRawRuns = 3;      // with more runs, only the smooth curves are drawn
constexpr size_t kIncidents = 200;  // most incidents that are marked

// -- Curves ---------------------------------------------------------------------------------------

struct Point {
  double step, value;
};
using Curve = std::vector<Point>;

Curve values(const std::vector<MetricsRow>& rows, const char* name) {
  Curve curve;
  for (const MetricsRow& row : rows)
    if (const auto value = row.find(name))
      curve.push_back({static_cast<double>(row.at.step), *value});
  return curve;
}

Curve validation(const RunRecords& records) {
  Curve curve;
  for (const auto& [step, loss] : records.val_losses)
    curve.push_back({static_cast<double>(step), loss});
  return curve;
}

/// Each value becomes the mean of `window` values around it. At the beginning, where losses fall
/// fast, of as many before it as after it; at the end, of those that there are.
Curve mean_around(const Curve& curve, size_t window) {
  std::vector<double> sums = {0};
  for (const Point& point : curve) sums.push_back(sums.back() + point.value);
  Curve means;
  for (size_t i = 0; i < curve.size(); ++i) {
    const size_t half = std::min(window / 2, i), end = std::min(i + half + 1, curve.size());
    means.push_back(
        {curve[i].step, (sums[end] - sums[i - half]) / static_cast<double>(end - i + half)});
  }
  return means;
}

/// A mean of `window` values with triangular weights, so that a spike does not become a box.
Curve smoothed(const Curve& curve, size_t window) {
  return mean_around(mean_around(curve, window / 2), window / 2);
}

/// Lines "step value". Neighbours are averaged if there are more than kPoints.
std::string lines(const Curve& curve) {
  const size_t every = std::max<size_t>(1, (curve.size() + kPoints - 1) / kPoints);
  std::string text;
  for (size_t i = 0; i < curve.size(); i += every) {
    const size_t end = std::min(i + every, curve.size());
    double sum = 0;
    for (size_t k = i; k < end; ++k) sum += curve[k].value;
    text += fmt::format("{} {:.7g}\n", curve[end - 1].step, sum / static_cast<double>(end - i));
  }
  return text;
}

// -- Text -----------------------------------------------------------------------------------------

std::string count(size_t number, const char* what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

/// "step 900, loss 3.21, validation loss 3.30 (lowest 3.28 at step 850), 2 incidents (0.9 s in all)".
std::string facts(const RunRecords& records) {
  if (records.rows.empty()) return "";
  std::string text = fmt::format("step {}", records.rows.back().at.step);
  if (const Curve loss = values(records.rows, "loss"); !loss.empty())
    text += fmt::format(", loss {:.4f}", loss.back().value);
  if (const Curve val = validation(records); !val.empty()) {
    const Point best = *std::ranges::min_element(val, {}, &Point::value);
    text += fmt::format(", validation loss {:.4f}", val.back().value);
    if (best.value < val.back().value)
      text += fmt::format(" (lowest {:.4f} at step {})", best.value, best.step);
  }
  if (records.recoveries.empty()) return text;
  double ms = 0;
  for (const Recovery& recovery : records.recoveries) ms += recovery.ms;
  return text + fmt::format(", {} ({:.1f} s in all)", count(records.recoveries.size(), "incident"),
                            ms / 1e3);
}

/// The run with the lowest validation loss: "lowest validation loss: 3.2800, lr=1e-3".
std::string best_of(const std::vector<PlotRun>& runs) {
  const PlotRun* best = nullptr;
  double lowest = 0;
  for (const PlotRun& run : runs)
    for (const auto& [step, loss] : run.records.val_losses)
      if (!best || loss < lowest) {
        best = &run;
        lowest = loss;
      }
  return best ? fmt::format("lowest validation loss: {:.4f}, {}", lowest, best->name) : "";
}

// -- The picture ----------------------------------------------------------------------------------

struct Color {
  const char *strong, *light;
};
/// Colors that people with color blindness can tell apart (Okabe and Ito).
Color color_of(size_t run) {
  static constexpr std::array<Color, 7> colors = {{{"#0072b2", "#b3d5e8"},
                                                   {"#d55e00", "#f2cfb3"},
                                                   {"#009e73", "#b3e2d5"},
                                                   {"#cc79a7", "#f0d7e5"},
                                                   {"#e69f00", "#f8e2b3"},
                                                   {"#56b4e9", "#cde9f8"},
                                                   {"#555555", "#cccccc"}}};
  return colors[run % colors.size()];
}
constexpr const char *kValidation = "#d55e00", *kIncident = "#b22222";

/// One diagram of the picture.
struct Panel {
  const char *name, *title;  // name: key in metrics.jsonl
  double share;              // of the height
  double log_above;          // a log axis if the largest value is this many times the smallest
  bool from_zero, smooth;
};
constexpr double kNeverLog = 1e300;
constexpr std::array<Panel, 4> kPanels = {
    {{"loss", "loss (nats per token)", 0.46, 4, false, true},
     {"grad_norm", "gradient norm before clipping", 0.19, 20, true, true},
     {"lr", "learning rate", 0.15, kNeverLog, true, false},
     {"tokens_per_second", "tokens per second", 0.20, kNeverLog, true, true}}};

struct Axis {
  double low = 0, high = 1;
  bool log = false;
};

/// From the smallest to the largest value, without rare spikes of the rate.
Axis axis_of(const Panel& panel, const std::vector<Curve>& curves) {
  std::vector<double> all;
  for (const Curve& curve : curves)
    for (const Point& point : curve) all.push_back(point.value);
  if (all.empty()) return {};
  std::ranges::sort(all);
  const bool rate = std::string_view(panel.name) == "tokens_per_second";
  const double low = all.front(), high = rate ? all[(all.size() - 1) * 99 / 100] : all.back();
  if (low > 0 && high / low > panel.log_above) return {low / 1.08, high * 1.08, true};
  // Values that differ by less than the numbers in the script and on the axis show are a point.
  const double size = std::max(std::abs(low), std::abs(high));
  const double margin =
      high - low > 1e-6 * size ? 0.06 * (high - low) : std::max(1e-12, size * 0.1);
  return {panel.from_zero ? 0 : low - margin, high + margin * (rate ? 4 : 1), false};
}

/// "25k", "1.2M" in the unit of an axis that ends at `high`; small numbers as they are.
std::string short_number(double value, double high) {
  if (value == 0 || high < 1e4) return fmt::format("{:g}", value);
  if (high >= 1e9) return fmt::format("{:g}G", value / 1e9);
  return high >= 1e6 ? fmt::format("{:g}M", value / 1e6) : fmt::format("{:g}k", value / 1e3);
}

constexpr int kMarksMax = 50;

/// The values that an axis shows: about `parts` round ones. Of a log axis the powers of ten, or, if
/// there are fewer than two, also others.
std::vector<double> marks(const Axis& axis, int parts) {
  std::vector<double> marks;
  if (axis.log) {
    const bool narrow = axis.high / axis.low < 30;
    const auto exponent_of = [](double value) {  // value: 0 to infinity
      return static_cast<int>(std::clamp(std::floor(std::log10(value)), -324.0, 308.0));
    };
    for (int exponent = exponent_of(axis.low); exponent <= exponent_of(axis.high); ++exponent)
      for (const int digit : {1, 2, 3, 4, 5, 6, 8})
        if (const double at = digit * std::pow(10, exponent);
            at >= axis.low && at <= axis.high && (narrow || digit == 1))
          marks.push_back(at);
    return marks;
  }
  const double raw = (axis.high - axis.low) / parts,
               power = std::pow(10, std::floor(std::log10(raw))), digits = raw / power;
  const double step = power * (digits < 1.5 ? 1 : digits < 3.5 ? 2 : digits < 7.5 ? 5 : 10);
  const double first = std::ceil(axis.low / step);
  for (int n = 0; n < kMarksMax && (first + n) * step <= axis.high; ++n)
    marks.push_back((first + n) * step);
  return marks;
}

std::string tics(const char* name, const Axis& axis, int parts, bool labels = true) {
  std::string list;
  for (const double at : marks(axis, parts))
    list += fmt::format("{}'{}' {:.9g}", list.empty() ? "" : ",",
                        labels ? short_number(at, axis.high) : "", at);
  return list.empty() ? "" : fmt::format("set {} ({})\n", name, list);
}

std::string axis_text(const Panel& panel, const Axis& axis) {
  return fmt::format(
      "set label 3 '{}{}' at graph 0, graph 1 offset 0,0.8 tc rgb '#222222'\n"
      "{} logscale y\nset yrange [{:.7g}:{:.7g}]\n{}",
      panel.title, axis.log ? ", logarithmic" : "", axis.log ? "set" : "unset", axis.low, axis.high,
      tics("ytics", axis, panel.share > 0.3 ? 8 : 4));
}

/// Vertical lines at the steps of incidents; with few of them, their numbers in the first panel.
std::string incident_marks(const std::vector<PlotRun>& runs) {
  std::string text;
  size_t marks = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    size_t number = 0;
    for (const Recovery& recovery : runs[i].records.recoveries) {
      if (++marks > kIncidents) return text;
      const char* color = runs.size() == 1 ? kIncident : color_of(i).strong;
      text += fmt::format(
          "set arrow {0} from {1}, graph 0 to {1}, graph 1 nohead dt 3 lw 1 lc rgb '{2}' back\n",
          marks, recovery.step, color);
      if (runs.size() == 1 && runs[i].records.recoveries.size() <= 20)
        text += fmt::format(
            "set label {0} '{1}' at {2}, graph 0.97 offset 0.4,0 font ',9' tc rgb '{3}'\n",
            marks + 10, ++number, recovery.step, color);
    }
  }
  return text;
}

/// The curves of a panel: light ones of every step, strong smooth ones, and the validations.
std::string panel_curves(const std::vector<PlotRun>& runs, size_t panel, size_t window) {
  std::string text;
  const auto add = [&](const std::string& data, const std::string& style, const std::string& name) {
    text += fmt::format("{}{} using 1:2 with {} {}", text.empty() ? "" : ", \\\n  ", data, style,
                        name.empty() ? "notitle" : "title " + quoted(name));
  };
  const bool loss = panel == 0, one = runs.size() == 1,
             smooth = kPanels[panel].smooth && window > 1;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Color color = color_of(i);
    const std::string data = fmt::format("{}_{}", panel, i),
                      strong = fmt::format("lines lw 2.2 lc rgb '{}'", color.strong);
    const std::string name = i >= kNames ? "" : one ? "training" : runs[i].name;
    if (!smooth) add("$raw" + data, strong, name);
    if (smooth && runs.size() <= kRawRuns)
      add("$raw" + data, fmt::format("lines lw 1 lc rgb '{}'", color.light), one ? name : "");
    if (smooth) add("$smooth" + data, strong, one ? fmt::format("mean of {} steps", window) : name);
  }
  if (!loss) return text;
  for (size_t i = 0; i < runs.size(); ++i)
    if (!runs[i].records.val_losses.empty())
      add(fmt::format("$val{}", i),
          fmt::format("linespoints lw 1.6 dt 2 pt 7 ps 0.6 lc rgb '{}'",
                      one ? kValidation : color_of(i).strong),
          one ? "validation" : "");
  const auto legend = [&](bool any, const char* style, const char* name) {
    if (any) text += fmt::format(", \\\n  NaN with {} title '{}'", style, name);
  };
  const auto any = [&](auto member) {
    return std::ranges::any_of(runs,
                               [&](const PlotRun& run) { return !(run.records.*member).empty(); });
  };
  legend(!one && any(&RunRecords::val_losses),
         "linespoints lw 1.6 dt 2 pt 7 ps 0.6 lc rgb '#555555'", "validation");
  legend(any(&RunRecords::recoveries),
         one ? "lines dt 3 lw 1.5 lc rgb '#b22222'" : "lines dt 3 lw 1.5 lc rgb '#555555'",
         "incident");
  return text;
}

uint64_t last_step(const std::vector<PlotRun>& runs) {
  uint64_t steps = 1;
  for (const PlotRun& run : runs)
    if (!run.records.rows.empty()) steps = std::max(steps, run.records.rows.back().at.step);
  return steps;
}

}  // namespace

std::string plot_script(const std::vector<PlotRun>& runs, const std::string& output,
                        int64_t smooth_steps) {
  const uint64_t steps = last_step(runs);
  const size_t window = smooth_steps < 0 ? steps / 50 : static_cast<size_t>(smooth_steps);
  const bool one = runs.size() == 1;
  std::string text;
  std::array<Axis, kPanels.size()> axes;
  for (size_t p = 0; p < kPanels.size(); ++p) {
    std::vector<Curve> curves;  // that the axis must show
    for (size_t i = 0; i < runs.size(); ++i) {
      const Curve raw = values(runs[i].records.rows, kPanels[p].name),
                  smooth = smoothed(raw, window);
      text += block(fmt::format("raw{}_{}", p, i), lines(raw));
      text += block(fmt::format("smooth{}_{}", p, i), lines(smooth));
      curves.push_back(window > 1 && runs.size() > kRawRuns ? smooth : raw);
      if (p > 0) continue;
      curves.push_back(validation(runs[i].records));
      text += block(fmt::format("val{}", i), lines(curves.back()));
    }
    axes[p] = axis_of(kPanels[p], curves);
  }
  text += picture(output, 1100, one ? runs[0].name : count(runs.size(), "run"),
                  one ? facts(runs[0].records) : best_of(runs));
  text +=
      "set multiplot\nset style line 100 lc rgb '#e6e6e6' lw 0.8\nset grid back ls 100\n"
      "set border 3 lc rgb '#888888'\nset tics nomirror out scale 0.5 tc rgb '#444444'\n"
      "set lmargin at screen 0.07\nset rmargin at screen 0.97\n"
      "set key top right Left reverse samplen 2.5 spacing 1.2 opaque width 1\n";
  const Axis x{0, static_cast<double>(steps)};
  text += fmt::format("set xrange [0:{}]\n", steps) + tics("xtics", x, 10, false);
  text += incident_marks(runs);
  double top = 0.91;
  for (size_t p = 0; p < kPanels.size(); ++p) {
    constexpr double kGap = 0.045, kHeight = 0.90;
    const double bottom = top - kPanels[p].share * kHeight + kGap;
    text +=
        fmt::format("set tmargin at screen {:.4f}\nset bmargin at screen {:.4f}\n", top, bottom);
    if (p + 1 == kPanels.size()) text += tics("xtics", x, 10) + "set xlabel 'step'\n";
    text += axis_text(kPanels[p], axes[p]) + "plot " + panel_curves(runs, p, window) + "\n";
    // The title, the numbers of incidents and the legend are drawn once.
    if (p == 0) text += "unset label\nset key off\n";
    top = bottom - kGap;
  }
  return text + "unset multiplot\n";
}

}  // namespace simplescale
