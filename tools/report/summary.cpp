#include "tools/report/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/run/run_state.hpp"
#include "runtime/training/task_score.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string state_of(const RunFolder& run, const RunSummary& summary) {
  if (RunLock::held(run)) return text_of(status_of(run, instance_of(run)), "state", "starting");
  if (summary.max_steps > 0 && summary.step >= summary.max_steps) return "finished";
  const auto end = end_of(run);
  if (!fs::exists(run.metrics()) && !end) return "new";
  const int code = end ? end->code : exit_code(Code::internal);
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

/// The mean of the tasks' accuracies; "" without tasks that have questions.
std::string shown_accuracy(const json& tasks) {
  const double accuracy = mean_accuracy(tasks);
  return std::isnan(accuracy) ? "" : fmt::format("{:.4f}", accuracy);
}

using Row = std::vector<std::string>;
const Row kHeader = {"run",      "state",    "step",       "loss", "val loss",
                     "accuracy", "tokens/s", "recoveries", "when", "from"};

/// Relative to `folder` if it is in there.
std::string name_in(const fs::path& path, const std::string& folder) {
  const std::string name = path.lexically_relative(folder).string();
  return name.empty() || name == "." || name.starts_with("..") ? path.string() : name;
}

/// Whose weights a run began with: a run is named as in the table, a checkpoint of a run by both.
std::string from_of(const std::string& from, const std::string& folder) {
  fs::path path = fs::path(from).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (from.empty() || from.find("://") != std::string::npos) return from;
  const fs::path checkpoints = path.parent_path();
  std::error_code error;
  const bool in_run = checkpoints.filename() == "checkpoints" &&
                      fs::exists(checkpoints.parent_path() / "config.toml", error);
  const std::string base = fs::absolute(folder, error).lexically_normal();
  if (!in_run) return name_in(path, base);
  return name_in(checkpoints.parent_path(), base) + " " + path.filename().string();
}

Row row_of(const RunSummary& run, const std::string& folder) {
  return {name_in(run.folder, folder),
          run.state,
          run.max_steps ? fmt::format("{}/{}", run.step, run.max_steps) : std::to_string(run.step),
          shown(run.loss, "{:.4f}"),
          shown(run.val_loss, "{:.4f}"),
          shown_accuracy(run.tasks),
          shown(run.tokens_per_second, "{:.0f}"),
          std::to_string(run.recoveries),
          local_time(run.time_s),
          from_of(run.from, folder)};
}

/// Removes the columns of kHeader that are empty in all rows: accuracy and from.
void remove_empty_columns(std::vector<Row>& rows) {
  for (size_t i = rows[0].size(); i-- > 0;) {
    const bool empty =
        std::all_of(rows.begin() + 1, rows.end(), [i](const Row& row) { return row[i].empty(); });
    if (empty && (rows[0][i] == "accuracy" || i + 1 == rows[0].size()))
      for (Row& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

/// Text to the left, numbers to the right. state: the column of the state.
std::string table_of(std::vector<Row> rows, size_t state) {
  remove_empty_columns(rows);
  std::vector<size_t> widths(rows[0].size());
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      text += i ? "  " : "";
      text += i == 0 || i == state || last ? fmt::format("{:<{}}", row[i], last ? 0 : widths[i])
                                           : fmt::format("{:>{}}", row[i], widths[i]);
    }
    text.resize(text.find_last_not_of(' ') + 1);  // an empty last cell
    text += "\n";
  }
  return text;
}

json json_of(const RunSummary& run) {
  return {{"folder", run.folder},
          {"name", run.name},
          {"from", run.from},
          {"state", run.state},
          {"step", run.step},
          {"max_steps", run.max_steps},
          {"loss", number_or_null(run.loss)},
          {"val_loss", number_or_null(run.val_loss)},
          {"tasks", run.tasks},
          {"tokens_per_second", number_or_null(run.tokens_per_second)},
          {"recoveries", run.recoveries},
          {"time", run.time_s}};
}

/// The loss that a sweep's runs are compared by.
auto loss_to_compare(const std::vector<SweepResult>& results) {
  const bool validated = std::ranges::any_of(
      results, [](const SweepResult& result) { return result.run.val_loss.has_value(); });
  return [validated](const SweepResult& result) {
    return validated ? result.run.val_loss : result.run.loss;
  };
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
  summary.tasks = records.tasks;
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
  std::vector<Row> rows = {kHeader};
  for (const RunSummary& run : runs) rows.push_back(row_of(run, folder));
  return table_of(rows, 1);
}

std::string summary_json(const std::vector<RunSummary>& runs) {
  json list = json::array();
  for (const RunSummary& run : runs) list.push_back(json_of(run));
  return json_text(list, 1) + "\n";
}

void mark_best(std::vector<SweepResult>& results) {
  const bool finished = std::ranges::any_of(
      results, [](const SweepResult& result) { return result.run.state == "finished"; });
  const auto loss = loss_to_compare(results);
  SweepResult* best = nullptr;
  for (SweepResult& result : results) {
    result.best = false;
    if (!loss(result) || (finished && result.run.state != "finished")) continue;
    if (!best || *loss(result) < *loss(*best)) best = &result;
  }
  if (best) best->best = true;
}

std::string sweep_table(const std::vector<SweepResult>& results, const std::string& folder) {
  std::vector<const SweepResult*> order;
  for (const SweepResult& result : results) order.push_back(&result);
  const auto loss = loss_to_compare(results);
  std::ranges::stable_sort(order, {}, [&](const SweepResult* result) {
    return std::tuple(!result->best, !loss(*result), loss(*result).value_or(0));
  });
  std::vector<Row> rows = {kHeader};
  size_t keys = 0;
  if (!results.empty()) keys = results[0].choices.size();
  rows[0].insert(rows[0].begin() + 1, keys, "");
  for (size_t i = 0; i < keys; ++i) {
    const std::string& key = results[0].choices[i].first;
    rows[0][i + 1] = key.substr(key.find('.') + 1);
  }
  for (const SweepResult* result : order) {
    Row row = row_of(result->run, folder);
    for (size_t i = 0; i < result->choices.size(); ++i)
      row.insert(row.begin() + static_cast<std::ptrdiff_t>(i) + 1, result->choices[i].second);
    row[0] = (result->best ? "* " : "  ") + row[0];
    rows.push_back(std::move(row));
  }
  rows[0][0] = "  " + rows[0][0];
  return table_of(rows, 1 + keys);
}

std::string sweep_json(const std::vector<SweepResult>& results) {
  json list = json::array();
  for (const SweepResult& result : results) {
    list.push_back(json_of(result.run));
    list.back()["best"] = result.best;
    json& choices = list.back()["choices"] = json::object();
    for (const auto& [key, value] : result.choices) choices[key] = value;
  }
  return json_text(list, 1) + "\n";
}

}  // namespace simplescale
