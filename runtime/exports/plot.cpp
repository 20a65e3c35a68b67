#include "runtime/exports/plot.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "runtime/base/files.hpp"
#include "runtime/base/run_command.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
constexpr size_t kPoints = 2'000;     // most points per curve; more rows are averaged
constexpr size_t kNames = 24;         // most names in the legend
constexpr int64_t kDrawMs = 120'000;  // deadline for gnuplot

/// A string in gnuplot's single quotes, where a doubled quote is the only escape.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '`') continue;
    out += c == '\'' ? "''" : std::string(1, c);
  }
  return out + "'";
}

/// Lines "step value". Neighbouring rows are averaged if there are more than kPoints.
std::string curve(const std::vector<MetricsRow>& rows, const char* name) {
  const size_t every = (rows.size() + kPoints - 1) / kPoints;
  std::string text;
  double sum = 0;
  size_t count = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (const auto value = rows[i].find(name)) {
      sum += *value;
      ++count;
    }
    if ((i + 1) % every != 0 && i + 1 < rows.size()) continue;
    if (count > 0)
      text += fmt::format("{} {:.7g}\n", rows[i].at.step, sum / static_cast<double>(count));
    sum = 0;
    count = 0;
  }
  return text;
}

std::string validation(const RunRecords& records) {
  std::string text;
  for (const auto& [step, loss] : records.val_losses)
    text += fmt::format("{} {:.7g}\n", step, loss);
  return text;
}

std::string recoveries(const RunRecords& records) {
  const uint64_t begin = records.rows.empty() ? 0 : records.rows.front().at.step - 1,
                 end = records.rows.empty() ? 0 : records.rows.back().at.step;
  std::string text = fmt::format("{} 0\n", begin);
  size_t count = 0;
  for (const Recovery& recovery : records.recoveries)
    text += fmt::format("{} {}\n", recovery.step, ++count);
  return text + fmt::format("{} {}\n", end, count);
}

/// A data block. gnuplot requires at least one point.
std::string block(const std::string& name, const std::string& data) {
  return "$" + name + " << END\n" + (data.empty() ? "0 NaN\n" : data) + "END\n";
}

}  // namespace

std::string plot_script(const std::vector<PlotRun>& runs, const std::string& output) {
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunRecords& records = runs[i].records;
    text += block("loss" + std::to_string(i), curve(records.rows, "loss"));
    text += block("val" + std::to_string(i), validation(records));
    text += block("rate" + std::to_string(i), curve(records.rows, "tokens_per_second"));
    text += block("dead" + std::to_string(i), recoveries(records));
  }
  const auto curves = [&](const char* data, const std::string& with, bool names) {
    std::string line;
    for (size_t i = 0; i < runs.size(); ++i)
      line += fmt::format("{}${}{} using 1:2 with {} lc {} {}", i ? ", " : "", data, i, with, i + 1,
                          names && i < kNames ? "title " + quoted(runs[i].name) : "notitle");
    return line;
  };
  uint64_t steps = 1;
  for (const PlotRun& run : runs)
    if (!run.records.rows.empty()) steps = std::max(steps, run.records.rows.back().at.step);
  const bool svg = output.ends_with(".svg");
  text += svg ? "set terminal svg size 1000,900 noenhanced font 'sans,12' background '#ffffff'\n"
              : "set terminal pngcairo size 1000,900 noenhanced font 'sans,10'\n";
  text += "set output " + quoted(output) + "\n";
  text += "set multiplot\nset xrange [0:" + std::to_string(steps) +
          "]\n"
          "set grid lc '#dddddd'\n"
          "set lmargin at screen 0.09\nset rmargin at screen 0.97\n"
          "set tmargin at screen 0.97\nset bmargin at screen 0.46\n"
          "set ylabel 'loss (dots: validation)'\nset key top right\nset format x ''\n";
  text += "plot " + curves("loss", "lines lw 1.5", true) + ", " +
          curves("val", "points pt 7 ps 0.8", false) + "\n";
  text +=
      "set tmargin at screen 0.43\nset bmargin at screen 0.24\n"
      "set ylabel 'tokens/s'\nset yrange [0:*]\n";
  text += "plot " + curves("rate", "lines", false) + "\n";
  text +=
      "set tmargin at screen 0.21\nset bmargin at screen 0.07\nset format x '%g'\n"
      "set ylabel 'recoveries'\nset xlabel 'step'\nset yrange [0:1<*]\n";
  text += "plot " + curves("dead", "steps lw 1.5", false) + "\nunset multiplot\n";
  return text;
}

Status draw_plot(const std::vector<PlotRun>& runs, const std::string& output) {
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
    if (!(std::ofstream(script) << plot_script(runs, picture) << std::flush))
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
