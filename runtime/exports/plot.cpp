#include "runtime/exports/plot.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "runtime/base/files.hpp"
#include "runtime/base/run_command.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
constexpr size_t kPoints = 2'000;     // most points per curve; more are averaged
constexpr size_t kNames = 24;         // most names in the legend
constexpr size_t kRawRuns = 3;        // with more runs, only the smooth curves are drawn
constexpr size_t kIncidents = 200;    // most incidents that are marked
constexpr int64_t kDrawMs = 120'000;  // deadline for gnuplot

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

/// Each value becomes the mean of `window` values around it; fewer at the ends.
Curve smoothed(const Curve& curve, size_t window) {
  std::vector<double> sums = {0};
  for (const Point& point : curve) sums.push_back(sums.back() + point.value);
  Curve smooth;
  for (size_t i = 0; i < curve.size(); ++i) {
    // As many values before the point as after it, so that the curve does not lag.
    const size_t half = std::min({window / 2, i, curve.size() - 1 - i});
    const double sum = sums[i + half + 1] - sums[i - half];
    smooth.push_back({curve[i].step, sum / static_cast<double>(2 * half + 1)});
  }
  return smooth;
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

/// A data block. gnuplot requires at least one point.
std::string block(const std::string& name, const std::string& data) {
  return "$" + name + " << END\n" + (data.empty() ? "0 NaN\n" : data) + "END\n";
}

// -- Text -----------------------------------------------------------------------------------------

/// A string in gnuplot's single quotes, where a doubled quote is the only escape.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '`') continue;
    out += c == '\'' ? "''" : std::string(1, c);
  }
  return out + "'";
}

std::string count(size_t number, const char* what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

/// "step 900, loss 3.21, validation loss 3.30 (lowest 3.28 at step 850), 2 incidents (0.9 s)".
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
  return text +
         fmt::format(", {} ({:.1f} s)", count(records.recoveries.size(), "incident"), ms / 1e3);
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
  const char *name, *label;  // key in metrics.jsonl; label of the axis
  double share;              // of the height
  double log_above;          // a log axis if the largest value is this many times the smallest
  bool from_zero;
  const char* format;  // of the axis
};
constexpr std::array<Panel, 4> kPanels = {
    {{"loss", "loss (nats per token)", 0.46, 4, false, "%g"},
     {"grad_norm", "gradient norm", 0.19, 20, true, "%g"},
     {"lr", "learning rate", 0.15, 1e300, true, "%g"},
     {"tokens_per_second", "tokens/s", 0.20, 1e300, true, "%.3s%c"}}};

/// The axis of a panel: from the smallest to the largest value, without rare spikes of the rate.
struct Axis {
  double low = 0, high = 1;
  bool log = false;
};

Axis axis_of(const Panel& panel, const std::vector<Curve>& curves) {
  std::vector<double> all;
  for (const Curve& curve : curves)
    for (const Point& point : curve) all.push_back(point.value);
  if (all.empty()) return {};
  std::ranges::sort(all);
  const bool rate = std::string_view(panel.name) == "tokens_per_second";
  const double low = all.front(), high = rate ? all[(all.size() - 1) * 99 / 100] : all.back();
  if (low > 0 && high / low > panel.log_above) return {low / 1.08, high * 1.08, true};
  const double margin = high > low ? 0.06 * (high - low) : std::max(1e-12, std::abs(high) * 0.1);
  return {panel.from_zero ? 0 : low - margin, high + margin * (rate ? 4 : 1), false};
}

/// Marks of a log axis that gnuplot would leave out where it spans less than a power of ten.
std::string log_tics(const Axis& axis) {
  const bool narrow = axis.high / axis.low < 30;
  std::string tics;
  for (double power = std::pow(10, std::floor(std::log10(axis.low))); power <= axis.high;
       power *= 10)
    for (int digit = 1; digit < 10; ++digit)
      if (const double at = digit * power;
          at >= axis.low && at <= axis.high && (narrow || digit == 1))
        tics += fmt::format("{}{:g}", tics.empty() ? "" : ",", at);
  return tics.empty() ? "" : "set ytics (" + tics + ")\n";
}

std::string axis_text(const Panel& panel, const Axis& axis) {
  std::string text = fmt::format("set ylabel '{}{}'\nset format y '{}'\nset ytics autofreq\n",
                                 panel.label, axis.log ? ", log" : "", panel.format);
  text += fmt::format("unset logscale y\nset yrange [{:.7g}:{:.7g}]\n", axis.low, axis.high);
  if (axis.log) text += "set logscale y\n" + log_tics(axis);
  return text;
}

/// Vertical lines at the steps of incidents; with few of them, their numbers above the first panel.
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
        text +=
            fmt::format("set label {0} '{1}' at {2}, graph 1.025 center font ',9' tc rgb '{3}'\n",
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
  const bool loss = panel == 0, one = runs.size() == 1;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Color color = color_of(i);
    const std::string data = fmt::format("{}_{}", panel, i),
                      name = loss && i < kNames ? (one ? "training" : runs[i].name) : "";
    const bool smooth = window > 1;
    if (!smooth || runs.size() <= kRawRuns)
      add("$raw" + data,
          fmt::format("lines lw {} lc rgb '{}'", smooth ? 1 : 1.8,
                      smooth ? color.light : color.strong),
          !smooth ? name
          : one   ? name
                  : "");
    if (smooth)
      add("$smooth" + data, fmt::format("lines lw 2.2 lc rgb '{}'", color.strong),
          name.empty() ? ""
          : one        ? fmt::format("mean of {} steps", window)
                       : name);
  }
  for (size_t i = 0; loss && i < runs.size(); ++i)
    if (!runs[i].records.val_losses.empty())
      add(fmt::format("$val{}", i),
          fmt::format("linespoints lw 1.6 dt 2 pt 7 ps 0.6 lc rgb '{}'",
                      one ? kValidation : color_of(i).strong),
          one                    ? "validation"
          : i + 1 == runs.size() ? "validation (dots)"
                                 : "");
  if (loss &&
      std::ranges::any_of(runs, [](const PlotRun& run) { return !run.records.recoveries.empty(); }))
    text += fmt::format(", \\\n  NaN with lines dt 3 lc rgb '{}' title 'incident'",
                        one ? kIncident : "#555555");
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
  std::string data;
  std::array<Axis, kPanels.size()> axes;
  for (size_t p = 0; p < kPanels.size(); ++p) {
    std::vector<Curve> curves;
    for (size_t i = 0; i < runs.size(); ++i) {
      const Curve raw = values(runs[i].records.rows, kPanels[p].name),
                  smooth = smoothed(raw, window);
      data += block(fmt::format("raw{}_{}", p, i), lines(raw));
      data += block(fmt::format("smooth{}_{}", p, i), lines(smooth));
      curves.push_back(window > 1 && runs.size() > kRawRuns ? smooth : raw);
      if (p > 0) continue;
      curves.push_back(validation(runs[i].records));
      data += block(fmt::format("val{}", i), lines(curves.back()));
    }
    axes[p] = axis_of(kPanels[p], curves);
  }
  const bool svg = output.ends_with(".svg");
  std::string text =
      data + (svg ? "set terminal svg size 1000,1100 noenhanced font 'sans,13' background '#ffffff'"
                  : "set terminal pngcairo size 1500,1650 noenhanced font 'sans,10' fontscale 1.4");
  text += "\nset output " + quoted(output) + "\n";
  text +=
      "set label 1 " + quoted(one ? runs[0].name : count(runs.size(), "run")) +
      " at screen 0.09, screen 0.975 font ',17' tc rgb '#222222'\n"
      "set label 2 " +
      quoted(one ? facts(runs[0].records) : "") +
      " at screen 0.09, screen 0.95 font ',12' tc rgb '#666666'\n"
      "set multiplot\nset style line 100 lc rgb '#e6e6e6' lw 0.8\nset grid back ls 100\n"
      "set border 3 lc rgb '#888888'\nset tics nomirror out scale 0.5 tc rgb '#444444'\n"
      "set lmargin at screen 0.09\nset rmargin at screen 0.975\n"
      "set key top right samplen 2 spacing 1.15 opaque\nset ylabel offset 1,0 tc rgb '#444444'\n";
  text += fmt::format("set xrange [0:{}]\nset format x ''\n", steps);
  text += incident_marks(runs);
  double top = 0.92;
  for (size_t p = 0; p < kPanels.size(); ++p) {
    constexpr double kGap = 0.028, kHeight = 0.86;
    const double bottom = top - kPanels[p].share * kHeight + kGap;
    text +=
        fmt::format("set tmargin at screen {:.4f}\nset bmargin at screen {:.4f}\n", top, bottom);
    if (p + 1 == kPanels.size()) text += "set format x '%.3s%c'\nset xlabel 'step'\n";
    text += axis_text(kPanels[p], axes[p]);
    text += "plot " + panel_curves(runs, p, window) + "\n";
    // Drawn once: the texts above the panels.
    if (p == 0) text += "unset label\nset key off\n";
    top = bottom - kGap;
  }
  return text + "unset multiplot\n";
}

Status draw_plot(const std::vector<PlotRun>& runs, const std::string& output,
                 int64_t smooth_steps) {
  if (!output.ends_with(".svg") && !output.ends_with(".png"))
    return Status(Code::usage, output + " must end in .svg or .png");
  if (std::ranges::all_of(runs, [](const PlotRun& run) { return run.records.rows.empty(); }))
    return Status(Code::not_found, "nothing to plot: no step has been trained yet");
  const std::string kind = output.substr(output.size() - 4);
  char name[] = "/tmp/simplescale-plot-XXXXXX";
  if (!mkdtemp(name)) return Status(Code::io, "cannot create a folder in /tmp");
  const std::string folder = name, script = folder + "/script",
                    picture = folder + "/picture" + kind;
  const auto draw = [&]() -> Status {
    if (!(std::ofstream(script) << plot_script(runs, picture, smooth_steps) << std::flush))
      return Status(Code::io, "cannot write " + script);
    auto result = run_command({"gnuplot", script}, kDrawMs);
    if (result.status().code() == Code::not_found)
      return Status(Code::not_found,
                    "plots need gnuplot, which is not installed: apt-get install gnuplot-nox");
    if (!result.ok()) return result.status();
    SS_ASSIGN(const std::string bytes, read_text(picture));
    if (result->code != 0 || bytes.empty())
      return Status(Code::internal, "gnuplot: " + result->output.substr(0, 500));
    return write_file_atomic(output, bytes);
  };
  const Status done = draw();
  std::error_code error;
  fs::remove_all(folder, error);
  return done;
}

}  // namespace simplescale
