#include "runtime/config/check.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/network.hpp"
#include "runtime/base/words.hpp"
#include "runtime/config/blend.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/signature.hpp"
#include "runtime/config/wandb_names.hpp"
#include "runtime/object_store/s3_url.hpp"
#include "runtime/training/skipped_samples.hpp"

namespace simplescale {

bool is_run_name(const std::string& text) {
  return !text.empty() && text.size() <= 64 && text[0] != '.' && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

namespace {

/// A key with its value: "train.learning_rate = 0.0004".
std::string shown(const char* full_name, const Config& config) {
  return std::string(full_name) + " = " + schema::to_toml(schema::find(full_name)->in(config));
}

Status bad(const char* full_name, const Config& config, const std::string& text) {
  return Status(Code::bad_config, shown(full_name, config) + " " + text);
}

/// Best are the checkpoints of steps that are validated, so such steps must exist.
std::string wrong_keep_best(const Config& c) {
  const int64_t validated = c.train.validation_every_steps, saved = c.checkpoint.disk_every_steps;
  if (c.checkpoint.keep_best == 0) return "";
  if (validated == 0 || c.train.validation_samples == 0)
    return "needs train.validation_every_steps and train.validation_samples above 0";
  if (saved == 0) return "needs checkpoint.disk_every_steps above 0";
  if (validated % saved != 0 && saved % validated != 0)
    return "needs checkpoints of validated steps: checkpoint.disk_every_steps = " +
           std::to_string(saved) +
           " must be a multiple of train.validation_every_steps = " + std::to_string(validated) +
           ", or the other way round";
  return "";
}

void check_faults(const Config& config, std::vector<Status>& problems) {
  const auto add = [&](const std::string& text) {
    problems.emplace_back(Code::bad_config, "inject.faults: " + text);
  };
  for (const FaultSpec& fault : config.inject.faults) {
    const auto& kinds = fault_kinds();
    if (std::find(kinds.begin(), kinds.end(), fault.kind) == kinds.end())
      add("unknown kind \"" + fault.kind + "\"; known are " + joined(kinds));
    if (fault.step < 1) add("step must be at least 1, the first step");
    if (fault.target.empty() && fault.kind != "kill_supervisor")
      add("a " + fault.kind + " needs a target such as \"n1\" or \"n1.0\"");
  }
}

/// The message does not show the value, which may hold a password.
void check_urls(const Config& c, std::vector<Status>& problems) {
  const auto check = [&](const char* key, const std::string& url) {
    const auto parsed = parse_s3_url(url);
    if (!parsed.ok()) problems.push_back(parsed.status().in(key));
  };
  if (!c.checkpoint.upload.empty()) check("checkpoint.upload", c.checkpoint.upload);
  if (is_s3_url(c.run.from)) check("run.from", c.run.from);
  if (is_s3_url(c.data.source)) check("data.source", c.data.source);
  for (const BlendSource& source : c.data.blend)
    if (is_s3_url(source.source)) check("data.blend", source.source);
}

/// Why a number is another one in fp32, in which the model and its optimizer are computed; "": it is
/// the same, rounded.
std::string wrong_in_fp32(double value, const schema::Range& range) {
  const auto rounded = static_cast<float>(value);
  if (value == 0 || !std::isfinite(value)) return "";
  if (std::abs(rounded) < std::numeric_limits<float>::min())
    return "is 0 in fp32, in which it is used: the smallest number is 1.2e-38";
  if (std::isinf(rounded)) return "is infinite in fp32, in which it is used";
  if (range.below_max && value < range.max && rounded >= 1)
    return "is 1 in fp32, in which it is used: the largest number "
           "below it is 0.99999994";
  return "";
}

void check_fp32(const Config& config, std::vector<Status>& problems) {
  for (const schema::Key& key : schema::keys()) {
    const std::string name = key.full_name();
    if (!name.starts_with("model.") && !name.starts_with("train.")) continue;
    std::vector<double> values;
    const auto value = key.in(config);
    if (const auto* one = std::get_if<double*>(&value)) values = {**one};
    if (const auto* pair = std::get_if<schema::Pair*>(&value))
      values.assign((*pair)->begin(), (*pair)->end());
    for (const double number : values)
      if (const std::string wrong = wrong_in_fp32(number, key.range); !wrong.empty()) {
        problems.push_back(bad(name.c_str(), config, wrong));
        break;
      }
  }
  for (const ParameterGroup& group : config.train.group)
    for (const double number : {group.learning_rate_factor, group.weight_decay.value_or(0)})
      if (const std::string wrong = wrong_in_fp32(number, {}); !wrong.empty())
        problems.emplace_back(Code::bad_config,
                              "train.group: a number of \"" + group.pattern + "\" " + wrong);
}

Status check_model(const Config& c) {
  if (c.model.preset.empty() && c.model.dim == 0) return {};  // make_plan() says what is missing
  SS_ASSIGN(const ModelShape shape, model_shape(c));
  if (c.tokenizer.vocab <= shape.vocab) return {};
  return bad("tokenizer.vocab", c,
             "is more than the model's vocab = " + std::to_string(shape.vocab));
}

/// Samples of a validation are cut into shorter ones of one length.
Status check_validation_lengths(const Config& c) {
  if (c.train.validation_lengths.empty()) return {};
  if (c.train.validation_samples == 0)
    return bad("train.validation_lengths", c, "needs train.validation_samples above 0");
  const Result<ModelShape> shape = model_shape(c);
  if (!shape.ok()) return {};  // check_model() says why
  for (const int64_t length : c.train.validation_lengths)
    if (shape->block_size % length != 0)
      return bad("train.validation_lengths", c,
                 "has " + std::to_string(length) + ", which does not divide model.block_size = " +
                     std::to_string(shape->block_size));
  return {};
}

/// What experts do not work with, by name.
Status check_experts(const Config& c) {
  const Result<ModelShape> shape = model_shape(c);
  if (!shape.ok()) return {};  // check_model() says why
  const TrainConfig& train = c.train;
  if (shape->experts.count == 0) {
    if (train.router_balance_loss > 0 || train.router_z_loss > 0)
      return bad(train.router_z_loss > 0 ? "train.router_z_loss" : "train.router_balance_loss", c,
                 "has no effect without experts; remove it, or set model.experts");
    return {};
  }
  if (c.cluster.device == DeviceKind::cuda)
    return bad("cluster.device", c,
               "cannot be \"cuda\" with model.experts: only CPU trainers compute experts yet");
  if (train.fp8) return bad("train.fp8", c, "cannot be true with model.experts yet");
  return {};
}

Status check_fp8(const Config& c) {
  if (!c.train.fp8 || c.cluster.device == DeviceKind::cpu) return {};
  const Result<ModelShape> shape = model_shape(c);
  if (!shape.ok()) return {};  // check_model() says why
  const Status fine = validate_fp8(*shape, c.train.micro_batch_size);
  return fine.ok() ? fine : bad("train.fp8", c, "cannot be: " + fine.message());
}

Status check_gpu_heads(const Config& c) {
  if (c.cluster.device != DeviceKind::cuda) return {};
  const Result<ModelShape> shape = model_shape(c);
  if (!shape.ok()) return {};  // check_model() says why
  const Status fine = validate_gpu_heads(*shape, c.train.precision);
  return fine.ok() ? fine : bad("cluster.device", c, "cannot be \"cuda\": " + fine.message());
}

}  // namespace

std::vector<Status> check_combinations(const Config& c) {
  std::vector<Status> problems;
  const auto unless = [&](bool fine, const char* full_name, const std::string& text) {
    if (!fine) problems.push_back(bad(full_name, c, text));
  };
  unless(is_run_name(c.run.name), "run.name",
         "must be 1 to 64 letters, digits, '-', '_' or '.', and begin with a letter, digit or '_'");
  if (Status model = check_model(c); !model.ok()) problems.push_back(model);
  unless(!c.run.with_optimizer || !c.run.from.empty(), "run.with_optimizer", "needs run.from");
  const double minimum = c.train.min_learning_rate;
  unless(minimum >= 0 || minimum == -1, "train.min_learning_rate",
         "must be -1 (a tenth of learning_rate) or at least 0");
  for (const Status& of_model :
       {check_experts(c), check_fp8(c), check_gpu_heads(c), check_validation_lengths(c)})
    if (!of_model.ok()) problems.push_back(of_model);
  unless(minimum <= c.train.learning_rate, "train.min_learning_rate",
         "is above " + shown("train.learning_rate", c));
  unless(
      c.supervision.silence_ms > c.supervision.heartbeat_ms, "supervision.silence_ms",
      "must be more than supervision.heartbeat_ms = " + std::to_string(c.supervision.heartbeat_ms));
  unless(c.supervision.backoff_max_ms >= c.supervision.backoff_ms, "supervision.backoff_max_ms",
         "is less than supervision.backoff_ms = " + std::to_string(c.supervision.backoff_ms));
  unless(c.train.tasks_every_steps == 0 || !c.train.tasks.empty(), "train.tasks_every_steps",
         "needs train.tasks");
  unless(c.metrics.trace_steps.empty() || c.metrics.trace_events >= 2, "metrics.trace_steps",
         "needs metrics.trace_events of at least 2");
  if (c.metrics.wandb) {
    const std::string project = wrong_wandb_project(c.metrics.wandb_project),
                      tags = wrong_wandb_tags(c.metrics.wandb_tags);
    unless(project.empty(), "metrics.wandb_project", project);
    unless(tags.empty(), "metrics.wandb_tags", tags);
  }
  unless(is_token_width(c.data.token_bytes), "data.token_bytes",
         "must be 2 or 4, or 0 for not said");
  for (Status& problem : check_blend(c)) problems.push_back(std::move(problem));
  if (const Status names = check_change_names(change_names(c)); !names.ok())
    unless(false, "run.change_numerics", names.message());
  if (const auto skipped = SkippedSamples::parse(c.data.skip_samples); !skipped.ok())
    unless(false, "data.skip_samples", skipped.status().message());
  if (const auto trusted = parse_trusted_networks(c.transport.trusted_networks); !trusted.ok())
    unless(false, "transport.trusted_networks",
           "has an entry that cannot be trusted: " + trusted.status().message());
  check_urls(c, problems);
  const std::string wrong = wrong_keep_best(c);
  unless(wrong.empty(), "checkpoint.keep_best", wrong);
  check_faults(c, problems);
  check_fp32(c, problems);
  return problems;
}

Status located(const Status& status, const LoadedConfig& loaded) {
  if (status.ok()) return status;
  const std::string& message = status.message();
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.");
  const auto origin = loaded.origin.find(message.substr(0, end));
  if (origin == loaded.origin.end() || origin->second == "default") return status.in(loaded.file);
  return status.in(origin->second);
}

}  // namespace simplescale
