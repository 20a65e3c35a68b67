#include "app/launch/begin_from.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "actors/supervisor/rates.hpp"
#include "app/launch/command_line.hpp"
#include "app/launch/manifest.hpp"
#include "app/launch/moved_run.hpp"
#include "app/terminal.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/checkpoint/bucket.hpp"
#include "runtime/checkpoint/imported_facts.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"
#include "runtime/data/manifest.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tools/convert/commands.hpp"
#include "tools/convert/derive.hpp"
#include "tools/convert/huggingface.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;

bool has(const std::string& folder, const char* file) {
  std::error_code error;
  return fs::is_regular_file(folder + "/" + file, error);
}

bool is_hugging_face(const std::string& folder) {
  return has(folder, "config.json") && !has(folder, "manifest.json") && !has(folder, "config.toml");
}

/// Opens the parent. Downloads a checkpoint of an object store to `imported` first, and imports a
/// Hugging Face folder to it.
Result<Checkpoint> open_parent(const std::string& from, const std::string& imported) {
  std::error_code error;
  fs::remove_all(imported, error);  // left by a start that was killed
  if (is_s3_url(from)) return fetch_from_bucket(from, imported);
  if (!is_hugging_face(from)) return resolve_checkpoint(from);
  SS_RETURN_IF_ERROR(import_hf(from, imported));
  return Checkpoint::open(imported);
}

/// True if the ids of `old` mean the same in `now`, which may have more ids.
Result<bool> extends(const std::string& now_path, const std::string& old_path) {
  SS_ASSIGN(const Tokenizer now, Tokenizer::load(now_path));
  SS_ASSIGN(const Tokenizer old, Tokenizer::load(old_path));
  if (now.vocab() < old.vocab()) return false;
  for (int32_t id = 0; id < old.vocab(); ++id)
    if (now.decode({&id, 1}) != old.decode({&id, 1})) return false;
  return true;
}

Status check_tokenizer(const std::string& from, const CheckpointInfo& parent,
                       const std::string& tokenizer, const ModelShape& shape) {
  if (parent.tokenizer.empty() || tokenizer.empty()) return {};
  SS_ASSIGN(const std::string theirs, hash_file(parent.tokenizer));
  SS_ASSIGN(const std::string ours, hash_file(tokenizer));
  if (theirs == ours) return {};
  if (shape.vocab > parent.shape.vocab) {
    SS_ASSIGN(const bool extended, extends(tokenizer, parent.tokenizer));
    if (extended) return {};
  }
  const auto path = tokenizer_of(from);
  return Status(Code::bad_config, "the weights of " + from +
                                      " were trained with another tokenizer than this run's data; "
                                      "set tokenizer.path = \"" +
                                      (path.ok() ? *path : from) + "\"");
}

/// The parent's moments must be those of this run's optimizer. Muon leaves the second moment of the
/// blocks' matrices at zero; AdamW does not.
Status check_optimizer(Checkpoint& parent, const Config& config) {
  if (!config.run.with_optimizer || parent.info().step == 0) return {};
  const MuonMatrix matrix = muon_matrices(parent.units()).front();
  bool zero = true;
  SS_RETURN_IF_ERROR(parent.stream_unit(
      StateKind::exp_avg_sq, matrix.unit, [&](size_t offset, std::span<const float> piece) {
        const size_t end = matrix.offset + matrix.count();
        for (size_t i = 0; i < piece.size(); ++i)
          zero = zero && (piece[i] == 0 || offset + i < matrix.offset || offset + i >= end);
        return Status();
      }));
  const bool muon = config.train.optimizer == Optimizer::muon;
  if (zero == muon) return {};
  return Status(Code::bad_config,
                "train.optimizer = \"" + std::string(muon ? "muon" : "adamw") + "\", but the " +
                    (muon ? "AdamW" : "Muon") + " moments of " + config.run.from +
                    " are to be taken: leave out run.with_optimizer, or set train.optimizer = \"" +
                    (muon ? "adamw" : "muon") + "\"");
}

/// Checks what is known of the parent before its weights are read. tokenizer: the run's; "":
/// unknown.
Status check_facts(const Config& config, const Plan& plan, const CheckpointInfo& parent,
                   const std::string& tokenizer) {
  const std::string& from = config.run.from;
  SS_RETURN_IF_ERROR(check_derivable(from, parent.shape, plan.shape));
  SS_RETURN_IF_ERROR(check_tokenizer(from, parent, tokenizer, plan.shape));
  if (!config.run.with_optimizer || parent.step < static_cast<uint64_t>(plan.max_steps)) return {};
  return Status(Code::bad_config, from + " is at step " + std::to_string(parent.step) +
                                      ", and the run ends at step " +
                                      std::to_string(plan.max_steps) +
                                      ": set a larger train.max_steps, or leave out "
                                      "run.with_optimizer to begin at step 0");
}

/// The run has its parent's weights already: run.from may only name the same parent at another
/// place.
Status check_same_parent(const Config& config) {
  const RunFolder run{run_folder(config)};
  SS_ASSIGN(const std::optional<Config> before, recorded_config(run));
  const std::string &now = config.run.from, was = before ? before->run.from : "";
  std::error_code error;
  if (was.empty() || fs::weakly_canonical(was, error) == fs::weakly_canonical(now, error) ||
      (!fs::exists(now, error) && is_named_alike(was, *before, now, config)))
    return {};
  const std::string identity = identity_of_parent(now), known = recorded_parent(run);
  if (!known.empty() && identity == known) return {};
  return Status(
      Code::bad_config,
      shown_path(run.path) + " began with the weights of " + was + ", and " + now +
          (known.empty() || identity.empty() ? " cannot be compared with them" : " holds others") +
          "; to continue the run: " + command_line({"resume", shown_path(run.path)}) +
          "; to begin another one, name another --run=NEW_FOLDER");
}

bool has_checkpoint(const Config& config) {
  const auto found = find_newest_valid(checkpoint_folder(config), Verify::sizes);
  return found.status().code() != Code::not_found;
}

/// The folder of the parent's run: `from` itself, or the folder around its checkpoint; or "".
std::string run_around(const std::string& from) {
  std::error_code error;
  fs::path folder = fs::weakly_canonical(from, error);
  for (int up = 0; up < 3; ++up, folder = folder.parent_path())
    if (has(folder.string(), "config.toml")) return folder.string();
  return "";
}

std::string shown(double rate) {
  return fmt::format("{}", rate);
}

/// With run.with_optimizer the schedule continues. So a learning rate that was set in the parent's
/// console stays, unless the configuration or the command line now sets another one. The parent's run
/// records it; so does the checkpoint, if that is all there is. io.
Status take_rates(const Config& config, const CheckpointInfo& info, bool rate_said) {
  const std::string& from = config.run.from;
  const RunFolder parent{is_s3_url(from) ? "" : run_around(from)}, run{run_folder(config)};
  const uint64_t step = info.step;  // at which the run begins
  std::string text = rates_in(info.resume);
  std::optional<double> configured = configured_in(text);
  if (!parent.path.empty()) {
    const auto recorded = read_text(parent.learning_rates());
    const auto theirs = load_config(parent.config());
    if (!recorded.ok() || !theirs.ok()) return {};
    text = *recorded;
    configured = theirs->config.train.learning_rate;
  }
  if (!configured) return {};
  const double ours = config.train.learning_rate;
  SS_ASSIGN(job::Rates rates, rates_of(text, *configured));
  if (rates.requested >= 0) rates.changes.push_back({step + 1, std::exchange(rates.requested, -1)});
  std::erase_if(rates.changes, [&](const RateChange& change) { return change.step > step + 1; });
  if (rates.changes.empty()) return {};
  const double set = rates.changes.back().peak;
  const std::string where =
      "which was set in the console of " + (parent.path.empty() ? from : shown_path(parent.path));
  if (rate_said || ours != *configured) {
    terminal::error("train.learning_rate is %s, as this run says, not %s, %s\n",
                    shown(ours).c_str(), shown(set).c_str(), where.c_str());
    return {};
  }
  terminal::error(
      "train.learning_rate goes on with %s, %s; --train.learning_rate=RATE sets another\n",
      shown(set).c_str(), where.c_str());
  return write_file_atomic(run.learning_rates(), rates_text(rates, ours));
}

}  // namespace

Result<std::string> tokenizer_of(const std::string& from) {
  if (has(from, "config.toml"))  // a run's old checkpoints are removed; its data stays
    if (const auto loaded = load_config(from + "/config.toml"); loaded.ok()) {
      const Config& config = loaded->config;
      std::error_code error;
      if (fs::is_regular_file(tokenizer_file(config), error)) return config.tokenizer.path;
      if (std::string kept = kept_tokenizer(RunFolder{from}); !kept.empty()) return kept;
      for (const ConfiguredSource& source : sources_of(config))
        if (std::string path = find_tokenizer(data_folder(source.config)); !path.empty())
          return path;
      if (const auto parent = resolve_checkpoint(from);  // the places above were moved
          parent.ok() && !parent->info().tokenizer.empty())
        return parent->info().tokenizer;
      if (!config.tokenizer.path.empty()) return config.tokenizer.path;
    }
  if (is_s3_url(from))
    return Status(Code::bad_config,
                  "tokenizer.path: name the file of the tokenizer that the "
                  "weights of " +
                      from + " were trained with");
  if (is_hugging_face(from)) SS_RETURN_IF_ERROR(check_hf_links(from).in("run.from"));
  return find_tokenizer(from);
}

std::string identity_of_parent(const std::string& from) {
  if (is_s3_url(from)) return "";
  if (!is_hugging_face(from)) {
    const auto parent = resolve_checkpoint(from);
    if (!parent.ok()) return "";
    if (const std::string run = run_in(parent->info().resume); !run.empty()) return "run " + run;
    const auto hash = hash_file(parent->folder() + "/manifest.json");
    return hash.ok() ? "manifest.json " + *hash : "";
  }
  std::vector<std::string> files = {from + "/config.json"};
  std::error_code error;
  for (fs::directory_iterator entry(from, error), end; !error && entry != end;
       entry.increment(error))
    if (entry->path().extension() == ".safetensors") files.push_back(entry->path().string());
  std::ranges::sort(files);
  Hasher hasher;
  for (const std::string& file : files) {
    const auto hash = hash_file(file);
    if (!hash.ok()) return "";
    const std::string named = fs::path(file).filename().string() + " " + *hash + "\n";
    hasher.update(named.data(), named.size());
  }
  return "weights " + hasher.digest().hex();
}

void stretch_rope(ModelConfig& model, const ModelShape& parent, int64_t block_size) {
  if (block_size <= parent.block_size) return;
  const RopeScaling& has = parent.rope_scaling;
  const bool linear = has.kind == RopeScaling::Kind::linear;
  int64_t before = parent.block_size;  // of the pretraining
  if (linear) before = std::llround(static_cast<double>(before) / has.factor);
  if (has.kind == RopeScaling::Kind::llama3 || has.kind == RopeScaling::Kind::yarn)
    before = has.original_block_size;
  if (model.rope_original_block_size == 0 && model.rope_scaling != RopeScalingChoice::linear)
    model.rope_original_block_size = before;
  const double length = model.rope_original_block_size > 0
                            ? static_cast<double>(model.rope_original_block_size)
                            : static_cast<double>(before);
  if (model.rope_factor == 0)
    model.rope_factor = std::max(1.0, static_cast<double>(block_size) / length);
}

Status take_rope(Config& config, const std::optional<Config>& before) {
  ModelConfig& model = config.model;
  const std::string& from = config.run.from;
  const bool scales = model.rope_scaling == RopeScalingChoice::linear ||
                      model.rope_scaling == RopeScalingChoice::llama3 ||
                      model.rope_scaling == RopeScalingChoice::yarn;
  const bool all = model.rope_factor > 0 && (model.rope_scaling == RopeScalingChoice::linear ||
                                             model.rope_original_block_size > 0);
  if (from.empty() || !scales || all) return {};
  if (before) {
    if (model.rope_factor == 0) model.rope_factor = before->model.rope_factor;
    if (model.rope_original_block_size == 0)
      model.rope_original_block_size = before->model.rope_original_block_size;
    return {};
  }
  if (is_s3_url(from))
    return Status(Code::bad_config,
                  "model.rope_scaling: set model.rope_factor and model.rope_original_block_size, "
                  "too: nobody reads how long the samples of " +
                      from + " were before the run begins");
  SS_ASSIGN(const ModelShape wanted, model_shape(config));
  if (is_hugging_face(from)) {
    SS_ASSIGN(const CheckpointInfo parent, check_hf(from));
    stretch_rope(model, parent.shape, wanted.block_size);
  } else {
    SS_ASSIGN(const Checkpoint parent, resolve_checkpoint(from));
    stretch_rope(model, parent.info().shape, wanted.block_size);
  }
  return {};
}

Status check_parent(const Config& config, const Plan& plan) {
  const std::string& from = config.run.from;
  if (!from.empty() && has_checkpoint(config)) return check_same_parent(config);
  if (from.empty() || is_s3_url(from)) return {};
  std::error_code error;
  std::string tokenizer = tokenizer_file(config);
  if (!fs::is_regular_file(tokenizer, error)) tokenizer.clear();
  if (is_hugging_face(from)) {
    const auto parent = check_hf(from);
    if (!parent.ok()) return Status(parent.status()).in("run.from");
    return check_facts(config, plan, *parent, tokenizer);
  }
  auto parent = resolve_checkpoint(from);
  if (!parent.ok()) return Status(parent.status()).in("run.from");
  SS_RETURN_IF_ERROR(check_facts(config, plan, parent->info(), tokenizer));
  return check_optimizer(*parent, config);
}

Status begin_from(const Config& config, const Plan& plan, const std::string& tokenizer,
                  bool rate_said) {
  const std::string& from = config.run.from;
  const std::string folder = checkpoint_folder(config);
  if (from.empty() || has_checkpoint(config)) return {};
  std::error_code error;
  fs::create_directories(folder, error);
  const std::string imported = folder + "/tmp-imported";
  auto parent = open_parent(from, imported);
  if (!parent.ok()) return Status(parent.status()).in("run.from");
  SS_RETURN_IF_ERROR(check_facts(config, plan, parent->info(), tokenizer));
  SS_RETURN_IF_ERROR(check_optimizer(*parent, config));
  if (config.run.with_optimizer)  // before the checkpoint: once that exists, nothing more is taken
    SS_RETURN_IF_ERROR(take_rates(config, parent->info(), rate_said));
  CheckpointInfo info;
  info.step = config.run.with_optimizer ? parent->info().step : 0;
  info.next_sample = plan.batch.samples(info.step);
  info.tokens_seen = plan.tokens(info.step);
  info.seed = static_cast<uint64_t>(config.run.seed);
  info.shape = plan.shape;
  info.precision = config.train.precision == DType::bf16 ? "bf16" : "fp32";
  // Without the parent's average, the run begins one with its weights (read_shard()).
  info.state.ema = config.run.with_optimizer && plan.state.ema && parent->info().state.ema;
  info.tokenizer = tokenizer;
  SS_ASSIGN(const std::string id, run_id(RunFolder{run_folder(config)}));
  auto facts = nlohmann::json::parse(with_run(imported_facts(parent->info()), id));
  facts.update({{"from", from},
                {"from_step", parent->info().step},
                {"with_optimizer", config.run.with_optimizer}});
  const auto signature = signature_record_in(parent->info().resume);
  if (config.run.with_optimizer && !signature.is_null()) facts[kParentSignatureFact] = signature;
  info.resume = json_text(facts);
  terminal::error("copying the weights of step %llu of %s\n",
                  static_cast<unsigned long long>(parent->info().step), from.c_str());
  const Status made = derive_checkpoint(*parent, config.run.with_optimizer, info, folder);
  fs::remove_all(imported, error);
  return made;
}

}  // namespace simplescale
