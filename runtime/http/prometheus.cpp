#include "runtime/http/prometheus.hpp"

#include <map>

namespace simplescale {

namespace {

using nlohmann::json;

/// \, " and newlines are escaped in a label's value.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

class Page {
 public:
  explicit Page(std::string run) : run_("run=\"" + escaped(run) + "\"") {}

  /// One sample of a metric; all samples of a metric have to follow each other.
  void add(const std::string& name, const char* type, const char* help, const json& value,
           const std::string& labels = "") {
    if (!value.is_number()) return;
    const std::string full = "simplescale_" + name;
    if (full != last_)
      text_ += "# HELP " + full + " " + help + "\n# TYPE " + full + " " + type + "\n";
    last_ = full;
    text_ += full + "{" + run_ + (labels.empty() ? "" : "," + labels) + "} " + value.dump() + "\n";
  }
  std::string text() && { return std::move(text_); }

 private:
  const std::string run_;
  std::string text_, last_;
};

std::string label(const char* name, const json& object, const char* key) {
  const json value = object.is_object() && object.contains(key) ? object[key] : json();
  return std::string(name) + "=\"" + (value.is_string() ? escaped(value.get<std::string>()) : "") +
         "\"";
}

json at(const json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object[key] : json();
}

}  // namespace

std::string prometheus_text(const json& status, const json& metrics) {
  const json run = at(status, "run");
  Page page(run.is_string() ? run.get<std::string>() : "");
  page.add("step", "gauge", "Newest committed step.", at(status, "step"));
  page.add("max_steps", "gauge", "Steps of the whole run.", at(status, "max_steps"));
  page.add("generation", "gauge", "Membership generation.", at(status, "generation"));
  page.add("groups", "gauge", "Groups that train.", at(status, "groups"));
  page.add("incidents_total", "counter", "Incidents since the run began.", at(status, "incidents"));
  page.add("tokens_per_second", "gauge", "Tokens a second.", at(status, "tokens_per_second"));
  page.add("loss", "gauge", "Training loss, nats a token.", at(status, "loss"));
  page.add("grad_norm", "gauge", "Norm of the gradient before clipping.", at(metrics, "grad_norm"));
  page.add("learning_rate", "gauge", "Learning rate.", at(metrics, "lr"));
  page.add("step_milliseconds", "gauge", "Time of the newest step.", at(metrics, "step_ms"));
  page.add("model_flops_utilization", "gauge", "MFU, 0 to 1.", at(metrics, "mfu"));
  const std::string state = label("state", status, "state");
  page.add("run_state", "gauge", "1 for the state that the run is in.", json(1), state);
  const json nodes = at(status, "nodes");
  std::map<std::string, int> by_state;
  if (nodes.is_array())
    for (const json& node : nodes) ++by_state[label("state", node, "state")];
  for (const auto& [labels, count] : by_state)
    page.add("nodes", "gauge", "Nodes by state.", json(count), labels);
  const auto each_trainer = [&](const char* name, const char* help, auto&& value) {
    if (!nodes.is_array()) return;
    for (const json& node : nodes)
      for (const json& trainer : at(node, "trainers"))
        page.add(name, "gauge", help, value(trainer),
                 label("node", node, "name") + "," + label("trainer", trainer, "name"));
  };
  each_trainer("trainer_up", "1 if the trainer trains.", [](const json& trainer) {
    const json what = at(trainer, "state");
    return json(what == "training" || what == "draining" || what == "finished" ? 1 : 0);
  });
  each_trainer("trainer_slowness", "Busy time over the median of all trainers, smoothed.",
               [](const json& trainer) { return at(trainer, "slowness"); });
  const auto each_node = [&](const char* name, const char* help, const char* key) {
    if (!nodes.is_array()) return;
    for (const json& node : nodes)
      page.add(name, "gauge", help, at(at(node, "health"), key), label("node", node, "name"));
  };
  each_node("node_cpu", "Busy share of all cores, 0 to 1.", "cpu");
  each_node("node_memory", "Used share of the memory, 0 to 1.", "memory");
  each_node("node_disk", "Used share of the run folder's disk, 0 to 1.", "disk");
  each_node("node_received_megabytes_per_second", "Network in.", "received_mb_per_s");
  each_node("node_sent_megabytes_per_second", "Network out.", "sent_mb_per_s");
  for (const std::string part : {"data", "forward", "backward", "optimizer", "wait"}) {
    if (!nodes.is_array()) break;
    for (const json& node : nodes) {
      const json times = at(at(node, "health"), "busiest");
      page.add("node_step_part_milliseconds", "gauge",
               "Where the newest step of the node's busiest trainer went; waiting is part of the "
               "others.",
               at(times, (part + "_ms").c_str()),
               label("node", node, "name") + "," + label("trainer", times, "name") + ",part=\"" +
                   part + "\"");
    }
  }
  const auto each_gpu = [&](const char* name, const char* help, const char* key) {
    if (!nodes.is_array()) return;
    for (const json& node : nodes) {
      int index = 0;
      for (const json& gpu : at(at(node, "health"), "gpus"))
        page.add(name, "gauge", help, at(gpu, key),
                 label("node", node, "name") + ",gpu=\"" + std::to_string(index++) + "\"");
    }
  };
  each_gpu("gpu_utilization", "0 to 1.", "utilization");
  each_gpu("gpu_temperature_celsius", "Temperature.", "temperature_c");
  each_gpu("gpu_power_watts", "Power.", "power_w");
  each_gpu("gpu_memory", "Used share, 0 to 1.", "memory_used");
  each_gpu("gpu_ecc_errors", "Uncorrected, since the driver was loaded.", "ecc_errors");
  each_gpu("gpu_clock_megahertz", "Of the multiprocessors.", "clock_mhz");
  each_gpu("gpu_xids", "Critical errors since the agent started.", "xids");
  return std::move(page).text();
}

}  // namespace simplescale
