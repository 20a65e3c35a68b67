#include "app/slurm/slurm.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>
#include <sstream>
#include <utility>

namespace simplescale::slurm {

namespace {

constexpr uint64_t kTasksMax = 100'000;
constexpr uint64_t kFirstSpecialStep = 4294967280;  // step ids of batch scripts and salloc's shells

std::optional<uint64_t> number(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// True if every character is a letter, a digit or in `more`.
bool has_only(const std::string& text, const char* more) {
  return std::ranges::all_of(
      text, [&](unsigned char c) { return std::isalnum(c) || (c && std::strchr(more, c)); });
}

/// Refuses a value that could be read as more than one value: on an #SBATCH line, which Slurm
/// splits at spaces and in which it interprets quotes, or in the script itself.
Status check_value(const std::string& key, const std::string& value) {
  if (has_only(value, "_-./,:=@+*[]")) return {};
  return Status(Code::bad_config, key + " = \"" + value +
                                      "\" cannot be used in a batch script: only letters, "
                                      "digits and _-./,:=@+*[] can");
}

/// True if Slurm gives this task GPUs that no other task of the host sees, by --gpus-per-task or
/// --gpu-bind. A map or mask may give one GPU to several tasks; "closest" and "none" do.
bool has_own_gpus(const Environment& environment) {
  if (!environment("SLURM_GPUS_PER_TASK").empty()) return true;
  if (environment("SLURM_TRES_PER_TASK").find("gres/gpu") != std::string::npos) return true;
  std::string bind = environment("SLURM_GPU_BIND");
  for (const char* loud : {"verbose,", "v,"})
    if (bind.starts_with(loud)) bind.erase(0, std::strlen(loud));
  return bind == "single" || bind == "single:1" || bind.starts_with("per_task:");
}

/// Parses a text of text_of(); nothing if it is damaged.
std::optional<Task> parse_task(const std::string& text) {
  Task task;
  std::istringstream words(text);
  words >> task.task >> task.tasks >> task.local_task >> task.tasks_on_host >> task.own_gpus >>
      task.shares_gpus >> task.other_hosts >> task.instance >> task.host;
  return words ? std::optional(task) : std::nullopt;
}

}  // namespace

std::string text_of(const Task& task) {
  std::ostringstream text;
  for (const int number : {task.task, task.tasks, task.local_task, task.tasks_on_host,
                           int{task.own_gpus}, int{task.shares_gpus}, int{task.other_hosts}})
    text << number << ' ';
  text << task.instance << ' ' << task.host;
  return text.str();
}

std::optional<Task> task_of(const Environment& environment) {
  if (const std::string told = environment(kTaskVariable); !told.empty()) return parse_task(told);
  const std::string job = environment("SLURM_JOB_ID"), step = environment("SLURM_STEP_ID");
  const std::string restart = environment("SLURM_RESTART_COUNT");
  const auto index = number(environment("SLURM_PROCID"));
  const std::string of_step = environment("SLURM_STEP_NUM_TASKS");
  const auto tasks = number(of_step.empty() ? environment("SLURM_NTASKS") : of_step);
  const auto step_number = number(step);
  if (!index || !tasks || !number(job) || !step_number || *step_number >= kFirstSpecialStep)
    return std::nullopt;
  if (*tasks == 0 || *tasks > kTasksMax || *index >= *tasks) return std::nullopt;
  Task task;
  task.task = static_cast<int>(*index);
  task.tasks = static_cast<int>(*tasks);
  task.local_task = static_cast<int>(number(environment("SLURM_LOCALID")).value_or(0));
  task.tasks_on_host =
      tasks_on_node(environment("SLURM_STEP_TASKS_PER_NODE"),
                    static_cast<int>(number(environment("SLURM_NODEID")).value_or(0)));
  task.tasks_on_host = std::max(task.tasks_on_host, task.local_task + 1);
  task.own_gpus = has_own_gpus(environment);
  task.other_hosts = task.tasks_on_host < task.tasks;
  task.host = environment("SLURMD_NODENAME");
  task.instance = job + "." + step + "." + (number(restart) ? restart : "0");
  return task;
}

int allocation_of(const Environment& environment) {
  const auto step = number(environment("SLURM_STEP_ID"));
  if (!number(environment("SLURM_JOB_ID")) || (step && *step < kFirstSpecialStep)) return 0;
  std::string nodes = environment("SLURM_JOB_NUM_NODES");
  if (nodes.empty()) nodes = environment("SLURM_NNODES");
  const uint64_t count = number(nodes).value_or(0);
  return count > kTasksMax ? 0 : static_cast<int>(count);
}

namespace {
/// Appends the names of a list such as "n[01-03,7]x". False: the text has another form.
bool add_hosts(const std::string& part, std::vector<std::string>& hosts) {
  const size_t open = part.find('['), close = part.find(']');
  if (open == std::string::npos) {
    hosts.push_back(part);
    return valid_node_name(part);
  }
  if (close == std::string::npos || close < open || part.find('[', open + 1) != std::string::npos)
    return false;
  std::istringstream ranges(part.substr(open + 1, close - open - 1));
  for (std::string range; std::getline(ranges, range, ',');) {
    const size_t dash = range.find('-');
    const std::string first = range.substr(0, dash);
    const auto from = number(first),
               to = dash == std::string::npos ? from : number(range.substr(dash + 1));
    if (!from || !to || *to < *from || *to - *from >= kTasksMax - hosts.size()) return false;
    for (uint64_t i = *from; i <= *to; ++i) {
      std::string digits = std::to_string(i);
      if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
      hosts.push_back(part.substr(0, open) + digits + part.substr(close + 1));
      if (!valid_node_name(hosts.back())) return false;
    }
  }
  return true;
}
}  // namespace

std::vector<std::string> hosts_of(const std::string& list) {
  std::vector<std::string> hosts;
  std::string part;
  bool inside = false;  // between brackets
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && (list[i] != ',' || inside)) {
      inside = list[i] == '[' || (inside && list[i] != ']');
      part += list[i];
    } else if (!add_hosts(std::exchange(part, {}), hosts) || hosts.size() > kTasksMax) {
      return {};
    }
  }
  return hosts;
}

std::string host_of_task(const std::vector<std::string>& hosts, const std::string& tasks_per_node,
                         int task) {
  for (size_t i = 0; i < hosts.size() && task >= 0; ++i) {
    const int here = tasks_on_node(tasks_per_node, static_cast<int>(i));
    if (task < here) return hosts[i];
    task -= here;
  }
  return "";
}

int tasks_on_node(const std::string& text, int index) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    unsigned tasks = 0, nodes = 1;
    if (std::sscanf(part.c_str(), "%u(x%u)", &tasks, &nodes) < 1) return 1;
    if (index < static_cast<int>(nodes)) return static_cast<int>(std::clamp(tasks, 1U, 10'000U));
    index -= static_cast<int>(nodes);
  }
  return 1;
}

std::string batch_log(const std::optional<Task>& task) {
  const size_t end_of_job = task ? task->instance.find('.') : std::string::npos;
  if (end_of_job == std::string::npos || task->task != 0) return "";
  return "slurm-" + task->instance.substr(0, end_of_job) + ".out";
}

bool valid_node_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::isalnum(static_cast<unsigned char>(name[0])) &&
         has_only(name, "-_.");
}

std::string sanitized_reason(const std::string& text) {
  std::string plain;
  for (unsigned char c : text.substr(0, 200))
    plain += c < ' ' || c > '~' || c == '"' || c == '\'' || c == '\\' ? ' ' : static_cast<char>(c);
  return plain;
}

namespace {

/// The #SBATCH lines of one run.
Result<std::string> sbatch_options(const Config& config, const std::string& run, int tasks) {
  const SlurmConfig& slurm = config.slurm;
  const int64_t per_host = slurm.tasks_per_node;
  const bool packed = per_host == 0;  // each host takes as many tasks as fit on it
  if (packed && slurm.cpus_per_task == 0)
    return Status(Code::bad_config,
                  "slurm.tasks_per_node = 0 needs slurm.cpus_per_task: Slurm derives from it how "
                  "many tasks fit on a host");
  int64_t gpus = slurm.gpus_per_node;
  if (gpus < 0)
    gpus = config.cluster.device == DeviceKind::cuda
               ? std::max<int64_t>(1, per_host) * config.cluster.trainers_per_node
               : 0;
  std::string text;
  const auto option = [&](const std::string& line) { text += "#SBATCH --" + line + "\n"; };
  option("job-name=" + config.run.name);
  option("ntasks=" + std::to_string(tasks));
  if (!packed) {
    option("nodes=" + std::to_string((tasks + per_host - 1) / per_host));
    option("ntasks-per-node=" + std::to_string(per_host));
  }
  if (gpus > 0 && packed)
    option("gpus-per-task=" + std::to_string(config.cluster.trainers_per_node));
  else if (gpus > 0)
    option("gpus-per-node=" + std::to_string(gpus));
  if (slurm.cpus_per_task > 0)
    option("cpus-per-task=" + std::to_string(slurm.cpus_per_task));
  else
    option("exclusive");
  option("no-kill");
  option("requeue");
  option("signal=USR1@" + std::to_string(slurm.save_before_end_s));
  option("open-mode=append");
  option("output=" + run + "/logs/slurm-%j.out");
  if (slurm.time_minutes > 0) option("time=" + std::to_string(slurm.time_minutes));
  if (!slurm.partition.empty()) option("partition=" + slurm.partition);
  if (!slurm.account.empty()) option("account=" + slurm.account);
  if (!slurm.qos.empty()) option("qos=" + slurm.qos);
  std::istringstream more(slurm.options);
  for (std::string word; more >> word;) {
    if (!word.starts_with("--") || word.size() < 3)
      return Status(Code::bad_config, "slurm.options: " + word +
                                          " is not an option of sbatch in its long form, "
                                          "--name=value");
    SS_RETURN_IF_ERROR(check_value("slurm.options", word));
    option(word.substr(2));
  }
  return text;
}

}  // namespace

Result<std::string> batch_script(const Config& config, const std::string& program, int tasks) {
  const SlurmConfig& slurm = config.slurm;
  const std::string run = run_folder(config);
  for (const auto& [key, value] : {std::pair{"run.name", config.run.name},
                                   {"run.folder", run},
                                   {"the program", program},
                                   {"slurm.partition", slurm.partition},
                                   {"slurm.account", slurm.account},
                                   {"slurm.qos", slurm.qos}})
    SS_RETURN_IF_ERROR(check_value(key, value));
  SS_ASSIGN(const std::string options, sbatch_options(config, run, tasks));
  const std::string binding = slurm.cpus_per_task > 0
                                  ? "--cpus-per-task=" + std::to_string(slurm.cpus_per_task)
                                  : "--cpu-bind=none";
  return "#!/bin/bash\n"
         "# Written by `simplescale submit`. Slurm runs it on the first node, and again after "
         "every "
         "requeue.\n" +
         options + "\nprogram=" + program + "\nrun=" + run + R"(
# One node agent per task. The loss of a node does not end the step; recovery needs no new step.
srun --no-kill --kill-on-bad-exit=0 --wait=0 )" +
         binding + R"( "$program" train "$run/control/submit.toml" --run="$run" &
step=$!
# Slurm sends the tasks USR1 before the time limit, TERM for scancel and preemption: they save.
trap 'kill -USR1 $step' USR1
trap : TERM  # srun would kill its tasks
while :; do
  wait $step
  code=$?
  kill -0 $step 2>/dev/null || break
done
# Exit code 75 requeues the job without the nodes that failed their diagnosis; others end the job.
exec "$program" requeue "$run" --code=$code
)";
}

Result<std::string> array_script(const std::string& batch_script, const std::string& name,
                                 const std::string& folder, const std::vector<std::string>& runs) {
  SS_RETURN_IF_ERROR(check_value("run.name", name));
  SS_RETURN_IF_ERROR(check_value("run.folder", folder));
  for (const std::string& run : runs) SS_RETURN_IF_ERROR(check_value("run.folder", run));
  std::string text =
      "#!/bin/bash\n# Written by `simplescale sweep --submit`: one array element per run.\n"
      "#SBATCH --job-name=" +
      name + "\n#SBATCH --array=0-" + std::to_string(runs.size() - 1) +
      "\n#SBATCH --output=" + folder + "/logs/slurm-%A_%a.out\n";
  std::istringstream lines(batch_script);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("#SBATCH ") && !line.starts_with("#SBATCH --job-name=") &&
        !line.starts_with("#SBATCH --output="))
      text += line + "\n";
  text += "\nruns=(\n";
  for (const std::string& run : runs) text += "'" + run + "'\n";  // the shell expands [1] and *
  return text + R"()
run=${runs[$SLURM_ARRAY_TASK_ID]}
exec >>"$run/logs/slurm-$SLURM_JOB_ID.out" 2>&1
# What other users could have changed is not executed. The script's folder is entered first, so that
# it cannot be replaced after the check.
folder=$PWD
cd "$run/control" && [ -O . ] && [[ $(stat -c %a .) =~ ^.?700$ ]] && [ -O submit.sh ] &&
  [ ! -L submit.sh ] || { echo "$run/control/submit.sh: other users can change it" >&2; exit 65; }
script=$(<submit.sh)
cd "$folder" && exec bash -c "$script" submit.sh
)";
}

RequeueDecision decide_requeue(const JobEnd& end, const Requeues& before) {
  constexpr int kRequeue = 75;
  RequeueDecision decision{false, end.code, "", {end.job, end.step, 0, 0}};
  if (end.code != kRequeue) {
    decision.reason = "not requeued: the run ended with exit code " + std::to_string(end.code);
    return decision;
  }
  if (before.job == end.job) {
    decision.next.count = before.count;
    decision.next.fruitless = end.step > before.step ? 0 : before.fruitless + 1;
  }
  if (!end.running) {
    decision.reason =
        "not requeued: Slurm itself ends or requeues the job; `submit` continues from "
        "step " +
        std::to_string(end.step);
  } else if (decision.next.count >= end.requeues_max) {
    decision.code = exit_code(Code::gave_up);
    decision.reason =
        "gave up: requeued " + std::to_string(before.count) + " times (slurm.max_requeues)";
  } else if (decision.next.fruitless >= end.fruitless_max) {
    decision.code = exit_code(Code::gave_up);
    decision.reason = "gave up: " + std::to_string(decision.next.fruitless) +
                      " requeues in a row without a newer checkpoint than step " +
                      std::to_string(end.step);
  } else {
    decision.requeue = true;
    ++decision.next.count;
    decision.reason = "requeued; continues from step " + std::to_string(end.step);
  }
  return decision;
}

bool is_first_survivor(const std::vector<LastKnownNode>& nodes, const std::string& name) {
  const auto first = std::ranges::find(nodes, false, &LastKnownNode::lost);
  return first != nodes.end() && first->name == name &&
         std::ranges::any_of(nodes, [](const LastKnownNode& node) { return node.lost; });
}

bool script_may_be_lost(const std::vector<LastKnownNode>& nodes, const std::string& script_host) {
  const auto is_lost_n0 = [](const LastKnownNode& n) { return n.name == "n0" && n.lost; };
  const auto lives_there = [&](const LastKnownNode& n) { return n.host == script_host && !n.lost; };
  return std::ranges::any_of(nodes, is_lost_n0) && std::ranges::none_of(nodes, lives_there);
}

std::string field(const std::string& line, const std::string& name) {
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (word.starts_with(name + "=")) return word.substr(name.size() + 1);
  return "";
}

std::string merge_node_lists(const std::string& list, const std::vector<std::string>& more) {
  std::string merged = list == "(null)" ? "" : list;
  for (const std::string& name : std::set<std::string>(more.begin(), more.end()))
    if (("," + merged + ",").find("," + name + ",") == std::string::npos)
      merged += (merged.empty() ? "" : ",") + name;
  return merged;
}

}  // namespace simplescale::slurm
