#include "runtime/config/show.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "runtime/base/words.hpp"
#include "runtime/config/check.hpp"
#include "runtime/config/offload.hpp"
#include "runtime/config/preflight.hpp"
#include "runtime/config/risk.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/signature.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {
namespace {

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string bytes_text(uint64_t bytes) {
  char text[32];
  const double mib = static_cast<double>(bytes) / (1u << 20);
  std::snprintf(text, sizeof text, mib < 1024 ? "%.1f MiB" : "%.2f GiB",
                mib < 1024 ? mib : mib / 1024);
  return text;
}

std::string plain(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", number);
  return text;
}

/// "3"; "2 or 3" if some trainers have one micro-batch less.
std::string accumulation_text(const Plan& plan) {
  const int64_t least = plan.leaves / plan.topology.world();
  const std::string most = std::to_string(plan.accumulation);
  return least == plan.accumulation ? most : std::to_string(least) + " or " + most;
}

/// "3 steps of 8 samples, then 2 of 16".
std::string warmup_text(const BatchSchedule& batch) {
  std::string text;
  const auto& runs = batch.runs();
  for (size_t i = 0; i + 1 < runs.size(); ++i) {
    const auto steps = static_cast<int64_t>(runs[i + 1].first - runs[i].first);
    text += (i == 0 ? counted(steps, "step") : ", then " + std::to_string(steps)) + " of " +
            std::to_string(runs[i].size) + (i == 0 ? " samples" : "");
  }
  return text;
}

std::string decay_text(const LearningRate& rate) {
  if (rate.schedule == Schedule::constant) return ", then constant";
  const char* shape = rate.schedule == Schedule::cosine       ? "a cosine"
                      : rate.schedule == Schedule::polynomial ? "a polynomial"
                                                              : "linear";
  const std::string stable = rate.decay_begin > rate.warmup_steps
                                 ? ", constant until step " + std::to_string(rate.decay_begin)
                                 : "";
  return stable + ", then " + shape + " down to " + plain(rate.minimum);
}

/// What moments in bf16 save of a trainer's state.
std::string saved_text(const Plan& plan) {
  if (plan.state.moments == DType::f32) return "";
  const uint64_t saved = StateFormat{.ema = plan.state.ema}.bytes() - plan.state.bytes();
  return " (moments in bf16 save " + bytes_text(plan.memory.state / plan.state.bytes() * saved) +
         ")";
}

/// The wave, why it was taken, and what it saves and takes.
std::string wave_text(const Config& config, const Plan& plan) {
  std::string text = std::to_string(plan.wave) +
                     (plan.wave == 1 ? " micro-batch passes" : " micro-batches pass") +
                     " a unit at a time (" + plan.wave_reason + ")";
  if (plan.topology.shards == 1) return text;
  text += "; a trainer sends " + bytes_text(bytes_in_group(config, plan, plan.wave)) +
          " a step inside its group";
  if (plan.wave > 1)
    text += " (" + bytes_text(bytes_in_group(config, plan, 1)) +
            " if each passes alone) and needs " +
            bytes_text(plan.memory.total() - memory_with_wave(config, plan, 1).total()) + " more";
  const auto shape = shape_after_loss(config, plan.topology);
  const int64_t then = shape ? plan.wave_of(plan.topology.shards_of(shape->size)) : plan.wave;
  if (then == plan.wave) return text;
  return text + "; " + std::to_string(then) + (then == 1 ? " passes" : " pass") + " in groups of " +
         counted(shape->size, "node") + ", after a node is lost";
}

/// Where experts are, why, and what a trainer would send if they were elsewhere.
std::string experts_text(const Config& config, const Plan& plan) {
  std::string text = std::string(to_string(plan.experts)) + " (" + plan.experts_reason + ")";
  if (!has_whole_experts(plan.shape, static_cast<size_t>(plan.topology.shards))) return text;
  const auto sends = [&](ExpertPlacement experts) {
    Plan with = plan;
    with.experts = experts;
    return bytes_text(bytes_in_group(config, with, plan.wave));
  };
  const bool resident = plan.experts == ExpertPlacement::resident;
  const ExpertPlacement other = resident ? ExpertPlacement::gathered : ExpertPlacement::resident;
  return text + "; a trainer sends " + sends(plan.experts) + " a step inside its group (" +
         sends(other) + " with " + to_string(other) + " experts)";
}

/// What to change so that gradients' sums leave a GPU whose state is in host memory, if they do not and
/// that saves memory; else "".
std::string kept_sums_text(const Config& config, const Plan& plan) {
  if (!offloads_state(plan.offload) || sums_leave_device(config, plan)) return "";
  const int64_t widest = widest_wave(plan.accumulation);
  std::string text;
  for (const int64_t wave : {widest, 2 * widest}) {
    Config one = config;
    one.train.global_batch_size = wave * plan.topology.world() * plan.micro_batch_size;
    one.parallel.offload = plan.offload;
    one.parallel.wave = 0;
    const Result<Plan> other = make_plan(one);
    if (!other.ok() || !sums_leave_device(one, *other) ||
        other->memory.total() >= plan.memory.total())
      continue;
    text += (text.empty() ? "train.global_batch_size = " : " or ") +
            std::to_string(one.train.global_batch_size);
  }
  if (text.empty()) return "";
  return "; the gradients' sums stay in the GPU's memory, since a trainer's " +
         std::to_string(plan.accumulation) + " micro-batches are several waves; with " + text +
         (config.parallel.wave > 0 ? " and parallel.wave = 0" : "") + " they are one";
}

/// What a GPU keeps in host memory, why, and what that saves and takes.
std::string offload_text(const Config& config, const Plan& plan) {
  std::string text = std::string(to_string(plan.offload)) + " (" + plan.offload_reason + ")";
  if (plan.offload == Offload::none) return text;
  const MemoryEstimate without = memory_with_offload(config, plan, Offload::none);
  return text + "; saves " + bytes_text(without.total() - plan.memory.total()) +
         " of a GPU's memory, takes " + bytes_text(plan.memory.host) +
         " more of the host's for each, and copies " +
         bytes_text(bytes_through_host(config, plan)) + " a step between them" +
         kept_sums_text(config, plan);
}

std::string plan_text(const Config& config, const Plan& plan) {
  const DeviceKind device = config.cluster.device;
  const Topology& t = plan.topology;
  const MemoryEstimate& memory = plan.memory;
  const LearningRate& rate = plan.learning_rate;
  const FlopsPerToken flops = flops_per_token(plan.shape);
  std::string out;
  auto line = [&](const char* name, const std::string& text) {
    out += "  " + padded(name, 14) + text + "\n";
  };
  const size_t active = active_parameters(plan.shape);
  line("model", std::to_string(plan.parameters) + " parameters, " +
                    (active < plan.parameters ? std::to_string(active) + " of a token, " : "") +
                    plain(flops.palm / 1e9) + " GFLOP per token (PaLM), " +
                    plain(flops.causal / 1e9) + " (causal, products only)");
  if (const std::string options = options_text(plan.shape); !options.empty())
    line("block", options);
  const char* exported = hugging_face_class(plan.shape);
  line("exports as", exported ? exported : "nothing: no class of transformers computes this model");
  line("strategy", std::string(to_string(t.strategy)) + ", " + counted(t.groups, "group") + " x " +
                       counted(t.shards, "shard") + " = " + counted(t.world(), "trainer") + " on " +
                       counted(t.nodes, "node") + " (" + t.reason + ")");
  line("batch", std::to_string(plan.global_batch_size) + " samples per step = " +
                    counted(t.world(), "trainer") + " x " + accumulation_text(plan) +
                    " accumulated x " + counted(plan.micro_batch_size, "sample") + " of " +
                    std::to_string(plan.shape.block_size) + " tokens");
  if (plan.accumulation > 1) line("wave", wave_text(config, plan));
  if (plan.shape.experts.count > 0) line("experts", experts_text(config, plan));
  if (device == DeviceKind::cuda) line("offload", offload_text(config, plan));
  if (plan.batch.runs().size() > 1) line("batch warm-up", warmup_text(plan.batch));
  line("length", counted(plan.max_steps, "step") + ", " + std::to_string(plan.max_iters) +
                     " iters, " + std::to_string(plan.max_tokens) + " tokens (" +
                     std::to_string(plan.tokens_per_step) + " per step)");
  line("learning rate", "up to " + plain(rate.peak) + " in " + counted(rate.warmup_steps, "step") +
                            decay_text(rate));
  if (config.train.optimizer == Optimizer::muon) {
    const std::vector<MuonMatrix> matrices = muon_matrices(units_of(plan.shape));
    line("optimizer", "Muon for the " + std::to_string(matrices.size()) +
                          " matrices of the blocks, AdamW for all other parameters");
  }
  for (const std::string& group : groups_text(config.train.group, units_of(plan.shape)))
    line("parameters", group);
  line("memory",
       "about " + bytes_text(memory.total()) +
           (device == DeviceKind::cuda ? " per GPU: state " : " per trainer: state ") +
           bytes_text(memory.state) + saved_text(plan) + ", parameters " +
           bytes_text(memory.parameters) + ", gradients " + bytes_text(memory.gradients) +
           ", activations " + bytes_text(memory.activations) +
           (memory.exchange > 0 ? ", tokens for experts " + bytes_text(memory.exchange) : "") +
           (memory.nccl > 0 ? ", NCCL " + bytes_text(memory.nccl) + " (not measured)" : ""));
  // A guess: no run has measured what a context and the libraries' kernels take.
  if (device == DeviceKind::cuda && config.supervision.warm_context)
    line("warm contexts", std::to_string(config.supervision.warm_processes) +
                              " per node; each takes about 0.5 GiB of every GPU (an estimate)");
  line("signature", signature_of(config, plan, arithmetic_of_host(config)).hash().hex());
  const Risk risk = risk_of(config, plan);
  line("lost trainer", "costs " + risk.trainer);
  line("lost node",
       "costs " + risk.node + (risk.avoid.empty() ? "" : "; to avoid it: " + risk.avoid));
  line("lost files", "costs " + risk.file_system);
  line("groups", "");
  const size_t shown = 16;
  for (int group = 0; group < t.groups && group < static_cast<int>(shown); ++group) {
    const TrainerPlace& first = t.trainers[static_cast<size_t>(group) * t.shards];
    std::string members = first.name();
    if (t.shards > 8) members += " … ";
    for (int shard = t.shards > 8 ? t.shards - 1 : 1; shard < t.shards; ++shard)
      members += (t.shards > 8 ? "" : " ") + t.trainers[first.rank + shard].name();
    line("", padded("g" + std::to_string(group), 5) + members);
  }
  if (t.groups > static_cast<int>(shown))
    line("", "… and " + std::to_string(t.groups - static_cast<int>(shown)) + " more");
  return out;
}

/// What a change of the key does to a run that exists.
const char* when_changed(schema::Matters matters) {
  switch (matters) {
    case schema::Matters::always:
      return "cannot change; `train CONFIG --from RUN` begins a new run with its weights";
    case schema::Matters::layout:
      return "may change; without train.deterministic it cannot";
    case schema::Matters::numerics:
      return "cannot change, unless --change-numerics names it; the steps from then on have other "
             "bits";
    case schema::Matters::recipe:
      return "may change; the steps from then on have other results";
    case schema::Matters::place:
      return "may change, if the same lies there";
    case schema::Matters::never:
      return "may change; the results stay the same";
  }
  return "";
}

/// The line of `file` that the problem names; the largest number for a problem of no line.
size_t line_of(const Status& problem, const std::string& file) {
  if (!problem.message().starts_with(file + ":")) return SIZE_MAX;
  const size_t line = std::strtoull(problem.message().c_str() + file.size() + 1, nullptr, 10);
  return line > 0 ? line : SIZE_MAX;
}

std::string table_of_keys(const LoadedConfig& loaded, bool only_changed) {
  const Config defaults, derived = with_derived_values(loaded.config);
  struct Row {
    std::string key, value, origin;
  };
  std::vector<Row> rows;
  size_t key_width = 0, value_width = 0;
  for (const schema::Key& key : schema::keys()) {
    if (only_changed &&
        (loaded.origin.at(key.full_name()) == "default" ||
         schema::to_toml(key.in(loaded.config)) == schema::to_toml(key.in(defaults))))
      continue;
    Row row{key.full_name(), schema::shown(key, loaded.config), ""};
    const std::string comes_to = schema::shown(key, derived);
    if (comes_to != row.value) row.value += "  (" + comes_to + ")";
    if (const auto origin = loaded.origin.find(row.key); origin != loaded.origin.end())
      row.origin = origin->second;
    key_width = std::max(key_width, row.key.size());
    value_width = std::max(value_width, std::min<size_t>(row.value.size(), 44));
    rows.push_back(std::move(row));
  }
  std::string out;
  for (const Row& row : rows)
    out += padded(row.key, key_width) + "  " + padded(row.value, value_width) + "  " + row.origin +
           "\n";
  return out;
}

}  // namespace

std::string show_config(const LoadedConfig& loaded) {
  const auto plan = make_plan(loaded);
  return table_of_keys(loaded, false) + "\nplan\n" +
         (plan.ok() ? plan_text(loaded.config, *plan)
                    : "  none: " + plan.status().message() + "\n");
}

std::string show_changed(const LoadedConfig& loaded) {
  return table_of_keys(loaded, true);
}

Result<std::string> explain_key(const std::string& name) {
  const size_t sections = static_cast<size_t>(std::ranges::count(name, '.'));
  std::string out;
  const Config defaults;
  for (const schema::Key& key : schema::keys()) {
    if (name != (sections == 0 ? key.section : key.full_name())) continue;
    if (sections == 0) {
      if (out.empty()) out = schema::section_comment(name) + std::string("\n\n");
      out += "  " + key.full_name() + " = " + schema::to_toml(key.in(defaults)) + "\n";
      continue;
    }
    out = key.full_name() + "\n  " + key.comment + "\n  must be: " + schema::expected(key);
    if (const std::string range = schema::to_string(key.range); !range.empty()) out += ", " + range;
    out += "\n  default: " + schema::to_toml(key.in(defaults)) +
           "\n  in a run that exists: " + when_changed(key.matters) + "\n";
    if (key.is_path) out += "  a relative path in a file is relative to that file\n";
  }
  if (!out.empty()) return out;
  const size_t dot = name.find('.');
  return Status(Code::usage,
                "unknown key " + name + "; nearest known key: " +
                    (dot == std::string::npos
                         ? schema::nearest_key("", name)
                         : schema::nearest_key(name.substr(0, dot), name.substr(dot + 1))));
}

std::vector<Status> validate_config(const CheckedConfig& checked) {
  std::vector<Status> problems = checked.problems;
  const LoadedConfig& loaded = checked.loaded;
  if (!checked.complete) return problems;  // the file's other lines are not known
  const auto add = [&](const Status& status) {
    const auto same = [&](const Status& other) { return other.message() == status.message(); };
    if (!status.ok() && std::ranges::none_of(problems, same)) problems.push_back(status);
  };
  Plan plan;
  for (const Status& problem : plan_problems(loaded.config, plan)) add(located(problem, loaded));
  add(located(check_log_rules(loaded.config), loaded));
  const DataConfig& data = loaded.config.data;
  if (data.source.empty() && data.blend.empty() && data.folder.empty())
    add(Status(Code::bad_config,
               loaded.file + ": data.source is not set: set it to text or token files"));
  std::ranges::stable_sort(problems, {},
                           [&](const Status& problem) { return line_of(problem, loaded.file); });
  return problems;
}

Result<std::string> valid_text(const LoadedConfig& loaded) {
  SS_ASSIGN(const Plan plan, make_plan(loaded));
  const Topology& t = plan.topology;
  return loaded.file + ": valid; " + std::to_string(plan.parameters) + " parameters, " +
         counted(t.groups, "group") + " x " + counted(t.shards, "shard") + ", " +
         counted(plan.max_steps, "step") + " of " + std::to_string(plan.tokens_per_step) +
         " tokens";
}

std::string collectives_between_hosts(const Config& config) {
  const std::string& trusted = config.transport.trusted_networks;
  const bool gpus = config.cluster.device != DeviceKind::cpu;
  if (trusted.empty())
    return std::string("collectives between hosts over encrypted TCP") +
           (gpus ? "; those of GPUs too, through host memory (slow: NCCL needs "
                   "transport.trusted_networks)"
                 : "");
  return "collectives between hosts on transport.trusted_networks (" + trusted + ") over UCX, " +
         (gpus ? "those of GPUs over NCCL, both " : "") +
         "not encrypted, between others over encrypted TCP";
}

}  // namespace simplescale
