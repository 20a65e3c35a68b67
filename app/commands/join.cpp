// `train --join RUN`: this host becomes a node of a run that trains. It takes the run's
// configuration and a free name (runtime/run/name_lock.hpp), and runs one node agent. The supervisor
// decides whether the node trains or is a spare (actors/supervisor/decision).
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "app/commands/commands.hpp"
#include "app/commands/run_status.hpp"
#include "app/commands/supervisor_client.hpp"
#include "app/hosts/sharing.hpp"
#include "app/hosts/task.hpp"
#include "app/interrupts.hpp"
#include "app/launch/agent_launcher.hpp"
#include "app/launch/auto_device.hpp"
#include "app/launch/command_line.hpp"
#include "app/launch/numerics.hpp"
#include "app/launch/run_start.hpp"
#include "app/terminal.hpp"
#include "runtime/base/process.hpp"
#include "runtime/config/preflight.hpp"
#include "runtime/run/name_lock.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/run/run_state.hpp"
#include "transport/gpu/nccl_network.hpp"

namespace simplescale {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// The start of the run that trains now. bad_config: none does.
Result<std::string> living_start(const RunFolder& run) {
  std::string instance = instance_of(run);
  const auto end = end_of(run, instance);
  if (RunLock::held(run) && !instance.empty() && !end) return instance;
  return Status(Code::bad_config, shown_path(run.path) + " does not train now" +
                                      (end ? " (" + end->reason + ")" : "") +
                                      ", so no host can join it; to continue it: " +
                                      command_line({"resume", shown_path(run.path)}));
}

/// bad_config: this program would compute other bits than the run's. The run's hosts decide on the
/// instructions, and the supervisor drains a node that lacks them.
Status check_joins(const RunFolder& run, const Config& config, const Plan& plan) {
  if (!may_grow(config))
    return Status(Code::bad_config,
                  shown_path(run.path) + " began with all " + std::to_string(most_nodes(config)) +
                      " nodes that it may have; to let hosts join, stop it and continue it with "
                      "a larger number: " +
                      command_line({"resume", shown_path(run.path), "--cluster.max_nodes=N"}));
  return numerics_changes(run, config, plan, 0).status();
}

/// The node of this host, or of this task of srun, for the processes that this command starts.
slurm::Task task_of_node(int node, const Config& config, const std::string& instance) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  slurm::Task task = slurm_task().value_or(slurm::Task{.own_gpus = true, .host = host});
  task.task = node;
  task.tasks = most_nodes(config);
  task.other_hosts = true;
  task.instance = instance;
  return task;
}

/// Asks the supervisor to remove this node. A second signal ends the wait for its answer.
void ask_to_leave(const RunFolder& run, const Config& config, const std::string& node) {
  terminal::error(
      "simplescale: %s leaves the run after this step; the same signal again ends it at once\n",
      node.c_str());
  SupervisorClient client(run, config, [] { return interrupts > 1; });
  const auto reply = client.ask(Command{{"remove", node}, "the command of " + node}, true);
  const std::string why = !reply.ok()                         ? reply.status().message()
                          : !reply->ok                        ? reply->text
                          : reply->text.starts_with("cannot") ? reply->text
                                                              : "";
  if (!why.empty())
    terminal::error("simplescale: %s stays in the run: %s\n", node.c_str(), why.c_str());
}

}  // namespace

Status join_command(const std::string& folder, bool oversubscribe) {
  const RunFolder run{folder};
  SS_RETURN_IF_ERROR(check_is_run(folder));
  SS_RETURN_IF_ERROR(keep_others_out(run));
  SS_ASSIGN(const std::string instance, living_start(run));
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  const Config& config = loaded.config;
  SS_ASSIGN(const Plan plan, make_plan(config));
  SS_RETURN_IF_ERROR(check_joins(run, config, plan));
  SS_RETURN_IF_ERROR(check_device(config));
  PreflightInput input;
  const slurm::Task place = slurm_task().value_or(slurm::Task());
  const int slots = plan.topology.trainers_per_node;
  input.trainers_on_host = slots * place.tasks_on_host;
  input.writes_checkpoints = false;
  input.oversubscribe = oversubscribe;
  input.staged = !nccl_is_allowed(true, config.transport.trusted_networks);
  SS_RETURN_IF_ERROR(preflight(config, plan, input));
  auto name = NameLock::take_free(run, instance,
                                  static_cast<int>(config.cluster.nodes + config.cluster.spares),
                                  most_nodes(config));
  if (name.status().code() == Code::unavailable)
    return Status(Code::bad_config, name.status().message() +
                                        " (cluster.max_nodes); remove a node first, in the "
                                        "console, or continue the run with a larger number");
  SS_RETURN_IF_ERROR(name.status());
  const slurm::Task task = task_of_node(name->node(), config, instance);
  SS_RETURN_IF_ERROR(check_trusted_networks(config, task));
  setenv(slurm::kTaskVariable, slurm::text_of(task).c_str(), 1);
  const std::string node = node_name(name->node());

  for (const int number : {SIGHUP, SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
  count_interrupts({SIGINT, SIGTERM, SIGUSR1});
  const int cores = slurm::task_cores(task, usable_cores(),
                                      static_cast<int>(std::thread::hardware_concurrency()));
  AgentLauncher launcher(run, config, instance, threads_per_trainer(config, cores, slots), SIGKILL);
  SS_RETURN_IF_ERROR(launcher.start(name->node()));
  terminal::error("simplescale: this host is node %s of %s; Ctrl-C takes it out again\n",
                  node.c_str(), shown_path(run.path).c_str());
  std::optional<RunLock> lock;
  auto lock_due = Clock::now() + std::chrono::seconds(1);
  for (int passed = 0; launcher.poll();) {
    if (interrupts > passed && passed++ == 0) ask_to_leave(run, config, node);
    if (passed > 1) launcher.signal(SIGKILL);
    // On several hosts one command must hold the lock while the run lives, also when those that
    // began it are gone.
    if (!lock && Clock::now() >= lock_due && is_prepared(run, instance)) {
      if (auto taken = RunLock::take(run); taken.ok()) lock = taken.take();
      lock_due = Clock::now() + std::chrono::seconds(1);
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
  launcher.reap_remaining(config.supervision.shutdown_ms);
  const int code = launcher.exit_code();
  const auto end = end_of(run, instance);
  terminal::error("simplescale: %s %s%s%s\n", node.c_str(),
                  end ? "ends with the run: " : "has left the run, which goes on",
                  end ? end->reason.c_str() : launcher.reason().c_str(),
                  launcher.killed_agents().c_str());
  std::fflush(nullptr);
  std::exit(code < 0 ? exit_code(Code::requeue) : code);
}

}  // namespace simplescale
