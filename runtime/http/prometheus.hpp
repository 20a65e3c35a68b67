// The status page as Prometheus' text format
// (https://prometheus.io/docs/instrumenting/exposition_formats).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace simplescale {

/// status: as in control/status.json; metrics: a line of metrics.jsonl, or null. What is missing or
/// null in them is left out. Pure.
std::string prometheus_text(const nlohmann::json& status, const nlohmann::json& metrics);

}  // namespace simplescale
