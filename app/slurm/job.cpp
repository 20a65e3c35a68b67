#include "app/slurm/job.hpp"

#include <fcntl.h>
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
#include "runtime/base/files.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/run_command.hpp"
#include "runtime/training/names.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kCommandMs = 20'000;  // of sbatch and scontrol; a busy controller takes its time
constexpr auto kStandInMax = std::chrono::hours(1);  // for news of a host, beyond Slurm's patience
constexpr auto kAgain = std::chrono::seconds(2);     // scontrol, while a task waits for news

/// This job's number, if it is one.
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

/// Output of a command that is to succeed.
Result<std::string> must_run(const std::vector<std::string>& argv) {
  SS_ASSIGN(CommandResult result, run_command(argv, kCommandMs));
  while (!result.output.empty() && result.output.back() == '\n') result.output.pop_back();
  if (result.code == 0) return result.output;
  return Status(Code::unavailable, shell_text(argv) + " failed: " + result.output);
}

/// The job in one line of name=value.
Result<std::string> show(const std::string& job) {
  return must_run({"scontrol", "show", "job", job, "--oneliner"});
}

/// The newest checkpoint by its folder's name: a measure of progress, not a promise.
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

/// How this job's start of the run has ended: its own word, and without one (all its processes
/// were killed, or its hosts died) that it wants to go on. If it never began, srun's code; hosts
/// that srun could not reach or lost are worth another try.
int code_of_run(const RunFolder& run, const std::string& job, int srun_code) {
  const bool of_srun = srun_code == 1 || srun_code > 128;
  const int not_begun = of_srun ? exit_code(Code::requeue) : srun_code;
  const std::string restart = environment_variable("SLURM_RESTART_COUNT");
  auto instance = read_text(run.instance());
  if (!instance.ok()) return not_begun;
  while (!instance->empty() && instance->back() == '\n') instance->pop_back();
  if (!instance->starts_with(job + ".") ||
      !instance->ends_with("." + (restart.empty() ? "0" : restart)))
    return not_begun;
  const auto text = read_text(run.end());
  const json document = text.ok() ? json::parse(*text, nullptr, false) : json();
  if (document.is_object() && document.value("instance", "") == *instance &&
      document.contains("exit") && document["exit"].is_number_integer())
    return document["exit"].get<int>();
  return srun_code == 0 ? 0 : exit_code(Code::requeue);
}

slurm::Requeues read_requeues(const RunFolder& run) {
  const auto text = read_text(requeues_file(run));
  const json document = text.ok() ? json::parse(*text, nullptr, false) : json();
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
    const json document = json::parse(line, nullptr, false);
    if (!document.is_object() || !document.contains("job") || document["job"] != job ||
        !document.contains("host") || !document["host"].is_string())
      continue;
    const std::string host = document["host"].get<std::string>();
    if (slurm::valid_node_name(host)) names.push_back(host);
  }
  return names;
}

/// Back into the queue, without these hosts; Slurm starts it some two minutes later at the
/// earliest. It counts as pending at once, so that it may be changed: this script has until
/// KillWait to do so.
Status requeue(const std::string& job, const std::string& excluded) {
  SS_RETURN_IF_ERROR(must_run({"scontrol", "requeue", job}).status());
  if (excluded.empty()) return {};
  return must_run({"scontrol", "update", "JobId=" + job, "ExcNodeList=" + excluded}).status();
}

/// The hosts of a list of Slurm's, which may have ranges; empty if Slurm does not tell.
std::vector<std::string> hosts_of(const std::string& list) {
  std::vector<std::string> hosts;
  if (list.empty()) return hosts;  // scontrol would take the job's own
  const auto names = must_run({"scontrol", "show", "hostnames", list});
  std::istringstream lines(names.ok() ? *names : "");
  for (std::string line; std::getline(lines, line);) hosts.push_back(line);
  return hosts;
}
bool has(const std::vector<std::string>& hosts, const std::string& host) {
  return std::ranges::find(hosts, host) != hosts.end();
}

Status note_failed_node(const std::string& run, const json& line) {
  const std::string path = failed_nodes_file(RunFolder{run});
  const std::string text = json_text(line) + "\n";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool written =
      file >= 0 && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (file >= 0) close(file);
  return written ? Status() : Status(Code::io, "cannot write " + path);
}

/// The run's last word on its nodes.
std::vector<slurm::Seat> seats_of(const RunFolder& run) {
  std::vector<slurm::Seat> seats;
  const auto text = read_text(run.status());
  const json document = text.ok() ? json::parse(*text, nullptr, false) : json();
  if (!document.is_object() || !document.contains("nodes") || !document["nodes"].is_array())
    return seats;
  for (const json& node : document["nodes"]) {
    if (!node.is_object()) continue;
    try {
      seats.push_back(
          {node.value("name", ""), node.value("host", ""), node.value("state", "") == "lost"});
    } catch (const json::exception&) {
      return {};
    }
  }
  return seats;
}

/// What this process says from now on is added to a file.
void write_to(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  close(file);
}

/// How long Slurm takes at most to notice that a host does not answer; some time later it is down.
std::chrono::seconds slurm_patience() {
  const auto config = must_run({"scontrol", "show", "config"});
  int seconds = 300;  // Slurm's default
  if (config.ok())
    if (const size_t at = config->find("SlurmdTimeout"); at != std::string::npos)
      std::sscanf(config->c_str() + at, "SlurmdTimeout = %d", &seconds);
  return std::chrono::seconds(std::clamp(seconds, 1, 3600) / 2 + 30);
}

/// Whether a host answers, for all that Slurm knows.
bool answers(const std::string& host) {
  const auto shown = must_run({"scontrol", "show", "node", host, "--oneliner"});
  const std::string state = shown.ok() ? slurm::field(*shown, "State") : "";
  const auto says = [&](const char* what) { return state.find(what) != std::string::npos; };
  return !state.empty() && !says("*") && !says("DOWN") && !says("NOT_RESPONDING");
}

}  // namespace

Result<BatchFile> write_batch_file(const std::string& config_file, Overrides overrides,
                                   const std::string& run) {
  SS_ASSIGN(RunStart start, run_start(config_file, std::move(overrides), run));
  const RunFolder folder{run_folder(start.config)};
  SS_RETURN_IF_ERROR(check_run_folder(folder, start.config));
  start.config.run.resume = Resume::automatic;  // a requeued job goes on with its own run
  const int tasks = start.plan.topology.nodes + static_cast<int>(start.config.cluster.spares);
  SS_ASSIGN(const std::string script,
            slurm::batch_script(start.config, program_folder() + "/simplescale", tasks));
  std::error_code error;
  fs::create_directories(folder.control(), error);
  if (!error) fs::create_directories(folder.logs(), error);  // where Slurm writes from the start
  if (error) return Status(Code::bad_config, "cannot make " + folder.path + ": " + error.message());
  const std::string file = folder.control() + "/submit.sh";
  SS_RETURN_IF_ERROR(write_file_atomic(folder.control() + "/submit.toml", to_toml(start.config)));
  SS_RETURN_IF_ERROR(write_file_atomic(file, script));
  return BatchFile{folder.path, file, script};
}

Result<std::string> submit_batch_file(const std::string& file) {
  const auto answer = must_run({"sbatch", "--parsable", file});
  if (!answer.ok()) return Status(Code::bad_config, answer.status().message());
  return answer->substr(0, answer->find(';'));
}

Status submit_command(const std::string& config_file, Overrides overrides, const std::string& run,
                      bool dry_run) {
  SS_ASSIGN(const BatchFile batch, write_batch_file(config_file, std::move(overrides), run));
  std::fputs(batch.script.c_str(), stdout);
  std::fflush(stdout);
  if (dry_run) return {};
  SS_ASSIGN(const std::string job, submit_batch_file(batch.file));
  std::printf(
      "\nsubmitted as job %s; follow it with: simplescale status %s --watch; its output goes to "
      "%s/slurm-%s.out\n",
      job.c_str(), batch.run.c_str(), RunFolder{batch.run}.logs().c_str(), job.c_str());
  return {};
}

int requeue_command(const std::string& path, int code) {
  // Slurm ends this script as soon as it requeues the job.
  for (int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCONT}) signal(number, SIG_IGN);
  const RunFolder run{path};
  const std::string job = job_id();
  if (job.empty()) {
    std::fprintf(stderr, "simplescale: requeue is for the batch script of a job of Slurm\n");
    return exit_code(Code::usage);
  }
  const auto shown = show(job);
  if (!shown.ok()) log::warn("{}", shown.status().message());
  const auto loaded = load_config(run.config());
  slurm::JobEnd end;
  end.job = job;
  end.code = code_of_run(run, job, code);
  end.running = !shown.ok() || slurm::field(*shown, "JobState") == "RUNNING";
  if (loaded.ok()) {
    end.step = newest_checkpoint(loaded->config);
    end.most = loaded->config.slurm.max_requeues;
    end.fruitless = loaded->config.supervision.give_up_after_cycles;
  }
  const slurm::Verdict verdict = slurm::judge(end, read_requeues(run));
  log::info("job {}: {}", job, verdict.reason);
  if (!verdict.requeue) return verdict.code;
  const json document = {{"job", verdict.next.job},
                         {"step", verdict.next.step},
                         {"count", verdict.next.count},
                         {"fruitless", verdict.next.fruitless}};
  if (Status kept = write_file_atomic(requeues_file(run), document.dump(1) + "\n"); !kept.ok()) {
    log::error("{}; not requeued, since its requeues could not be counted", kept.message());
    return verdict.code;
  }
  const std::string excluded = slurm::merged_nodes(
      shown.ok() ? slurm::field(*shown, "ExcNodeList") : "", failed_nodes(run, job));
  if (!excluded.empty()) log::info("without {}", excluded);
  if (Status done = requeue(job, excluded); !done.ok()) log::error("{}", done.message());
  return verdict.code;
}

void stand_in_for_script(const std::string& path, const slurm::Task& task, int code) {
  const std::string job = job_id();
  const std::vector<slurm::Seat> seats = seats_of(RunFolder{path});
  if (job.empty() || !slurm::first_of_the_others(seats, node_name(task.task))) return;
  auto shown = show(job);
  if (!shown.ok() || slurm::field(*shown, "BatchFlag") != "1") return;  // of salloc
  // Slurm starts the script on the first host. What it says of the job later leaves lost hosts out.
  const auto hosts = hosts_of(environment_variable("SLURM_JOB_NODELIST"));
  if (hosts.empty() || !slurm::script_may_be_lost(seats, hosts[0])) return;
  write_to(RunFolder{path}.logs() + "/slurm-" + job + ".out");  // srun is gone with its host
  log::info("waiting until Slurm has noticed the loss of {}, on which the script ran", hosts[0]);
  const auto by_then = std::chrono::steady_clock::now() + slurm_patience();
  while (!shown.ok() || slurm::field(*shown, "JobState") == "RUNNING") {
    const auto left = hosts_of(shown.ok() ? slurm::field(*shown, "NodeList") : "");
    if (!left.empty() && !has(left, hosts[0])) {
      requeue_command(path, code);
      shown = show(job);
      if (shown.ok() && slurm::field(*shown, "JobState") != "RUNNING") return;
      if (auto ended = must_run({"scancel", job}); !ended.ok())
        log::error("{}", ended.status().message());
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now > by_then && answers(hosts[0]))
      return log::info("{} answers Slurm: its script goes on", hosts[0]);
    if (now > by_then + kStandInMax)
      return log::error("Slurm does not tell whether {} is lost; the run has ended: scancel {}",
                        hosts[0], job);
    std::this_thread::sleep_for(kAgain);  // Slurm announces nothing to us
    shown = show(job);
  }
}

std::pair<std::string, std::string> drain_in_slurm(const std::string& run, const std::string& host,
                                                   const std::string& reason) {
  const std::string job = job_id();
  if (job.empty()) return {"", ""};
  if (!slurm::valid_node_name(host) ||
      !has(hosts_of(environment_variable("SLURM_JOB_NODELIST")), host))
    return {"not_drained_in_slurm", "Slurm has no such node in this job"};
  const json line = {{"job", job}, {"host", host}, {"reason", reason}, {"time", wall_time_s()}};
  if (Status noted = note_failed_node(run, line); !noted.ok()) log::warn("{}", noted.message());
  const std::vector<std::string> command = {
      "scontrol", "update", "nodename=" + host, "state=drain",
      "reason=" + slurm::plain_reason("simplescale job " + job + ": " + reason)};
  const auto done = must_run(command);
  if (done.ok()) return {"drained_in_slurm", host + ": " + reason};
  log::warn("{}; somebody who may should run: {}", done.status().message(), shell_text(command));
  return {"not_drained_in_slurm", "somebody who may should run: " + shell_text(command)};
}

}  // namespace simplescale
