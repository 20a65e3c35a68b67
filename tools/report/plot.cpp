#include "tools/report/plot.hpp"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "runtime/base/files.hpp"
#include "runtime/base/run_command.hpp"

namespace simplescale {

namespace {
namespace fs = std::filesystem;
constexpr int64_t kDrawMs = 120'000;  // deadline for gnuplot

/// script_of: the script whose picture is that file.
Status draw(const std::function<std::string(const std::string&)>& script_of,
            const std::string& output) {
  const std::string kind = output.substr(output.size() - 4);
  char name[] = "/tmp/simplescale-plot-XXXXXX";
  if (!mkdtemp(name)) return Status(Code::io, "cannot create a folder in /tmp");
  const std::string folder = name, script = folder + "/script",
                    picture = folder + "/picture" + kind;
  const auto draw_it = [&]() -> Status {
    SS_RETURN_IF_ERROR(write_file_atomic(script, script_of(picture)));
    auto result = run_command({"gnuplot", script}, kDrawMs, {.inherits = Inherits::needed});
    if (result.status().code() == Code::not_found)
      return Status(Code::not_found,
                    "plots need gnuplot, which is not installed: apt-get install gnuplot-nox");
    if (!result.ok()) return result.status();
    SS_ASSIGN(const std::string bytes, read_text(picture));
    if (result->code != 0 || bytes.empty())
      return Status(Code::internal, "gnuplot: " + result->output.substr(0, 500));
    return write_output(output, bytes);
  };
  const Status done = draw_it();
  std::error_code error;
  fs::remove_all(folder, error);
  return done;
}

Status check_name(const std::string& output) {
  if (output.ends_with(".svg") || output.ends_with(".png")) return {};
  return Status(Code::usage, output + " must end in .svg or .png");
}

}  // namespace

Status draw_plot(const std::vector<PlotRun>& runs, const std::string& output,
                 int64_t smooth_steps) {
  SS_RETURN_IF_ERROR(check_name(output));
  if (std::ranges::all_of(runs, [](const PlotRun& run) { return run.records.rows.empty(); }))
    return Status(Code::not_found, "nothing to plot: no step has been trained yet");
  return draw([&](const std::string& picture) { return plot_script(runs, picture, smooth_steps); },
              output);
}

Status draw_program(const ProgramPlot& plot, const std::string& output) {
  SS_RETURN_IF_ERROR(check_name(output));
  return draw([&](const std::string& picture) { return program_script(plot, picture); }, output);
}

}  // namespace simplescale
