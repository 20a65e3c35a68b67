#include "app/launch/run_start.hpp"

#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "app/launch/manifest.hpp"
#include "app/launch/prepare_data.hpp"
#include "runtime/checkpoint/run_checkpoints.hpp"
#include "runtime/config/preflight.hpp"
#include "runtime/data/corpus.hpp"
#include "runtime/data/data_location.hpp"

namespace simplescale {

namespace fs = std::filesystem;

namespace {

/// Paths may hold any bytes, but config.toml, which all processes read, must be UTF-8.
Status check_utf8(const Config& config) {
  const std::string text = to_toml(config);
  const size_t at = first_invalid_utf8(text);
  if (at == text.size()) return {};
  const size_t begin = text.rfind('\n', at) + 1, end = text.find('\n', at);
  return Status(Code::bad_config,
                "the configuration is not UTF-8: " + text.substr(begin, end - begin));
}

}  // namespace

Result<RunStart> resolve_run_start(const std::string& config_file, Overrides overrides,
                                   const std::string& run) {
  if (!run.empty()) overrides.push_back("--run.folder=" + run);
  SS_ASSIGN(LoadedConfig loaded, load_config(config_file, overrides));
  Config& config = loaded.config;
  SS_ASSIGN(const Plan plan, make_plan(config));
  config.train.global_batch_size = plan.global_batch_size;  // `verify` checks the ledger against it
  // Other processes may start in another working directory: paths in config.toml are absolute.
  const auto absolute = [](const std::string& path) {
    return fs::absolute(path).lexically_normal().string();
  };
  config.run.folder = absolute(run_folder(config));
  if (source_is_tokens(config)) config.data.source = absolute(config.data.source);
  config.data.folder = absolute(data_folder(config));
  if (!config.checkpoint.folder.empty())
    config.checkpoint.folder = absolute(config.checkpoint.folder);
  if (std::string& rules = config.supervision.log_rules; !rules.empty()) rules = absolute(rules);
  SS_RETURN_IF_ERROR(check_log_rules(config));
  SS_RETURN_IF_ERROR(check_utf8(config));
  return RunStart{config_file, std::move(config), plan};
}

Status check_run_folder(const RunFolder& run, const Config& config) {
  std::error_code error;
  for (const std::string& records : {run.metrics(), run.events(), run.ledger()})
    if (fs::exists(records, error) && !fs::is_regular_file(records, error))
      return Status(Code::bad_config, records + " is not a file");
  if (fs::exists(run.config(), error)) {
    if (config.run.resume == Resume::never)
      return Status(Code::bad_config,
                    run.path +
                        " already holds a run and run.resume = \"never\"; choose another "
                        "folder with --run=FOLDER");
    SS_ASSIGN(const LoadedConfig before, load_config(run.config()));
    const auto differences = diff(before.config, config);
    if (!differences.empty()) {
      std::string text;
      for (const KeyDifference& d : differences)
        text += (text.empty() ? "" : ", ") + d.key + " was " + d.was + " and is now " + d.now;
      return Status(Code::bad_config, run.path + " holds a run of another configuration: " + text +
                                          "; start a new run with --run=FOLDER");
    }
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
  if (config.checkpoint.folder.empty()) return {};
  return check_checkpoints_owner(run, config.checkpoint.folder);
}

Status open_run_folder(const RunFolder& run, const Config& config) {
  SS_RETURN_IF_ERROR(check_run_folder(run, config));
  std::error_code error;
  fs::create_directories(run.logs(), error);
  if (!error) fs::create_directories(run.control(), error);
  if (!error) fs::create_directories(checkpoint_folder(config), error);
  if (error) return Status(Code::bad_config, "cannot create " + run.path + ": " + error.message());
  if (!config.checkpoint.folder.empty())
    SS_RETURN_IF_ERROR(claim_checkpoints(run, config.checkpoint.folder));
  SS_RETURN_IF_ERROR(record_start(run, config));
  return write_file_atomic(run.config(), to_toml(config));
}

Result<RunLock> lock_run(const RunFolder& run) {
  std::error_code error;
  fs::create_directories(run.control(), error);
  if (error)
    return Status(Code::bad_config, "cannot create " + run.control() + ": " + error.message());
  // RunLock::held(), which `status` and consoles call, takes the lock for a moment: try again.
  auto lock = RunLock::take(run);
  for (int tries = 0; tries < 10 && !lock.ok() && RunLock::held(run); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // flock has no timeout
    lock = RunLock::take(run);
  }
  return lock;
}

Status prepare_and_check_data(const Config& config, const Plan& plan) {
  SS_RETURN_IF_ERROR(prepare_data(config));
  SS_ASSIGN(const Dataset dataset, open_tokens(config, plan.shape));
  SS_RETURN_IF_ERROR(dataset.train.validate());
  if (dataset.validation.tokens() > 0) SS_RETURN_IF_ERROR(dataset.validation.validate());
  return {};
}

}  // namespace simplescale
