#include "app/launch/run_start.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "actors/supervisor/rates.hpp"
#include "actors/supervisor/run_signature.hpp"
#include "app/launch/attach.hpp"
#include "app/launch/auto_device.hpp"
#include "app/launch/begin_from.hpp"
#include "app/launch/bucket_start.hpp"
#include "app/launch/command_line.hpp"
#include "app/launch/manifest.hpp"
#include "app/launch/moved_run.hpp"
#include "app/launch/numerics.hpp"
#include "app/launch/prepare_data.hpp"
#include "app/launch/prepare_tasks.hpp"
#include "app/report.hpp"
#include "app/terminal.hpp"
#include "runtime/base/own_folder.hpp"
#include "runtime/base/path_error.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"
#include "runtime/config/blend.hpp"
#include "runtime/config/check.hpp"
#include "runtime/config/preflight.hpp"
#include "runtime/config/run_instructions.hpp"
#include "runtime/config/secrets.hpp"
#include "runtime/config/sweep.hpp"
#include "runtime/data/manifest.hpp"
#include "runtime/feed/mixture_report.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/feed/validation_samples.hpp"
#include "runtime/object_store/s3_url.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/run/run_state.hpp"
#include "tools/prepare/corpus.hpp"

namespace simplescale {

namespace fs = std::filesystem;

std::string text_of(const KeyDifference& d) {
  return "was " + d.was + " and is now " + d.now;
}

std::string joined_text(const std::vector<KeyDifference>& differences) {
  std::string text;
  for (const KeyDifference& d : differences)
    text += (text.empty() ? "" : ", ") + d.key + " " + text_of(d);
  return text;
}

namespace {

/// All values except paths must be UTF-8, because config.toml is, which all processes read.
Status check_utf8(const Config& config) {
  const std::string text = to_toml(config);
  const size_t at = first_invalid_utf8(text);
  if (at == text.size()) return {};
  const size_t begin = text.rfind('\n', at) + 1, end = text.find('\n', at);
  return Status(Code::bad_config,
                "the configuration is not UTF-8: " +
                    (public_toml(config).find(text.substr(begin, end - begin)) == std::string::npos
                         ? "a secret"
                         : text.substr(begin, end - begin)));
}

/// True if this command only omits the weights with which the run began: the user wants no new run.
bool only_parent_missing(const std::vector<KeyDifference>& differences, const Config& config) {
  return config.run.from.empty() && std::ranges::all_of(differences, [](const KeyDifference& d) {
           return d.key == "run.from" || d.key == "run.with_optimizer" || d.key == "tokenizer.path";
         });
}

/// Step of the newest checkpoint, by the sizes of its files; 0 without one.
uint64_t newest_step(const Config& config) {
  const auto found = find_newest_valid(checkpoint_folder(config), Verify::sizes);
  return found.ok() ? found->checkpoint.info().step : 0;
}

/// The learning rates that users have set in the console. If the file is damaged, the supervisor
/// reports it when it starts.
std::vector<RateChange> rates_set(const RunFolder& run, double configured, uint64_t step) {
  const auto text = read_text(run.learning_rates());
  if (!text.ok()) return {};
  auto rates = rates_of(*text, configured);
  if (!rates.ok()) return {};
  if (rates->requested >= 0) rates->changes.push_back({step + 1, rates->requested});
  return std::move(rates->changes);
}

/// A skipped sample is never trained later: the samples that the run's earlier starts skipped stay
/// skipped. Writes the list in its canonical form.
Status keep_skipped_samples(Config& config) {
  SS_ASSIGN(SkippedSamples skipped, SkippedSamples::parse(config.data.skip_samples));
  if (const RunFolder run{run_folder(config)}; fs::exists(run.config())) {
    SS_ASSIGN(const LoadedConfig before, load_config(run.config()));
    SS_ASSIGN(const SkippedSamples was, SkippedSamples::parse(before.config.data.skip_samples));
    skipped = skipped.with(was);
  }
  config.data.skip_samples = skipped.text();
  return {};
}

/// bad_config: `now` skips a sample that one of the first `step` steps has trained.
Status check_not_trained(const Plan& before, const Plan& now, uint64_t step) {
  const uint64_t trained = now.batch.samples(step);
  if (trained == 0 || before.skipped.sample_at(trained - 1) == now.skipped.sample_at(trained - 1))
    return {};
  return Status(Code::bad_config, "data.skip_samples: the newest checkpoint, of step " +
                                      std::to_string(step) + ", has trained the samples up to " +
                                      std::to_string(before.skipped.sample_at(trained - 1)) +
                                      " already; only later samples can be skipped");
}

/// The changes by this start in a run that exists and is at `step`. bad_config: the run is already
/// beyond its new end, or has trained a sample that is now skipped or is another sample.
Result<std::vector<ConfigChange>> changes_of(const RunFolder& run, const Config& config,
                                             const Plan& plan, uint64_t step) {
  SS_ASSIGN(std::vector<ConfigChange> changes, numerics_changes(run, config, plan, step));
  if (!fs::exists(run.config())) return changes;
  SS_ASSIGN(const LoadedConfig before, load_config(run.config()));
  const ConfigDifference differences = diff(before.config, config);
  for (
      const KeyDifference& d :
      differences
          .defining)  // check_run_folder() has refused the keys that --change-numerics does not name
    changes.push_back({d.key, text_of(d) + kAllowedByName});
  for (const KeyDifference& d : differences.allowed) {
    changes.push_back({d.key, text_of(d)});
    if (d.key == "train.ema_decay" && before.config.train.ema_decay == 0)
      changes.back().reason +=
          "; the average begins with the weights of step " + std::to_string(step);
    if (d.key == "train.moments_precision")
      changes.back().reason +=
          "; the moments of step " + std::to_string(step) +
          (config.train.moments_precision == DType::bf16 ? " are rounded" : " stay as they are");
  }
  if (step > static_cast<uint64_t>(plan.max_steps))
    return Status(Code::bad_config, run.path + " is at step " + std::to_string(step) +
                                        " already, beyond the new last step, " +
                                        std::to_string(plan.max_steps) +
                                        "; set a larger train.max_steps");
  SS_ASSIGN(const Plan was, make_plan(before.config));
  SS_RETURN_IF_ERROR(check_not_trained(was, plan, step));
  const uint64_t trained = plan.batch.samples(step);
  SS_RETURN_IF_ERROR(
      check_same_mixture(before.config, config, plan.shape.block_size,
                         trained == 0 ? 0 : plan.skipped.sample_at(trained - 1) + 1));
  const std::string schedule =
      schedule_change(before.config, config, static_cast<int64_t>(step),
                      rates_set(run, before.config.train.learning_rate, step));
  if (!schedule.empty()) changes.push_back({"", schedule});
  return changes;
}

/// The differences between this program and the earlier version that trained the run so far.
std::vector<ConfigChange> changes_of_program(const RunFolder& run, const RunData& data,
                                             uint64_t step) {
  std::vector<ConfigChange> changes;
  const auto before = load_config(run.config());
  if (!before.ok()) return changes;
  // config.toml has all keys of the version that wrote it. The changes below are older than this
  // key.
  if (before->origin.at("data.token_bytes") != "default") return changes;
  const auto was = make_plan(before->config);
  if (was.ok() && was->learning_rate.last_is_minimum &&
      step < static_cast<uint64_t>(was->max_steps))
    changes.push_back({"",
                       "the learning rate's decay begins one step earlier than in the version "
                       "that has trained this run so far, and its last step has "
                       "train.min_learning_rate"});
  const bool ends_count = std::ranges::any_of(data.sources, [](const RunData::Source& source) {
    const DocumentRule& rule = source.data.train.documents();
    return !rule.boundary_loss && rule.first >= 0 && rule.first_ends;
  });
  if (ends_count)
    changes.push_back({"data.document_boundary_loss",
                       "is false: from here on the loss counts the token that ends a document, and "
                       "not the one behind it; the version that has trained this run so far did "
                       "the opposite"});
  return changes;
}

/// Which sources a run has trained in its first `step` steps; data.source has the name "".
Result<std::function<bool(const std::string&)>> trained_sources(const RunFolder& run,
                                                                const Plan& plan, uint64_t step) {
  Mixture before;
  if (fs::exists(run.config())) {
    SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
    SS_ASSIGN(before, mixture_of(loaded.config, plan.shape.block_size));
  }
  const uint64_t trained = plan.batch.samples(step);
  const uint64_t samples = trained == 0 ? 0 : plan.skipped.sample_at(trained - 1) + 1;
  return std::function([before, samples](const std::string& name) {
    return name.empty() ? samples > 0 : uses_source(before, name, samples);
  });
}

/// A run that begins with other weights takes their tokenizer for texts, and for token files on a
/// disk that have none. An existing run keeps its tokenizer. Errors, for texts only: as
/// tokenizer_of().
Status take_tokenizer(Config& config, const ModelShape& shape) {
  const std::string& from = config.run.from;
  if (from.empty() || !config.tokenizer.path.empty()) return {};
  if (const RunFolder run{run_folder(config)}; fs::exists(run.config())) {
    SS_ASSIGN(const LoadedConfig before, load_config(run.config()));
    config.tokenizer.path = before.config.tokenizer.path;
    return {};
  }
  bool texts = false, bare = false;
  for (const auto& [name, of] : sources_of(config)) {
    const bool tokens = source_is_tokens(of);
    texts = texts || !tokens;
    bare = bare || (tokens && !is_s3_url(of.data.source) && !read_manifest(of.data.source).ok());
  }
  if (!texts && !bare) return {};
  auto found = tokenizer_of(from);
  if (texts) SS_RETURN_IF_ERROR(found.status());
  if (!found.ok() || found->empty()) return {};
  config.tokenizer.path = *found;
  // Training on token files needs no tokenizer.
  const Status fits = texts ? Status() : check_tokenizer(config, shape);
  if (fits.ok()) return {};
  config.tokenizer.path.clear();
  terminal::error("simplescale: warning: the run has no tokenizer: %s\n", fits.message().c_str());
  return {};
}

}  // namespace

Result<RunStart> resolve_run_start(const std::string& config_file, Overrides overrides,
                                   const std::string& run) {
  if (!run.empty()) overrides.push_back("--run.folder=" + run);
  if (!run.empty()) SS_RETURN_IF_ERROR(keep_others_out(RunFolder{run}));  // it may have config_file
  SS_ASSIGN(LoadedConfig loaded, load_user_config(config_file, overrides));
  Config& config = loaded.config;
  report_notes(loaded.notes);
  const std::string warning = resolve_device(loaded);
  SS_RETURN_IF_ERROR(keep_others_out(RunFolder{run_folder(config)}));
  SS_ASSIGN(const std::optional<Config> before, recorded_config(RunFolder{run_folder(config)}));
  if (before) follow_moved_run(loaded, *before);
  SS_RETURN_IF_ERROR(keep_skipped_samples(config));
  if (Status rope = take_rope(config, before); !rope.ok()) return rope.in("run.from");
  SS_ASSIGN(const Plan plan, make_plan(config));
  config.train.global_batch_size = plan.global_batch_size;  // `verify` checks the ledger against it
  // Other processes may start in another working directory, so paths in config.toml are absolute.
  config.run.folder = run_folder(config);
  SS_RETURN_IF_ERROR(take_tokenizer(config, plan.shape));
  if (before) SS_RETURN_IF_ERROR(use_kept_tokenizer(config, *before));
  if (before) keep_token_folders(config, *before);
  if (const std::string note = set_token_folders(config); !note.empty())
    terminal::error("%s\n", note.c_str());
  make_paths_absolute(config);
  if (config.run.trust_folder && !config.checkpoint.folder.empty()) {
    std::error_code error;  // a link of another user to it is not followed
    config.checkpoint.folder = fs::weakly_canonical(config.checkpoint.folder, error);
  }
  // Set the name after data.folder, because runs of one file share its tokens.
  if (const std::string name = fs::path(config.run.folder).filename();
      !run.empty() && loaded.origin["run.name"] == "default" && is_run_name(name))
    config.run.name = name;
  SS_RETURN_IF_ERROR(check_log_rules(config));
  SS_RETURN_IF_ERROR(check_utf8(config));
  const bool rate_said = loaded.origin["train.learning_rate"] == "command line";
  return RunStart{std::move(config), plan, warning, rate_said};
}

Status refuse_sweep(const std::string& config_file, const Config& config) {
  if (!has_sweep(config)) return {};
  return Status(Code::bad_config,
                config_file + " has a [sweep], which is not one run; to train its runs: " +
                    command_line({"sweep", config_file}) +
                    "; to train the rest of the file as one run, add '--sweep.keys={}' "
                    "'--sweep.seeds=[]'");
}

Status check_run_folder(const RunFolder& run, const Config& config) {
  std::error_code error;
  for (const std::string& records : {run.metrics(), run.events(), run.ledger()})
    if (const auto status = fs::symlink_status(records, error);
        fs::exists(status) && !fs::is_regular_file(status))
      return Status(Code::bad_config,
                    records + " is not a file" + (fs::is_symlink(status) ? ", but a link" : ""));
  if (fs::exists(run.config())) {
    if (config.run.resume == Resume::never)
      return Status(Code::bad_config,
                    run.path +
                        " already holds a run and run.resume = \"never\"; choose another "
                        "folder with --run=FOLDER");
    SS_ASSIGN(const LoadedConfig before, load_config(run.config()));
    auto differences = diff(before.config, config).defining;
    std::erase_if(differences, [names = change_names(config)](const KeyDifference& d) {
      return allows(names, d.key);
    });
    if (!differences.empty() && only_parent_missing(differences, config))
      return Status(Code::bad_config,
                    shown_path(run.path) + " began with the weights of " + before.config.run.from +
                        ", and this command does not name them (--from); to continue the run: " +
                        command_line({"resume", shown_path(run.path)}));
    const bool other_model = std::ranges::any_of(
        differences, [](const KeyDifference& d) { return d.key.starts_with("model."); });
    const std::string how = how_to_change(differences);
    if (!differences.empty())
      return Status(
          Code::bad_config,
          shown_path(run.path) + " holds another run: " + joined_text(differences) +
              (how.empty() ? "" : "; " + how) +
              (other_model ? "; its weights do not fit this model; to train it in a new run, add " +
                                 std::string("--run=NEW_FOLDER")
                           : "; to train from its weights in a new run: " +
                                 command_line({"train", "CONFIG", "--from", shown_path(run.path),
                                               "--run=NEW_FOLDER"}) +
                                 " (--with-optimizer continues its steps)"));
  } else if (fs::exists(run.path, error) && !fs::is_empty(run.path, error)) {
    // Allowed: `control`, left by a start that failed early; `logs`, created by `submit`;
    // `checkpoints`, with an imported model; the write probe of another task of the job.
    for (const auto& entry : fs::directory_iterator(run.path, error))
      if (const std::string name = entry.path().filename();
          name != "control" && name != "checkpoints" && name != "logs" &&
          !name.starts_with(kWritableProbe))
        return Status(
            Code::bad_config,
            run.path +
                " is not empty and is not a run folder; choose another folder with --run=FOLDER");
  }
  if (!config.run.trust_folder)
    SS_RETURN_IF_ERROR(check_output_folder(checkpoint_folder(config), "checkpoint.folder"));
  return check_checkpoints_owner(run, checkpoint_folder(config));
}

namespace {
/// A run keeps its instructions from its first checkpoint on, unless --change-numerics names them.
/// bad_config: cluster.instructions of this start is another set than the run's.
Status check_instructions(const RunFolder& run, const Config& config) {
  const InstructionSet asked = config.cluster.instructions;
  SS_ASSIGN(const InstructionSet required, required_instructions(run, config));
  const bool allowed = allows(change_names(config), "arithmetic.instructions");
  if (config.cluster.device == DeviceKind::cuda) return {};
  if (!allowed && (asked == InstructionSet::automatic || asked == required)) return {};
  if (allowed || newest_step(config) == 0) {
    std::error_code error;
    fs::remove(run.instructions(), error);
    return error ? Status(path_error(error.value(), Code::io),
                          "cannot remove " + run.instructions() + ": " + error.message())
                 : Status();
  }
  return {
      Code::bad_config,
      std::string("cluster.instructions = \"") + to_string(asked) + "\": " + shown_path(run.path) +
          " computes with " + to_string(required) +
          ", and others give other bits; leave the key out, add "
          "--change-numerics=arithmetic.instructions to go on with other bits, or train its "
          "weights in a new run: " +
          command_line({"train", "CONFIG", "--from", shown_path(run.path), "--run=NEW_FOLDER"}) +
          " (--with-optimizer continues its steps)"};
}
}  // namespace

Status open_run_folder(const RunFolder& run, const Config& config, const Plan& plan,
                       const RunData& data, bool rate_said) {
  SS_RETURN_IF_ERROR(check_run_folder(run, config));
  // LOCK-1: the supervisor of living agents reads the files that this function replaces.
  SS_RETURN_IF_ERROR(wait_for_agents(run, config.cluster.join_timeout_ms));
  SS_RETURN_IF_ERROR(make_control(run));
  std::error_code error;
  fs::create_directories(run.logs(), error);
  if (!error) fs::create_directories(checkpoint_folder(config), error);
  if (error)
    return Status(path_error(error.value(), Code::bad_config),
                  "cannot create " + run.path + ": " + error.message());
  SS_RETURN_IF_ERROR(claim_checkpoints(run, checkpoint_folder(config)));
  SS_ASSIGN(const auto tasks, task_tokens(config, plan.shape, data.tokenizer));
  SS_RETURN_IF_ERROR(restore_from_bucket(run, config, plan));
  if (const auto found = find_newest_valid(checkpoint_folder(config), Verify::sizes);
      found.status().code() == Code::bad_data)
    return found.status();
  SS_RETURN_IF_ERROR(begin_from(config, plan, data.tokenizer, rate_said));
  SS_RETURN_IF_ERROR(check_instructions(run, config));
  const uint64_t step = newest_step(config);
  SS_ASSIGN(std::vector<ConfigChange> changes, changes_of(run, config, plan, step));
  for (ConfigChange& change : changes_of_program(run, data, step))
    changes.push_back(std::move(change));
  for (const ConfigChange& change : changes)
    terminal::error("changed: %s\n", change.text().c_str());
  SS_ASSIGN(const auto trained, trained_sources(run, plan, step));
  SS_RETURN_IF_ERROR(record_start(run, config, data.files, step,
                                  signature_of_run(run, config, plan), changes, trained));
  SS_RETURN_IF_ERROR(data.files.save_listing(run.objects()));
  SS_RETURN_IF_ERROR(keep_tasks(run, tasks));
  SS_RETURN_IF_ERROR(keep_tokenizer(run, config));
  Config kept = config;
  kept.run.change_numerics.clear();
  return save_config(run.path, kept);
}

Result<bool> already_finished(const RunFolder& run, const Config& config, const Plan& plan) {
  if (!fs::exists(run.config()) || RunLock::held(run)) return false;
  const auto end = end_of(run);
  if (!end || end->code != 0) return false;
  SS_RETURN_IF_ERROR(check_run_folder(run, config));
  const auto max_steps = static_cast<uint64_t>(plan.max_steps);
  if (newest_step(config) != max_steps) return false;
  const auto found = find_newest_valid(checkpoint_folder(config));
  if (!found.ok() || found->checkpoint.info().step != max_steps) return false;
  terminal::error("%s is already finished at %llu/%llu; to train longer: %s\n",
                  shown_path(run.path).c_str(), static_cast<unsigned long long>(max_steps),
                  static_cast<unsigned long long>(max_steps),
                  command_line({"resume", shown_path(run.path),
                                "--train.max_steps=" + std::to_string(2 * max_steps)})
                      .c_str());
  return true;
}

Result<RunLock> lock_run(const RunFolder& run) {
  SS_RETURN_IF_ERROR(make_control(run));
  // RunLock::held(), which `status` and consoles call, holds the lock for a moment, so try again.
  auto lock = RunLock::take(run);
  for (int tries = 0; tries < 10 && !lock.ok() && RunLock::held(run); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // flock has no timeout
    lock = RunLock::take(run);
  }
  return lock;
}

namespace {
/// The checks that need no data.
Status check_recipe(const Config& config, const Plan& plan) {
  SS_RETURN_IF_ERROR(check_places(config));
  SS_RETURN_IF_ERROR(check_tasks(config));
  SS_RETURN_IF_ERROR(check_parent(config, plan));
  return changes_of(RunFolder{run_folder(config)}, config, plan, newest_step(config)).status();
}
}  // namespace

Status check_before_start(const RunStart& start) {
  const Config& config = start.config;
  const Plan& plan = start.plan;
  if (!has_sweep(config))  // each run of a sweep has its own folder
    SS_RETURN_IF_ERROR(check_run_folder(RunFolder{run_folder(config)}, config));
  SS_RETURN_IF_ERROR(check_recipe(config, plan));
  SS_ASSIGN(const RunData data, check_data(config));
  if (needs_preparation(config)) return {};
  SS_RETURN_IF_ERROR(task_tokens(config, plan.shape, data.tokenizer).status());
  const RunFolder run{run_folder(config)};
  SS_ASSIGN(const auto trained, trained_sources(run, plan, newest_step(config)));
  return check_same_inputs(run, config, data.files, trained);
}

Result<RunData> prepare_and_check_data(const Config& config, const Plan& plan) {
  // Check this first: the steps below take long. open_run_folder() repeats what another start may
  // change meanwhile.
  SS_RETURN_IF_ERROR(check_recipe(config, plan));
  SS_RETURN_IF_ERROR(prepare_data(config, 0, fs::exists(RunFolder{run_folder(config)}.config())));
  SS_ASSIGN(RunData data, open_tokens(config, plan.shape, DataFiles::Listing::anew));
  SS_RETURN_IF_ERROR(check_token_files(config, data));
  const std::vector<SourceUse> uses = source_uses(plan, data);
  if (!uses.empty()) terminal::error("the mixture of the run:\n%s", mixture_table(uses).c_str());
  if (config.data.pack == Pack::best_fit)
    terminal::error("data.pack:\n%s", packing_table(data).c_str());
  for (const std::string& warning : mixture_warnings(uses))
    terminal::error("simplescale: warning: %s\n", warning.c_str());
  for (const std::string& warning : validation_warnings(config, plan, data))
    terminal::error("simplescale: warning: %s\n", warning.c_str());
  SS_RETURN_IF_ERROR(check_tokens(config, data));
  return data;
}

}  // namespace simplescale
