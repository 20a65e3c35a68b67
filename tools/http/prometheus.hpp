// A run's status in Prometheus' text format
// (https://prometheus.io/docs/instrumenting/exposition_formats).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace simplescale {

/// status: control/status.json; metrics: a line of metrics.jsonl, or null. Missing and null values
/// give no sample. Pure.
std::string prometheus_text(const nlohmann::json& status, const nlohmann::json& metrics);

}  // namespace simplescale
