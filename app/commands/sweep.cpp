// `sweep`: trains a list of runs one after the other on this machine, each in a process of `train`,
// or submits them as a Slurm job array. Finished runs are skipped, so an interrupted sweep
// continues.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "app/commands/runs.hpp"
#include "app/interrupts.hpp"
#include "app/launch/last_line.hpp"
#include "app/launch/prepare_data.hpp"
#include "app/launch/run_start.hpp"
#include "app/slurm/job.hpp"
#include "app/terminal.hpp"
#include "runtime/base/bare_path.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/path_error.hpp"
#include "runtime/base/process.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/secrets.hpp"
#include "runtime/config/sweep.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/run/agent_lock.hpp"
#include "runtime/run/run_key.hpp"
#include "tools/report/plot.hpp"
#include "tools/report/summary.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;

struct Run {
  std::string name, folder;
  Overrides overrides;
  std::vector<std::pair<std::string, std::string>> choices;  // the varied keys and their values
};
struct Sweep {
  std::string config_file, folder;
  LoadedConfig base;
  bool own_data = false;  // the runs' tokens differ, so each run prepares its own
  std::vector<Run> runs;
};

/// True if runs that differ in this key have different tokens.
bool changes_tokens(const std::string& key) {
  return key.starts_with("data.") || key.starts_with("tokenizer.") || key == "model.preset" ||
         key == "model.vocab";
}

std::string absolute(const std::string& path) {
  return fs::absolute(path).lexically_normal().string();
}

/// One run of the sweep with its overrides, checked by planning it. prepared: the sweep prepares
/// the tokens in the folder `tokens`, and the run reads them there.
Result<Run> plan_run(const Sweep& sweep, const SweepRun& planned, const Overrides& overrides,
                     const std::string& tokens, bool prepared) {
  const Config& base = sweep.base.config;
  Run run{planned.name, sweep.folder + "/" + planned.name, overrides, planned.choices};
  for (const std::string& text : planned.overrides) run.overrides.push_back(text);
  run.overrides.push_back("--run.name=" + run.name);
  run.overrides.push_back("--run.folder=" + run.folder);
  run.overrides.push_back("--sweep.seeds=[]");
  run.overrides.push_back("--sweep.keys={}");
  if (sweep.own_data) run.overrides.push_back("--data.folder=" + tokens + "/" + run.name);
  if (!base.checkpoint.folder.empty())
    run.overrides.push_back("--checkpoint.folder=" + absolute(base.checkpoint.folder) + "/" +
                            run.name);
  if (!base.checkpoint.upload.empty())
    run.overrides.push_back("--checkpoint.upload=" + base.checkpoint.upload + "/" + run.name);
  SS_ASSIGN(const LoadedConfig loaded, load_user_config(sweep.config_file, run.overrides));
  const auto plan = make_plan(loaded);
  if (!plan.ok()) return plan.status().in(run.name);
  if (prepared) {
    run.overrides.push_back("--data.source=" + tokens);
    run.overrides.push_back("--data.format=prepared");
  }
  return run;
}

/// All runs with their overrides. Every run is checked before the first one starts.
Result<Sweep> plan_sweep(const SweepOptions& options) {
  Sweep sweep;
  sweep.config_file = options.config;
  Overrides overrides = options.overrides;
  if (!options.folder.empty()) overrides.push_back("--run.folder=" + options.folder);
  SS_ASSIGN(sweep.base, load_user_config(options.config, overrides));
  const Config& base = sweep.base.config;
  sweep.folder = bare_path(absolute(run_folder(base)));
  SS_ASSIGN(const std::vector<SweepRun> runs, expand_sweep(base));
  sweep.own_data = !base.data.blend.empty();
  for (const SweepAxis& axis : base.sweep.keys)
    sweep.own_data = sweep.own_data || changes_tokens(axis.key);
  // Otherwise the tokens are prepared once. The tokenizer depends on run.seed, which may vary.
  const bool prepared = !sweep.own_data && !source_is_tokens(base);
  Config with_folders = base;
  set_token_folders(with_folders);
  const std::string tokens = absolute(data_folder(with_folders));
  for (const SweepRun& planned : runs) {
    SS_ASSIGN(Run run, plan_run(sweep, planned, overrides, tokens, prepared));
    sweep.runs.push_back(std::move(run));
  }
  return sweep;
}

/// bad_config: the folder holds something else than this sweep.
Status check_sweep_folder(const Sweep& sweep) {
  SS_RETURN_IF_ERROR(keep_others_out(RunFolder{sweep.folder}));
  const std::string path = sweep.folder + "/sweep.toml";
  std::error_code error;
  if (fs::exists(path, error)) {
    SS_ASSIGN(const LoadedConfig before, load_config(path));
    for (const char* key : {"sweep.mode", "sweep.seeds", "sweep.keys"}) {
      const std::string was = schema::to_toml(schema::find(key)->in(before.config)),
                        now = schema::to_toml(schema::find(key)->in(sweep.base.config));
      if (was != now)
        return Status(Code::bad_config, sweep.folder + " holds another sweep: " + key + " " +
                                            text_of(KeyDifference{key, was, now}) +
                                            "; start a new sweep with --run=FOLDER");
    }
    return {};
  }
  if (fs::exists(sweep.folder, error) && !fs::is_empty(sweep.folder, error))
    return Status(
        Code::bad_config,
        sweep.folder +
            " is not empty and is not a sweep's folder; choose another folder with --run=FOLDER");
  return {};
}

Status create_sweep_folder(const Sweep& sweep) {
  const std::string path = sweep.folder + "/sweep.toml";
  std::error_code error;
  if (fs::exists(path, error)) return {};
  fs::create_directories(sweep.folder + "/logs", error);
  if (error)
    return Status(path_error(error.value(), Code::bad_config),
                  "cannot create " + sweep.folder + ": " + error.message());
  return write_file_atomic(path, public_toml(sweep.base.config));
}

std::string state_of(const Run& run) {
  const auto summary = summarize(run.folder);
  return summary.ok() ? summary->state : "new";
}

/// Prints a line about run `i`.
void print_progress(const Sweep& sweep, size_t i, const std::string& text) {
  terminal::print("[%zu/%zu] %s: %s\n", i + 1, sweep.runs.size(), sweep.runs[i].name.c_str(),
                  text.c_str());
  std::fflush(stdout);
}

/// Runs `train` in a process of its own and passes SIGINT and SIGTERM on as SIGINT. Returns its
/// exit code; -1: a signal killed it.
Result<int> train(const Sweep& sweep, const Run& run, const std::string& log) {
  SpawnOptions command;
  command.argv = {program_folder() + "/simplescale", "train", sweep.config_file};
  const auto [words, secrets] = without_secrets(run.overrides);
  command.argv.insert(command.argv.end(), words.begin(), words.end());
  if (!secrets.empty()) command.environment = {{kSecretOverrides, secrets}};
  command.output = log;
  command.death_signal = SIGTERM;  // if this process dies, `train` saves and ends
  SS_ASSIGN(const pid_t pid, spawn(command));
  int status = 0, passed = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (interrupts > passed) {
      ++passed;
      kill(pid, SIGINT);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Trains the runs in order until all are done or a signal arrives. Returns the number of failed
/// runs.
Result<size_t> train_all(const Sweep& sweep) {
  count_interrupts({SIGINT, SIGTERM});
  size_t failed = 0;
  for (size_t i = 0; i < sweep.runs.size() && interrupts == 0; ++i) {
    const Run& run = sweep.runs[i];
    const std::string state = state_of(run), log = sweep.folder + "/logs/" + run.name + ".log";
    if (state == "finished") {
      print_progress(sweep, i, "finished already");
      continue;
    }
    if (launcher_lives({run.folder})) {
      print_progress(sweep, i, "skipped: another process trains it");
      continue;
    }
    print_progress(sweep, i, state == "new" ? "starts" : "continues");
    SS_ASSIGN(const int code, train(sweep, run, log));
    const auto summary = summarize(run.folder);
    if (code == 0 && summary.ok()) {
      print_progress(sweep, i,
                     summary->state + " at step " + std::to_string(summary->step) +
                         (summary->loss ? ", loss " + std::to_string(*summary->loss) : ""));
      continue;
    }
    ++failed;
    print_progress(
        sweep, i,
        (code < 0 ? "killed by a signal" : "failed with exit code " + std::to_string(code)) + ": " +
            last_line(log) + " (its output: " + log + ")");
  }
  return failed;
}

/// Prints what the sweep would do.
void list_runs(const Sweep& sweep) {
  for (size_t i = 0; i < sweep.runs.size(); ++i) {
    const std::string state = state_of(sweep.runs[i]);
    std::string text = state == "finished" ? "finished already"
                       : state == "new"    ? "would start"
                                           : "would continue";
    for (const auto& [key, value] : sweep.runs[i].choices) text += ", " + key + " = " + value;
    print_progress(sweep, i, text);
  }
}

/// Writes and prints the table, and draws the plot, of the results so far.
Status summarize_all(const Sweep& sweep) {
  std::vector<SweepResult> results;
  std::vector<PlotRun> plots;
  for (const Run& run : sweep.runs) {
    PlotRun plot{run.name, {}};
    auto summary = summarize(run.folder, &plot.records);
    if (!summary.ok()) summary = RunSummary{run.folder, run.name, "new"};
    results.push_back({summary.take(), run.choices});
    plots.push_back(std::move(plot));
  }
  mark_best(results);
  const std::string text = sweep_table(results, sweep.folder);
  terminal::print("\n%s\n", text.c_str());
  SS_RETURN_IF_ERROR(write_file_atomic(sweep.folder + "/summary.txt", text));
  SS_RETURN_IF_ERROR(write_file_atomic(sweep.folder + "/summary.json", sweep_json(results)));
  const std::string picture = sweep.folder + "/summary.svg";
  if (Status drawn = draw_plot(plots, picture); !drawn.ok())
    log::warn("cannot draw the plot: {}", drawn.message());
  else
    terminal::print("table and plot: %s/summary.txt, summary.json, summary.svg\n",
                    sweep.folder.c_str());
  std::fflush(stdout);
  return {};
}

/// Submits the unfinished runs as one job array.
Status submit_all(const Sweep& sweep, bool dry_run) {
  for (const SweepAxis& axis : sweep.base.config.sweep.keys)
    if (axis.key.starts_with("cluster.") || axis.key.starts_with("slurm."))
      return Status(Code::bad_config,
                    axis.key +
                        " varies between the runs, but all elements of a job array have the same "
                        "size; leave out --submit, or submit each run by itself");
  std::vector<std::string> folders;
  std::string first;
  for (const Run& run : sweep.runs) {
    if (state_of(run) == "finished" || RunLock::held(RunFolder{run.folder})) continue;
    SS_ASSIGN(RunStart start, resolve_run_start(sweep.config_file, run.overrides, ""));
    // A dry run has not prepared the tokens that the sweep's runs share.
    SS_RETURN_IF_ERROR(
        (dry_run ? check_run_folder({run.folder}, start.config) : check_before_start(start))
            .in(run.name));
    SS_ASSIGN(const BatchFile batch, plan_batch_file(std::move(start)));
    if (!dry_run) SS_RETURN_IF_ERROR(write_batch_file(batch));
    if (first.empty()) first = batch.script;
    folders.push_back(batch.run);
  }
  if (folders.empty()) {
    terminal::print("nothing to submit: every run is finished or is training\n");
    return {};
  }
  SS_ASSIGN(const std::string script,
            slurm::array_script(first, sweep.base.config.run.name, sweep.folder, folders));
  if (!dry_run) SS_RETURN_IF_ERROR(write_file_atomic(sweep.folder + "/submit.sh", script));
  terminal::text(script);
  std::fflush(stdout);
  if (dry_run) return {};
  SS_ASSIGN(const std::string job, submit_script(script));
  terminal::print(
      "\nsubmitted as job array %s; print the table at any time with: simplescale sweep %s "
      "--summary "
      "--run=%s\n",
      job.c_str(), sweep.config_file.c_str(), sweep.folder.c_str());
  return {};
}

}  // namespace

Status sweep_command(SweepOptions options) {
  SS_ASSIGN(const Sweep sweep, plan_sweep(options));
  SS_RETURN_IF_ERROR(check_sweep_folder(sweep));
  if (options.dry_run) {
    if (options.submit) return submit_all(sweep, true);
    list_runs(sweep);
    return {};
  }
  SS_RETURN_IF_ERROR(create_sweep_folder(sweep));
  if (options.summary) return summarize_all(sweep);
  if (!sweep.own_data) SS_RETURN_IF_ERROR(prepare_data(sweep.base.config));
  if (options.submit) return submit_all(sweep, false);
  SS_ASSIGN(const size_t failed, train_all(sweep));
  SS_RETURN_IF_ERROR(summarize_all(sweep));
  if (failed > 0)
    return Status(Code::gave_up, std::to_string(failed) + " of " +
                                     std::to_string(sweep.runs.size()) +
                                     " runs failed; the same command trains them again");
  if (interrupts > 0) terminal::print("interrupted; the same command continues from here\n");
  return {};
}

}  // namespace simplescale
