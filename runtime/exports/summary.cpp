#include "runtime/exports/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/base/json_text.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_json(const std::string& path) {
  const auto text = read_text(path);
  return text.ok() ? json::parse(*text, nullptr, false) : json();
}

std::string state_of(const RunFolder& run, const RunSummary& summary) {
  const json status = read_json(run.status()), end = read_json(run.end());
  if (RunLock::held(run))
    return status.is_object() && status.contains("state") && status["state"].is_string()
               ? status["state"].get<std::string>()
               : "starting";
  if (summary.max_steps > 0 && summary.step >= summary.max_steps) return "finished";
  if (!fs::exists(run.metrics()) && !end.is_object()) return "new";
  const int code = end.is_object() && end.contains("exit") && end["exit"].is_number_integer()
                       ? end["exit"].get<int>()
                       : exit_code(Code::internal);
  return code == 0 || code == exit_code(Code::requeue) ? "stopped" : "failed";
}

std::string shown(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::string local_time(double time_s) {
  if (time_s <= 0) return "-";
  const auto seconds = static_cast<std::time_t>(time_s);
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", &local);
  return text;
}

json number_or_null(const std::optional<double>& value) {
  return value ? json(*value) : json(nullptr);
}

/// Mean rate of the newest steps: tokens of all over the time of all.
std::optional<double> newest_rate(const std::vector<MetricsRow>& rows) {
  constexpr size_t kSteps = 20;
  double steps = 0, inverse = 0;
  for (size_t i = rows.size(); i > 0 && rows.size() - i < kSteps; --i)
    if (const auto rate = rows[i - 1].find("tokens_per_second"); rate && *rate > 0) {
      steps += 1;
      inverse += 1 / *rate;
    }
  return steps > 0 ? std::optional(steps / inverse) : std::nullopt;
}

}  // namespace

Result<RunSummary> summarize(const std::string& folder, RunRecords* kept) {
  const RunFolder run{folder};
  if (!fs::exists(run.config()))
    return Status(Code::not_found, folder + " is not a run folder: it has no config.toml");
  RunSummary summary;
  summary.folder = folder;
  summary.name = fs::path(folder).lexically_normal().filename().string();
  if (const auto loaded = load_config(run.config()); loaded.ok()) {
    summary.name = loaded->config.run.name;
    summary.from = loaded->config.run.from;
    if (const auto plan = make_plan(loaded->config); plan.ok())
      summary.max_steps = static_cast<uint64_t>(plan->max_steps);
  }
  RunRecords records = read_records(run);
  summary.recoveries = records.recoveries.size();
  summary.val_loss = records.val_loss;
  summary.time_s = records.begin_s;
  if (!records.rows.empty()) {
    const MetricsRow& last = records.rows.back();
    summary.step = last.at.step;
    summary.loss = last.find("loss");
    summary.tokens_per_second = newest_rate(records.rows);
    summary.time_s = last.time_s;
  }
  summary.state = state_of(run, summary);
  if (kept) *kept = std::move(records);
  return summary;
}

std::vector<std::string> find_runs(const std::string& folder) {
  constexpr int kDepth = 3;
  std::vector<std::string> found;
  const auto is_run = [](const fs::path& path) {
    std::error_code error;
    return fs::exists(path / "config.toml", error) && fs::exists(path / "control", error);
  };
  if (is_run(folder)) return {folder};
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (!at->is_directory(error)) continue;
    const bool run = is_run(at->path());
    if (run) found.push_back(at->path().string());
    if (run || at.depth() + 1 >= kDepth) at.disable_recursion_pending();
  }
  std::ranges::sort(found);
  return found;
}

std::string summary_table(const std::vector<RunSummary>& runs, const std::string& folder) {
  using Row = std::array<std::string, 9>;
  std::vector<Row> rows = {
      {"run", "state", "step", "loss", "val loss", "tokens/s", "recoveries", "when", "from"}};
  for (const RunSummary& run : runs) {
    const std::string name = fs::path(run.folder).lexically_relative(folder).string();
    rows.push_back(
        {name.empty() || name == "." ? run.folder : name, run.state,
         run.max_steps ? fmt::format("{}/{}", run.step, run.max_steps) : std::to_string(run.step),
         shown(run.loss, "{:.4f}"), shown(run.val_loss, "{:.4f}"),
         shown(run.tokens_per_second, "{:.0f}"), std::to_string(run.recoveries),
         local_time(run.time_s), fs::path(run.from).filename().string()});
  }
  const bool parents = std::ranges::any_of(runs, [](const auto& run) { return !run.from.empty(); });
  const size_t columns = rows[0].size() - (parents ? 0 : 1);
  std::array<size_t, 9> widths{};
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i < columns; ++i) {  // text left, numbers right
      const bool left = i < 2 || i >= 7;
      text += i ? "  " : "";
      text += left ? fmt::format("{:<{}}", row[i], i + 1 == columns ? 0 : widths[i])
                   : fmt::format("{:>{}}", row[i], widths[i]);
    }
    text += "\n";
  }
  return text;
}

std::string summary_json(const std::vector<RunSummary>& runs) {
  json list = json::array();
  for (const RunSummary& run : runs)
    list.push_back({{"folder", run.folder},
                    {"name", run.name},
                    {"from", run.from},
                    {"state", run.state},
                    {"step", run.step},
                    {"max_steps", run.max_steps},
                    {"loss", number_or_null(run.loss)},
                    {"val_loss", number_or_null(run.val_loss)},
                    {"tokens_per_second", number_or_null(run.tokens_per_second)},
                    {"recoveries", run.recoveries},
                    {"time", run.time_s}});
  return json_text(list, 1) + "\n";
}

}  // namespace simplescale
