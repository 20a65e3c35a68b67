// Values that follow from a config without planning (folders, seeds, threads), and the comparison
// of two configs.
#include "runtime/config/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "runtime/base/bare_path.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/topology.hpp"

namespace simplescale {

std::string run_folder(const Config& config) {
  return config.run.folder.empty() ? "runs/" + config.run.name : config.run.folder;
}

std::string data_folder(const Config& config) {
  return config.data.folder.empty() ? "data/" + config.run.name : config.data.folder;
}

std::string checkpoint_folder(const Config& config) {
  return config.checkpoint.folder.empty() ? run_folder(config) + "/checkpoints"
                                          : config.checkpoint.folder;
}

uint64_t data_seed(const Config& config) {
  return static_cast<uint64_t>(config.data.seed >= 0 ? config.data.seed : config.run.seed);
}

int threads_per_trainer(const Config& config, int cores, int trainers) {
  if (config.cluster.threads_per_trainer > 0)
    return static_cast<int>(config.cluster.threads_per_trainer);
  return std::max(1, cores / std::max(1, trainers));
}

void make_paths_absolute(Config& config) {
  for (const schema::Key& key : schema::keys())
    for (std::string* path : schema::paths_of(key, config)) {
      if (schema::is_relative(*path) || path->starts_with('/'))
        *path = std::filesystem::absolute(*path).lexically_normal().string();
      if (!path->ends_with("://")) *path = bare_path(*path);
    }
}

Config with_derived_values(const Config& config) {
  Config c = config;
  c.data.seed = static_cast<int64_t>(data_seed(c));
  c.run.folder = run_folder(c);
  c.data.folder = data_folder(c);
  c.checkpoint.folder = checkpoint_folder(c);
  if (c.tokenizer.path.empty() && c.tokenizer.train_on.empty())
    c.tokenizer.train_on = c.data.source;
  if (const auto shape = model_shape(config); shape.ok()) {
    c.model = model_config(*shape, config.model.preset);
    if (c.tokenizer.vocab == 0) c.tokenizer.vocab = shape->vocab;
  }
  if (const auto topology = plan_topology(config); topology.ok()) {
    c.parallel.strategy = topology->strategy;
    c.parallel.group_nodes = topology->group_nodes;
    c.checkpoint.peer_every_steps = peer_every_steps(config, *topology);
  }
  if (const auto plan = make_plan(config); plan.ok()) {
    c.train.global_batch_size = plan->global_batch_size;
    c.parallel.wave = plan->wave;
    c.parallel.offload = plan->offload;
    if (plan->shape.experts.count > 0) c.parallel.experts = plan->experts;
    c.train.min_learning_rate = plan->learning_rate.minimum;
    const auto warmup_steps = static_cast<uint64_t>(plan->learning_rate.warmup_steps);
    c.train.warmup_iters = static_cast<int64_t>(plan->iters(plan->batch.samples(warmup_steps)));
    c.train.max_steps = plan->max_steps;
    c.train.max_iters = plan->max_iters;
    c.train.max_tokens = plan->max_tokens;
  }
  return c;
}

Config config_of(const Config& config, const BlendSource& source) {
  Config c = config;
  c.data.blend.clear();
  c.data.stage.clear();
  c.data.source = source.source;
  c.data.text_key = source.text_key.value_or(config.data.text_key);
  c.data.loss_mask_key = source.loss_mask_key.value_or(config.data.loss_mask_key);
  c.data.format = source.format.value_or(config.data.format);
  c.data.token_bytes = source.token_bytes.value_or(config.data.token_bytes);
  return c;
}

namespace {
/// Two names of one place, as far as the disk tells: through a link, or with "..".
bool same_place(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || (a.starts_with('/') && b.starts_with('/') &&
                    std::filesystem::weakly_canonical(a, error) ==
                        std::filesystem::weakly_canonical(b, error) &&
                    !error);
}

/// The value of a key that is a place; "" for other keys.
std::string place_in(const schema::Key& key, const Config& config) {
  const schema::Ref value = key.in(config);
  const auto* text = std::get_if<std::string*>(&value);
  return text ? **text : "";
}
}  // namespace

Config comparable(const Config& config) {
  Config c = config;
  make_paths_absolute(c);
  c = with_derived_values(c);
  if (make_plan(config).ok()) c.train.max_iters = c.train.max_tokens = 0;  // max_steps says it
  // What is not said is read as u16, and a header of another width contradicts 2.
  if (c.data.token_bytes == 0) c.data.token_bytes = 2;
  // Runs of before the key have bpe. The kind means nothing beside a path, which differs by itself.
  TokenizerKind& kind = c.tokenizer.kind;
  if (!c.tokenizer.path.empty() || kind == TokenizerKind::automatic) kind = TokenizerKind::bpe;
  return c;
}

ConfigDifference diff(const Config& given_a, const Config& given_b) {
  Config a = given_a, b = given_b;
  make_paths_absolute(a);
  make_paths_absolute(b);
  Config was = comparable(a), now = comparable(b);
  // What warmup_iters comes to depends on the layout: schedule_change() tells that, since the user has
  // not changed the key.
  const auto old_plan = make_plan(a), new_plan = make_plan(b);
  if (old_plan.ok() && new_plan.ok() &&
      (old_plan->learning_rate.warmup_steps == new_plan->learning_rate.warmup_steps ||
       a.train.warmup_iters == b.train.warmup_iters))
    was.train.warmup_iters = now.train.warmup_iters;
  // Without sources the run trains on data.folder.
  const auto trains_on_folder = [](const Config& c) {
    return c.data.source.empty() && c.data.blend.empty();
  };
  const bool folder_is_source = trains_on_folder(a) || trains_on_folder(b);
  const bool layout_matters = !a.train.deterministic || !b.train.deterministic;
  ConfigDifference differences;
  for (const schema::Key& key : schema::keys()) {
    const std::string name = key.full_name();
    if (name == "run.folder" || name == "run.name") continue;  // a run may be moved
    if (name == "run.change_numerics") continue;               // of one start
    const bool is_place =
        key.matters == schema::Matters::place || (folder_is_source && name == "data.folder");
    const std::string from = is_place ? place_in(key, was) : "",
                      to = is_place ? place_in(key, now) : "";
    const bool moved = is_place && !from.empty() && !to.empty();
    if (moved && (same_place(from, to) || place_in(key, a) == place_in(key, b))) continue;
    const bool defines = key.matters == schema::Matters::always ||
                         key.matters == schema::Matters::numerics || (is_place && !moved) ||
                         (key.matters == schema::Matters::layout && layout_matters);
    const bool derived = defines || moved || key.matters == schema::Matters::recipe;
    KeyDifference difference{name, schema::to_toml(key.in(derived ? was : a)),
                             schema::to_toml(key.in(derived ? now : b))};
    if (difference.was == difference.now) continue;
    if (key.is_secret) {
      difference.was = schema::shown(key, a);
      difference.now = schema::shown(key, b);
      if (difference.was == difference.now) difference.now = "another (secret)";
    }
    (defines ? differences.defining : differences.allowed).push_back(std::move(difference));
  }
  return differences;
}

std::string schedule_change(const Config& before, const Config& now, int64_t step,
                            const std::vector<RateChange>& changes) {
  auto was = make_plan(before), is = make_plan(now);
  if (was.ok()) was->learning_rate.changes = changes;
  if (is.ok() && now.train.learning_rate == before.train.learning_rate)
    is->learning_rate.changes = changes;
  if (!was.ok() || !is.ok() || was->learning_rate == is->learning_rate) return "";
  const auto rate = [step](const Plan& plan) {
    return fmt::format("{:.3g}", plan.learning_rate.at(step));
  };
  const int64_t old_end = was->learning_rate.steps, end = is->learning_rate.steps;
  const int64_t old_warmup = was->learning_rate.warmup_steps,
                warmup = is->learning_rate.warmup_steps;
  const bool cosine = is->learning_rate.schedule == Schedule::cosine;
  const bool constant = is->learning_rate.schedule == Schedule::constant;
  if (constant && was->learning_rate.schedule == Schedule::constant &&
      step >= std::max(old_warmup, warmup) &&
      is->learning_rate.at(step) == was->learning_rate.at(step))
    return "";  // no decay ends
  const bool by_layout =
      old_end == end && old_warmup != warmup && before.train.warmup_iters == now.train.warmup_iters;
  return (by_layout ? fmt::format("the warm-up takes {} instead of {} steps in this layout, since "
                                  "train.warmup_iters counts micro-batches of a trainer",
                                  warmup, old_warmup)
          : old_end == end || constant || is->learning_rate.schedule != was->learning_rate.schedule
              ? "the learning rate follows its new schedule"
              : fmt::format("the learning rate's {}, planned to end at step {}, now "
                            "ends at step {}",
                            cosine ? "cosine" : "decay", old_end, end)) +
         fmt::format(": step {} has learning rate {} instead of {}", step + 1, rate(*is),
                     rate(*was));
}

}  // namespace simplescale
