#include "tools/http/prometheus.hpp"

#include <map>

namespace simplescale {

namespace {

using nlohmann::json;

/// Escapes \, " and newlines in the value of a label.
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

class Exposition {
 public:
  explicit Exposition(std::string run) : run_("run=\"" + escaped(run) + "\"") {}

  /// Adds one sample of a metric. All samples of a metric must be added one after the other.
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

void add_tasks(Exposition& out, const json& tasks) {
  constexpr struct {
    const char *member, *name, *help;
  } kFigures[] = {
      {"acc", "task_accuracy", "Newest accuracy of a task, 0 to 1."},
      {"acc_norm", "task_normalized_accuracy", "The same by character."},
      {"word_perplexity", "task_word_perplexity", "Newest perplexity of a task's texts by word."},
      {"byte_perplexity", "task_byte_perplexity", "The same by byte."}};
  if (!tasks.is_object()) return;
  for (const auto& figure : kFigures)
    for (const auto& [task, scores] : tasks.items())
      out.add(figure.name, "gauge", figure.help, at(scores, figure.member),
              "task=\"" + escaped(task) + "\"");
}

void add_run(Exposition& out, const json& status, const json& metrics) {
  out.add("step", "gauge", "Newest committed step.", at(status, "step"));
  out.add("max_steps", "gauge", "Steps of the whole run.", at(status, "max_steps"));
  out.add("generation", "gauge", "Membership generation.", at(status, "generation"));
  out.add("groups", "gauge", "Groups that train.", at(status, "groups"));
  out.add("incidents_total", "counter", "Incidents since the run began.", at(status, "incidents"));
  out.add("tokens_per_second", "gauge", "Tokens per second.", at(status, "tokens_per_second"));
  out.add("loss", "gauge", "Training loss in nats per token.", at(status, "loss"));
  out.add("val_loss", "gauge", "Newest validation loss in nats per token.", at(status, "val_loss"));
  const auto add_losses = [&](const char* member, const char* name, const char* label,
                              const char* help) {
    const json losses = at(status, member);
    if (!losses.is_object()) return;
    for (const auto& [of, loss] : losses.items())
      out.add(name, "gauge", help, loss, std::string(label) + "=\"" + escaped(of) + "\"");
  };
  add_losses("val_losses", "val_loss_of_source", "source",
             "Newest validation loss of a source of data.blend.");
  add_losses("val_loss_at", "val_loss_at_length", "length",
             "Newest validation loss with shorter samples (train.validation_lengths).");
  add_losses("val_loss_by_position", "val_loss_by_position", "position",
             "Newest validation loss from this position in a sample to before twice it.");
  add_tasks(out, at(status, "tasks"));
  out.add("grad_norm", "gauge", "Norm of the gradient before clipping.", at(metrics, "grad_norm"));
  out.add("learning_rate", "gauge", "Learning rate.", at(metrics, "lr"));
  out.add("step_milliseconds", "gauge", "Duration of the newest step.", at(metrics, "step_ms"));
  out.add("model_flops_utilization", "gauge", "MFU, 0 to 1.", at(metrics, "mfu"));
  out.add("run_state", "gauge", "1 for the state that the run is in.", json(1),
          label("state", status, "state"));
}

void add_trainers(Exposition& out, const json& nodes) {
  const auto each = [&](const char* name, const char* help, auto&& value) {
    for (const json& node : nodes)
      for (const json& trainer : at(node, "trainers"))
        out.add(name, "gauge", help, value(trainer),
                label("node", node, "name") + "," + label("trainer", trainer, "name"));
  };
  each("trainer_up", "1 if the trainer trains.", [](const json& trainer) {
    const json what = at(trainer, "state");
    return json(what == "training" || what == "draining" || what == "finished" ? 1 : 0);
  });
  each("trainer_slowness", "Busy time over the median of all trainers, smoothed.",
       [](const json& trainer) { return at(trainer, "slowness"); });
}

void add_health(Exposition& out, const json& nodes) {
  const auto each = [&](const char* name, const char* help, const char* key) {
    for (const json& node : nodes)
      out.add(name, "gauge", help, at(at(node, "health"), key), label("node", node, "name"));
  };
  each("node_cpu", "Busy fraction of all cores, 0 to 1.", "cpu");
  each("node_memory", "Used fraction of the memory, 0 to 1.", "memory");
  each("node_disk", "Used fraction of the run folder's disk, 0 to 1.", "disk");
  each("node_received_megabytes_per_second", "Network input.", "received_mb_per_s");
  each("node_sent_megabytes_per_second", "Network output.", "sent_mb_per_s");
  for (const std::string part : {"data", "forward", "backward", "optimizer", "wait"})
    for (const json& node : nodes) {
      const json times = at(at(node, "health"), "busiest");
      out.add(
          "node_step_part_milliseconds", "gauge",
          "Parts of the newest step of the node's busiest trainer; the other parts include wait.",
          at(times, (part + "_ms").c_str()),
          label("node", node, "name") + "," + label("trainer", times, "name") + ",part=\"" + part +
              "\"");
    }
}

void add_gpus(Exposition& out, const json& nodes) {
  const auto each = [&](const char* name, const char* help, const char* key) {
    for (const json& node : nodes) {
      int index = 0;
      for (const json& gpu : at(at(node, "health"), "gpus"))
        out.add(name, "gauge", help, at(gpu, key),
                label("node", node, "name") + ",gpu=\"" + std::to_string(index++) + "\"");
    }
  };
  each("gpu_utilization", "Busy fraction, 0 to 1.", "utilization");
  each("gpu_temperature_celsius", "Temperature.", "temperature_c");
  each("gpu_power_watts", "Power.", "power_w");
  each("gpu_memory", "Used fraction of the memory, 0 to 1.", "memory_used");
  each("gpu_ecc_errors", "Uncorrected ECC errors since the driver was loaded.", "ecc_errors");
  each("gpu_clock_megahertz", "Clock of the multiprocessors.", "clock_mhz");
  each("gpu_xids", "Critical Xid errors since the agent started.", "xids");
}

}  // namespace

std::string prometheus_text(const json& status, const json& metrics) {
  const json run = at(status, "run");
  Exposition out(run.is_string() ? run.get<std::string>() : "");
  add_run(out, status, metrics);
  const json nodes = at(status, "nodes");
  if (!nodes.is_array()) return std::move(out).text();
  std::map<std::string, int> by_state;
  for (const json& node : nodes) ++by_state[label("state", node, "state")];
  for (const auto& [labels, count] : by_state)
    out.add("nodes", "gauge", "Nodes by state.", json(count), labels);
  add_trainers(out, nodes);
  add_health(out, nodes);
  add_gpus(out, nodes);
  return std::move(out).text();
}

}  // namespace simplescale
