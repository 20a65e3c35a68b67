#include "runtime/config/blend.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "runtime/base/words.hpp"
#include "runtime/config/check.hpp"
#include "runtime/config/schema.hpp"

namespace simplescale {

bool is_token_width(int64_t bytes) {
  return bytes == 0 || bytes == 2 || bytes == 4;
}

namespace {

std::string stage_name(const BlendStage& stage) {
  return "data.stage: the stage from_tokens = " + std::to_string(stage.from_tokens);
}

std::vector<std::string> names_of(const Config& config) {
  std::vector<std::string> names;
  for (const BlendSource& source : config.data.blend) names.push_back(source.name);
  return names;
}

Status check_weight(const std::string& what, double weight) {
  if (std::isfinite(weight) && weight > 0) return {};
  return bad_config(what + " has weight = " + schema::to_toml(&weight) +
                    ": a weight must be above 0; leave it out where the source is not used");
}

Status check_source(const BlendSource& source) {
  const std::string shown = "data.blend: \"" + source.name + "\"";
  if (!is_run_name(source.name))
    return bad_config(shown +
                      ": a name must be 1 to 64 letters, digits, '-', '_' or '.', and begin with a "
                      "letter, digit or '_'");
  if (source.source.empty()) return bad_config(shown + " has an empty source");
  if (!is_token_width(source.token_bytes.value_or(0)))
    return bad_config(shown + " has token_bytes = " + std::to_string(*source.token_bytes) +
                      ": it must be 2 or 4, or 0 for not said");
  if (source.text_key && source.text_key->empty())
    return bad_config(shown + " has an empty text_key");
  return source.weight ? check_weight(shown, *source.weight) : Status();
}

/// The weights of a stage in the order of data.blend; 0: not used.
std::vector<double> weights_of(const Config& config, const BlendStage* stage) {
  std::vector<double> weights;
  for (const BlendSource& source : config.data.blend) {
    double weight = stage ? 0 : source.weight.value_or(0);
    if (stage)
      for (const auto& [name, value] : stage->weights)
        if (name == source.name) weight = value;
    weights.push_back(weight);
  }
  return weights;
}

Status check_stage(const Config& config, const BlendStage& stage, int64_t after) {
  if (stage.from_tokens <= after)
    return bad_config(stage_name(stage) + " must begin after " +
                      (after == 0 ? "token 0, where data.blend begins"
                                  : "the stage before it, from_tokens = " + std::to_string(after)));
  const std::vector<std::string> names = names_of(config);
  for (const auto& [name, weight] : stage.weights) {
    if (std::ranges::find(names, name) == names.end()) {
      const std::string meant = did_you_mean(name, names);
      return bad_config(stage_name(stage) + " names the source \"" + name +
                        "\", which data.blend lacks" +
                        (meant.empty() ? "; it has " + joined(names) : meant));
    }
    SS_RETURN_IF_ERROR(check_weight(stage_name(stage) + ": \"" + name + "\"", weight));
  }
  return whole_weights(weights_of(config, &stage)).status().in(stage_name(stage));
}

}  // namespace

std::vector<Status> check_blend(const Config& config) {
  std::vector<Status> problems;
  const auto add = [&](const Status& status) {
    if (!status.ok()) problems.push_back(status);
  };
  const auto& [blend, stages] = std::tie(config.data.blend, config.data.stage);
  if (blend.empty()) {
    if (!stages.empty()) add(bad_config("data.stage needs the sources of [[data.blend]]"));
    return problems;
  }
  if (!config.data.source.empty())
    add(bad_config("data.blend and data.source exclude each other: set one"));
  if (blend.size() > Mixture::sources_max)
    add(bad_config("data.blend has " + std::to_string(blend.size()) + " sources, at most " +
                   std::to_string(Mixture::sources_max) + " can be mixed"));
  std::set<std::string> names;
  for (const BlendSource& source : blend) {
    add(check_source(source));
    if (!names.insert(source.name).second)
      add(bad_config("data.blend: two sources have the name \"" + source.name + "\""));
  }
  if (problems.empty())
    if (const auto weights = whole_weights(weights_of(config, nullptr)); !weights.ok())
      add(bad_config("data.blend " + weights.status().message()));
  int64_t after = 0;
  for (const BlendStage& stage : stages) {
    add(check_stage(config, stage, after));
    after = stage.from_tokens;
  }
  return problems;
}

Result<Mixture> mixture_of(const Config& config, int64_t block_size) {
  Mixture mixture;
  if (const auto problems = check_blend(config); !problems.empty()) return problems.front();
  mixture.names = names_of(config);
  if (mixture.empty()) return mixture;
  SS_ASSIGN(auto weights, whole_weights(weights_of(config, nullptr)));
  mixture.stages.push_back({0, std::move(weights)});
  uint64_t periods = mixture.stages.back().period();
  for (const BlendStage& stage : config.data.stage) {
    SS_ASSIGN(weights, whole_weights(weights_of(config, &stage)));
    const int64_t first = stage.from_tokens / block_size + (stage.from_tokens % block_size != 0);
    if (static_cast<uint64_t>(first) <= mixture.stages.back().first)
      return bad_config(stage_name(stage) + " begins with sample " + std::to_string(first) +
                        ", as the stage before it does: a sample has " +
                        std::to_string(block_size) + " tokens");
    mixture.stages.push_back({static_cast<uint64_t>(first), std::move(weights)});
    periods += mixture.stages.back().period();
  }
  if (periods > Mixture::periods_max)
    return bad_config("data.stage: the weights of all stages, as whole numbers, have the sum " +
                      std::to_string(periods) + ", above " + std::to_string(Mixture::periods_max) +
                      "; round them");
  return mixture;
}

bool uses_source(const Mixture& mixture, const std::string& name, uint64_t samples) {
  const auto found = std::ranges::find(mixture.names, name);
  if (found == mixture.names.end()) return false;
  return MixtureSchedule(mixture).count(static_cast<size_t>(found - mixture.names.begin()),
                                        samples) > 0;
}

namespace {

/// How the texts of a source are read differently now. "": as before.
std::string read_otherwise(const Config& was, const Config& is) {
  const auto changed = [](const char* key, const std::string& before, const std::string& now) {
    return std::string(" had ") + key + " = \"" + before + "\" and has now \"" + now + "\"";
  };
  const DataConfig &a = was.data, &b = is.data;
  if (a.text_key != b.text_key) return changed("text_key", a.text_key, b.text_key);
  if (a.loss_mask_key != b.loss_mask_key)
    return changed("loss_mask_key", a.loss_mask_key, b.loss_mask_key);
  if (a.format != b.format) return changed("format", to_string(a.format), to_string(b.format));
  const auto width = [](const auto& of) { return of.token_bytes == 0 ? 2 : of.token_bytes; };
  if (width(a) != width(b))  // as in diff()
    return changed("token_bytes", std::to_string(a.token_bytes), std::to_string(b.token_bytes));
  return "";
}

/// Which source of the first `samples` samples is read in another way now. "": none is.
std::string changed_source(const Config& before, const Config& now, const Mixture& was,
                           uint64_t samples) {
  for (const BlendSource& source : before.data.blend) {
    const auto same_name = std::ranges::find(now.data.blend, source.name, &BlendSource::name);
    if (same_name == now.data.blend.end() || !uses_source(was, source.name, samples)) continue;
    const std::string otherwise =
        read_otherwise(config_of(before, source), config_of(now, *same_name));
    if (!otherwise.empty()) return "\"" + source.name + "\"" + otherwise;
  }
  return "";
}

}  // namespace

Status check_same_mixture(const Config& before, const Config& now, int64_t block_size,
                          uint64_t samples) {
  SS_ASSIGN(const Mixture was, mixture_of(before, block_size));
  SS_ASSIGN(const Mixture is, mixture_of(now, block_size));
  std::string what = mixture_change(was, is, samples);
  if (what.empty()) what = changed_source(before, now, was, samples);
  if (what.empty()) return {};
  return bad_config(
      "data.blend: " + what + "; the run has trained " + std::to_string(samples) +
      " samples of the old mixture: keep its data.blend and data.stage, and change the "
      "mixture from here on by a new [[data.stage]] with from_tokens = " +
      std::to_string(samples * static_cast<uint64_t>(block_size)) +
      " or more (a new source: a [[data.blend]] without weight)");
}

}  // namespace simplescale
