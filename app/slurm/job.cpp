#include "app/slurm/job.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "actors/supervisor/journal.hpp"
#include "app/terminal.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/path_error.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/run_command.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/run/run_state.hpp"
#include "runtime/training/names.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kCommandMs =
    20'000;  // deadline of sbatch and scontrol; a busy controller is slow
constexpr auto kDetectionMax = std::chrono::hours(1);    // added to slurm_detection_time()
constexpr auto kPollInterval = std::chrono::seconds(2);  // of scontrol, until a host is lost

/// This job's number; "" outside a job.
std::string job_id() {
  const std::string job = environment_variable("SLURM_JOB_ID");
  const bool digits = !job.empty() && job.size() < 12 &&
                      std::ranges::all_of(job, [](unsigned char c) { return std::isdigit(c); });
  return digits ? job : "";
}

std::string requeues_file(const RunFolder& run) {
  return run.control() + "/requeues.json";
}
std::string failed_nodes_file(const RunFolder& run) {
  return run.control() + "/failed_nodes.jsonl";
}

/// Output of a command. unavailable: it failed.
Result<std::string> run_checked(const std::vector<std::string>& argv,
                                const std::string& input = "") {
  SS_ASSIGN(CommandResult result, run_command(argv, kCommandMs, {.input = input}));
  while (!result.output.empty() && result.output.back() == '\n') result.output.pop_back();
  if (result.code == 0) return result.output;
  return Status(Code::unavailable, shell_text(argv) + " failed: " + result.output);
}

/// The job as one line of name=value fields.
Result<std::string> show_job(const std::string& job) {
  return run_checked({"scontrol", "show", "job", job, "--oneliner"});
}

/// Step in the folder name of the newest checkpoint. It measures progress; the checkpoint may be
/// invalid.
uint64_t newest_checkpoint(const Config& config) {
  uint64_t newest = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(checkpoint_folder(config), error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == std::string::npos)
      newest = std::max<uint64_t>(newest, std::strtoull(name.c_str() + 5, nullptr, 10));
  }
  return newest;
}

/// The exit code of the run in this job: the one in control/end.json, or 75 (requeue) if the run
/// began but wrote none, because its processes or hosts died. If the run never began: srun's code,
/// or 75 for srun's own errors, such as unreachable hosts.
int exit_code_of_run(const RunFolder& run, const std::string& job, int srun_code) {
  const bool of_srun = srun_code == 1 || srun_code > 128;
  const int not_begun = of_srun ? exit_code(Code::requeue) : srun_code;
  const std::string restart = environment_variable("SLURM_RESTART_COUNT");
  const std::string instance = instance_of(run);
  if (!instance.starts_with(job + ".") ||
      !instance.ends_with("." + (restart.empty() ? "0" : restart)))
    return not_begun;
  if (const auto end = end_of(run, instance)) return end->code;
  return srun_code == 0 ? 0 : exit_code(Code::requeue);
}

slurm::Requeues read_requeues(const RunFolder& run) {
  const json document = json_of(read_text(requeues_file(run)));
  slurm::Requeues before;
  if (!document.is_object()) return before;
  try {
    before.job = document.value("job", "");
    before.step = document.value("step", uint64_t{0});
    before.count = document.value("count", int64_t{0});
    before.fruitless = document.value("fruitless", int64_t{0});
  } catch (const json::exception&) {
    return {};
  }
  return before;
}

/// Hosts that failed their diagnosis in this job.
std::vector<std::string> failed_nodes(const RunFolder& run, const std::string& job) {
  std::vector<std::string> names;
  const auto text = read_text(failed_nodes_file(run));
  if (!text.ok()) return names;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const json document = parse_json(line);
    if (const std::string host = text_of(document, "host");
        text_of(document, "job") == job && slurm::valid_node_name(host))
      names.push_back(host);
  }
  return names;
}

/// Requeues the job without the excluded hosts. Slurm starts it again after at least two minutes.
/// The job becomes pending at once, so it can be changed, but Slurm kills this script after
/// KillWait.
Status requeue(const std::string& job, const std::string& excluded) {
  SS_RETURN_IF_ERROR(run_checked({"scontrol", "requeue", job}).status());
  if (excluded.empty()) return {};
  return run_checked({"scontrol", "update", "JobId=" + job, "ExcNodeList=" + excluded}).status();
}

/// The hosts in one of Slurm's lists, which may have ranges. Empty if scontrol fails.
std::vector<std::string> hosts_of(const std::string& list) {
  std::vector<std::string> hosts;
  if (list.empty()) return hosts;  // for an empty list, scontrol would list the job's own hosts
  const auto names = run_checked({"scontrol", "show", "hostnames", list});
  std::istringstream lines(names.ok() ? *names : "");
  for (std::string line; std::getline(lines, line);) hosts.push_back(line);
  return hosts;
}
bool contains(const std::vector<std::string>& hosts, const std::string& host) {
  return std::ranges::find(hosts, host) != hosts.end();
}

Status record_failed_node(const std::string& run, const json& line) {
  const std::string path = failed_nodes_file(RunFolder{run});
  const std::string text = json_text(line) + "\n";
  const int file = open_output(path, Output::append);
  const bool written =
      file >= 0 && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (file >= 0) close(file);
  return written ? Status() : Status(Code::io, "cannot write " + path);
}

/// Appends all further output of this process to a file.
void redirect_output_to(const std::string& path) {
  const int file = open_output(path, Output::append);
  if (file < 0) return;
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  close(file);
}

/// The longest time until Slurm notices that a host does not respond.
std::chrono::seconds slurm_detection_time() {
  const auto config = run_checked({"scontrol", "show", "config"});
  int seconds = 300;  // Slurm's default
  if (config.ok())
    if (const size_t at = config->find("SlurmdTimeout"); at != std::string::npos)
      std::sscanf(config->c_str() + at, "SlurmdTimeout = %d", &seconds);
  return std::chrono::seconds(std::clamp(seconds, 1, 3600) / 2 + 30);
}

/// True if the host responds to Slurm.
bool host_responds(const std::string& host) {
  const auto shown = run_checked({"scontrol", "show", "node", host, "--oneliner"});
  const std::string state = shown.ok() ? slurm::field(*shown, "State") : "";
  const auto has = [&](const char* flag) { return state.find(flag) != std::string::npos; };
  return !state.empty() && !has("*") && !has("DOWN") && !has("NOT_RESPONDING");
}

}  // namespace

std::vector<slurm::LastKnownNode> last_known_nodes(const RunFolder& run,
                                                   const std::string& instance) {
  std::vector<slurm::LastKnownNode> nodes;
  const json document = status_of(run, instance);
  if (!document.is_object() || !document.contains("nodes") || !document["nodes"].is_array())
    return nodes;
  for (const json& node : document["nodes"]) {
    if (!node.is_object()) continue;
    try {
      nodes.push_back(
          {node.value("name", ""), node.value("host", ""), node.value("state", "") == "lost"});
    } catch (const json::exception&) {
      return {};
    }
  }
  return nodes;
}

Result<BatchFile> plan_batch_file(RunStart start) {
  const RunFolder folder{run_folder(start.config)};
  start.config.run.resume = Resume::automatic;  // a requeued job resumes its own run
  const int tasks = start.plan.topology.nodes + static_cast<int>(start.config.cluster.spares);
  SS_ASSIGN(const std::string script,
            slurm::batch_script(start.config, program_folder() + "/simplescale", tasks));
  return BatchFile{folder.path, folder.control() + "/submit.sh", script, to_toml(start.config)};
}

Status write_batch_file(const BatchFile& batch) {
  const RunFolder folder{batch.run};
  SS_RETURN_IF_ERROR(make_control(folder));
  std::error_code error;
  fs::create_directories(folder.logs(), error);  // for Slurm's output
  if (error)
    return Status(path_error(error.value(), Code::bad_config),
                  "cannot create " + folder.path + ": " + error.message());
  SS_RETURN_IF_ERROR(write_file_atomic(folder.control() + "/submit.toml", batch.config, 0600));
  return write_file_atomic(batch.file, batch.script);
}

Result<std::string> submit_script(const std::string& script) {
  const auto answer = run_checked({"sbatch", "--parsable"}, script);
  if (!answer.ok()) return Status(Code::bad_config, answer.status().message());
  return answer->substr(0, answer->find(';'));
}

Status submit_command(const std::string& config_file, Overrides overrides, const std::string& run,
                      bool dry_run) {
  SS_ASSIGN(RunStart start, resolve_run_start(config_file, std::move(overrides), run));
  SS_RETURN_IF_ERROR(refuse_sweep(config_file, start.config));
  SS_RETURN_IF_ERROR(check_before_start(start));
  SS_ASSIGN(const BatchFile batch, plan_batch_file(std::move(start)));
  std::error_code error;
  const bool is_new = !fs::exists(batch.run, error);
  if (!dry_run) SS_RETURN_IF_ERROR(write_batch_file(batch));
  terminal::text(batch.script);
  std::fflush(stdout);
  if (dry_run) return {};
  auto submitted = submit_script(batch.script);
  if (!submitted.ok() && is_new) fs::remove_all(batch.run, error);  // it has only these files
  SS_ASSIGN(const std::string job, std::move(submitted));
  terminal::print(
      "\nsubmitted as job %s; watch it with: simplescale status %s --watch; its output is in "
      "%s/slurm-%s.out\n",
      job.c_str(), batch.run.c_str(), RunFolder{batch.run}.logs().c_str(), job.c_str());
  return {};
}

int requeue_command(const std::string& path, int code) {
  // Slurm ends this script as soon as the script requeues the job.
  for (int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCONT}) signal(number, SIG_IGN);
  const RunFolder run{path};
  const std::string job = job_id();
  if (job.empty()) {
    terminal::error("simplescale: requeue works only in the batch script of a Slurm job\n");
    return exit_code(Code::usage);
  }
  if (Status own = keep_others_out(run); !own.ok()) {
    log::error("{}; not requeued", own.message());
    return code;
  }
  const auto shown = show_job(job);
  if (!shown.ok()) log::warn("{}", shown.status().message());
  const auto loaded = load_config(run.config());
  slurm::JobEnd end;
  end.job = job;
  end.code = exit_code_of_run(run, job, code);
  end.running = !shown.ok() || slurm::field(*shown, "JobState") == "RUNNING";
  if (loaded.ok()) {
    end.step = newest_checkpoint(loaded->config);
    end.requeues_max = loaded->config.slurm.max_requeues;
    end.fruitless_max = loaded->config.supervision.give_up_after_cycles;
  }
  const slurm::RequeueDecision decision = slurm::decide_requeue(end, read_requeues(run));
  log::info("job {}: {}", job, decision.reason);
  if (!decision.requeue) return decision.code;
  const json document = {{"job", decision.next.job},
                         {"step", decision.next.step},
                         {"count", decision.next.count},
                         {"fruitless", decision.next.fruitless}};
  if (Status kept = write_file_atomic(requeues_file(run), document.dump(1) + "\n"); !kept.ok()) {
    log::error("{}; not requeued, since the requeue cannot be counted", kept.message());
    return decision.code;
  }
  const std::string excluded = slurm::merge_node_lists(
      shown.ok() ? slurm::field(*shown, "ExcNodeList") : "", failed_nodes(run, job));
  if (!excluded.empty()) log::info("excluded hosts: {}", excluded);
  if (Status done = requeue(job, excluded); !done.ok()) log::error("{}", done.message());
  return decision.code;
}

void act_for_lost_script(const std::string& path, const slurm::Task& task, int code) {
  const std::string job = job_id();
  const std::vector<slurm::LastKnownNode> nodes = last_known_nodes(RunFolder{path}, task.instance);
  if (job.empty() || !slurm::is_first_survivor(nodes, node_name(task.task))) return;
  auto shown = show_job(job);
  if (!shown.ok() || slurm::field(*shown, "BatchFlag") != "1") return;  // salloc: no script
  // Slurm runs the script on the first host. The environment still names lost hosts.
  const auto hosts = hosts_of(environment_variable("SLURM_JOB_NODELIST"));
  if (hosts.empty() || !slurm::script_may_be_lost(nodes, hosts[0])) return;
  // srun died with that host, so this process's output no longer reaches the script's file.
  redirect_output_to(RunFolder{path}.logs() + "/slurm-" + job + ".out");
  log::info("waiting until Slurm has noticed the loss of {}, which ran the batch script", hosts[0]);
  const auto detected_by = std::chrono::steady_clock::now() + slurm_detection_time();
  while (!shown.ok() || slurm::field(*shown, "JobState") == "RUNNING") {
    const auto left = hosts_of(shown.ok() ? slurm::field(*shown, "NodeList") : "");
    if (!left.empty() && !contains(left, hosts[0])) {
      requeue_command(path, code);
      shown = show_job(job);
      if (shown.ok() && slurm::field(*shown, "JobState") != "RUNNING") return;
      if (auto ended = run_checked({"scancel", job}); !ended.ok())
        log::error("{}", ended.status().message());
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now > detected_by && host_responds(hosts[0]))
      return log::info("{} responds to Slurm: the batch script there ends the job", hosts[0]);
    if (now > detected_by + kDetectionMax)
      return log::error(
          "the run has ended, but Slurm has not reported {} as lost; end the job with: scancel {}",
          hosts[0], job);
    std::this_thread::sleep_for(kPollInterval);
    shown = show_job(job);
  }
}

std::pair<std::string, std::string> drain_in_slurm(const std::string& run, const std::string& host,
                                                   const std::string& reason) {
  const std::string job = job_id();
  if (job.empty()) return {"", ""};
  if (!slurm::valid_node_name(host) ||
      !contains(hosts_of(environment_variable("SLURM_JOB_NODELIST")), host))
    return {"not_drained_in_slurm", "this Slurm job has no node named " + host};
  const json line = {{"job", job}, {"host", host}, {"reason", reason}, {"time", wall_time_s()}};
  if (Status recorded = record_failed_node(run, line); !recorded.ok())
    log::warn("{}", recorded.message());
  const std::vector<std::string> command = {
      "scontrol", "update", "nodename=" + host, "state=drain",
      "reason=" + slurm::sanitized_reason("simplescale job " + job + ": " + reason)};
  const auto done = run_checked(command);
  if (done.ok()) return {"drained_in_slurm", host + ": " + reason};
  log::warn("{}; ask an administrator to run: {}", done.status().message(), shell_text(command));
  return {"not_drained_in_slurm", "ask an administrator to run: " + shell_text(command)};
}

}  // namespace simplescale
