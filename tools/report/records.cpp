#include "tools/report/records.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

std::optional<double> real(const json& line, const char* key) {
  const double value = real_of(line, key);
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<double> MetricsRow::find(const std::string& name) const {
  for (const auto& [key, value] : scalars)
    if (key == name) return value;
  return std::nullopt;
}

std::optional<MetricsRow> parse_metrics(const std::string& text) {
  const json line = parse_json(text);
  const auto step = unsigned_of(line, "step"), generation = unsigned_of(line, "generation");
  if (!step || !generation) return std::nullopt;
  MetricsRow row;
  row.at = {*generation, *step};
  row.time_s = real(line, "time").value_or(0);
  for (const char* name : {"loss", "val_loss", "grad_norm", "lr", "tokens", "tokens_per_second",
                           "step_ms", "mfu", "padding", "generation"})
    if (const auto value = real(line, name)) row.scalars.emplace_back(name, *value);
  for (const auto& [member, prefix] : {std::pair{"val_losses", "val_loss/"},
                                       {"val_loss_at", "val_loss_at/"},
                                       {"val_loss_by_position", "val_loss_by_position/"}})
    if (const json& losses = member_of(line, member); losses.is_object())
      for (const auto& [name, ignored] : losses.items())
        if (const auto value = real(losses, name.c_str()))
          row.scalars.emplace_back(prefix + name, *value);
  const json& experts = member_of(line, "experts");
  const auto add_figures = [&](const json& of, const std::string& name) {
    for (const char* figure : {"least", "most", "entropy", "close", "dropped"})
      if (const auto value = real(of, figure)) row.scalars.emplace_back(name + figure, *value);
  };
  add_figures(experts, "experts/");
  if (const json& layers = member_of(experts, "layers"); layers.is_object())
    for (const auto& [layer, figures] : layers.items())
      add_figures(figures, "experts/layer_" + layer + "/");
  if (const json& loads = member_of(experts, "loads"); loads.is_object())
    for (const auto& [layer, of_experts] : loads.items())
      for (size_t e = 0; e < of_experts.size(); ++e)
        if (of_experts[e].is_number())
          row.scalars.emplace_back("experts/layer_" + layer + "/load_" + std::to_string(e),
                                   of_experts[e].get<double>());
  if (const json& tasks = member_of(line, "tasks"); tasks.is_object())
    for (const auto& [name, scores] : tasks.items())
      for (const char* figure : {"acc", "acc_norm", "word_perplexity", "byte_perplexity"})
        if (const auto value = real(scores, figure))
          row.scalars.emplace_back("tasks/" + name + "/" + figure, *value);
  return row;
}

std::optional<Recovery> parse_recovery(const std::string& text) {
  const json line = parse_json(text);
  if (text_of(line, "kind") != "recovered") return std::nullopt;
  return Recovery{real(line, "time").value_or(0), real(line, "ms").value_or(0),
                  unsigned_of(line, "step").value_or(0)};
}

void LineFollower::skip(bool but_last) {
  constexpr std::streamoff kLastLineMax = 1 << 20;  // bytes
  file_ = open_lines(path_);
  if (!file_.is_open()) return;
  std::streamoff at = file_.seekg(0, std::ios::end).tellg();
  if (!but_last) return;
  const std::streamoff first = at - kLastLineMax;
  for (int ends = 0; at > 0 && at > first && ends < 2; --at) {
    file_.seekg(at - 1);
    ends += file_.get() == '\n';
    if (ends == 2) break;
  }
  file_.seekg(at);
}

bool LineFollower::next(std::string& line) {
  if (!file_.is_open()) file_ = open_lines(path_);
  if (!file_.is_open()) return false;
  file_.clear();
  std::string text;
  if (!next_line(file_, text)) {
    if (!file_.eof()) partial_.clear();  // too long: its rest is read as another line
    return false;
  }
  partial_ += text;
  if (partial_.size() > kTextLineMax) partial_.clear();
  if (file_.eof()) return false;  // the line is not complete yet
  line = std::move(partial_);
  partial_.clear();
  return true;
}

RunRecords read_records(const RunFolder& run) {
  RunRecords records;
  std::string text;
  for (LineFollower lines(run.metrics()); lines.next(text);) {
    auto row = parse_metrics(text);
    if (!row || (!records.rows.empty() && row->at <= records.rows.back().at)) continue;
    while (!records.rows.empty() && records.rows.back().at.step >= row->at.step)
      records.rows.pop_back();
    records.rows.push_back(std::move(*row));
  }
  for (LineFollower lines(run.events()); lines.next(text);) {
    const json line = parse_json(text);
    if (!line.is_object()) continue;
    if (records.begin_s == 0) records.begin_s = real(line, "time").value_or(0);
    if (const auto recovery = parse_recovery(text)) records.recoveries.push_back(*recovery);
    if (const auto loss = real(line, "val_loss")) {
      const uint64_t step = unsigned_of(line, "step").value_or(0);
      records.val_loss = loss;
      while (!records.val_losses.empty() && records.val_losses.back().first >= step)
        records.val_losses.pop_back();  // a repeated validation replaces those that were undone
      records.val_losses.emplace_back(step, *loss);
    }
    if (const json& tasks = member_of(line, "tasks"); tasks.is_object()) {
      if (records.first_tasks.is_null()) records.first_tasks = tasks;
      records.tasks = tasks;
    }
  }
  return records;
}

}  // namespace simplescale
