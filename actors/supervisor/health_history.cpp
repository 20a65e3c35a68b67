#include "actors/supervisor/health_history.hpp"

#include <algorithm>

#include "runtime/base/json_text.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

constexpr int64_t kWriteMs = 60'000;
constexpr const char* kFile = "health.jsonl";

json times_json(const TrainerTimes& times) {
  return {{"name", times.trainer},
          {"step", times.step},
          {"step_ms", rounded(times.step_ms, 0.01)},
          {"data_ms", rounded(times.data_ms, 0.01)},
          {"forward_ms", rounded(times.forward_ms, 0.01)},
          {"backward_ms", rounded(times.backward_ms, 0.01)},
          {"optimizer_ms", rounded(times.optimizer_ms, 0.01)},
          {"wait_ms", rounded(times.wait_ms, 0.01)}};
}

json host_json(const NodeHealth& report, double time) {
  json gpus = json::array();
  for (const GpuHealth& gpu : report.gpus)
    gpus.push_back({{"name", gpu.name},
                    {"utilization", rounded(gpu.utilization, 0.001)},
                    {"temperature_c", rounded(gpu.temperature_c, 0.1)},
                    {"power_w", rounded(gpu.power_w, 0.1)},
                    {"memory_used", rounded(gpu.memory_used, 0.001)},
                    {"ecc_errors", gpu.ecc_errors},
                    {"clock_mhz", rounded(gpu.clock_mhz, 1)},
                    {"xids", gpu.xids},
                    {"xid", gpu.xid}});
  return {{"time", time},
          {"node", report.node},
          {"cpu", rounded(report.cpu, 0.001)},
          {"memory", rounded(report.memory, 0.001)},
          {"disk", rounded(report.disk, 0.001)},
          {"received_mb_per_s", rounded(report.received_mb_per_s, 0.01)},
          {"sent_mb_per_s", rounded(report.sent_mb_per_s, 0.01)},
          {"gpus", std::move(gpus)}};
}

}  // namespace

json health_line(const NodeHealth& report, double time) {
  json line = host_json(report, time);
  json& trainers = line["trainers"] = json::array();
  for (const TrainerTimes& times : report.trainers) trainers.push_back(times_json(times));
  return line;
}

void HealthHistory::add(const NodeHealth& report, int64_t now_ms, double time, Journal& journal) {
  Node& node = nodes_[report.node];
  json document = host_json(report, time);
  const auto busiest = std::ranges::max_element(
      report.trainers, {}, [](const TrainerTimes& t) { return t.step_ms - t.wait_ms; });
  document["busiest"] = busiest == report.trainers.end() ? json(nullptr) : times_json(*busiest);
  node.text = json_text(document);
  if (!node.written || now_ms - node.written_ms >= kWriteMs) {
    journal.append(kFile, health_line(report, time));
    node.written_ms = now_ms;
    node.written = true;
    return;
  }
  node.unwritten.emplace_back(time, report);
  if (node.unwritten.size() > kKept) node.unwritten.pop_front();
}

void HealthHistory::write(const std::string& node, Journal& journal) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  for (const auto& [time, report] : found->second.unwritten)
    journal.append(kFile, health_line(report, time));
  found->second.unwritten.clear();
}

const std::string& HealthHistory::text(const std::string& node) const {
  static const std::string none = "null";
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? none : found->second.text;
}

}  // namespace simplescale
