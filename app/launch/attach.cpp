#include "app/launch/attach.hpp"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <utility>

#include "app/interrupts.hpp"
#include "app/launch/agent_launcher.hpp"
#include "app/launch/command_line.hpp"
#include "app/launch/run_view.hpp"
#include "app/terminal.hpp"
#include "runtime/run/agent_lock.hpp"
#include "runtime/run/term.hpp"

namespace simplescale {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kPollEvery{50};
constexpr std::chrono::seconds kSayEvery{30};  // while another `train` prepares the run

/// The term of the leading supervisor and its newest heartbeat.
std::pair<uint64_t, int64_t> heartbeat_of(const RunFolder& run) {
  const TermFiles files(run, instance_of(run));
  const auto newest = files.newest();
  if (!newest.ok()) return {};
  const auto touched = files.touched_ns(newest->number);
  return {newest->number, touched.ok() ? *touched : 0};
}

std::string stop_command(const RunFolder& run) {
  return command_line({"console", shown_path(run.path), "-c", "stop"});
}

/// True once the run has begun. A run removes control/end.json when it begins, and writes it when
/// it ends. With end.json and a living process, a start of the run is being prepared, or is about
/// to end.
bool has_begun(const RunFolder& run) {
  std::error_code error;
  return !std::filesystem::exists(run.end(), error) && !instance_of(run).empty();
}

/// Ctrl-C does not end the run: it ends this process, as the signal does without a handler.
void leave(const RunFolder& run, RunView& view) {
  view.print_line("left " + shown_path(run.path) +
                  ", which trains on; to stop it: " + stop_command(run));
  signal(SIGINT, SIG_DFL);
  raise(SIGINT);
}

/// Shows the run until its launcher and its agents have ended. Nothing: its launcher died before
/// the run had ended.
std::optional<Status> follow(const RunFolder& run, const RunStart& start) {
  const std::string instance = instance_of(run);
  RunView view(run, start.config, start.plan, true);
  view.print_line(
      "attached to this run, which trains already; Ctrl-C leaves it training; to stop "
      "it: " +
      stop_command(run));
  count_interrupts({SIGINT});
  bool launched = true;
  while (RunLock::held(run)) {
    if (interrupts) leave(run, view);
    view.update();
    if (launched && !launcher_lives(run) && agents_live(run)) {
      launched = false;
      view.print_line("the process that started the run has died: its agents save and end");
    }
    std::this_thread::sleep_for(kPollEvery);  // polls: locks and records
  }
  signal(SIGINT, SIG_DFL);
  const auto end = end_of(run, instance);
  if (!launched && (!end || end->code == exit_code(Code::requeue))) {
    view.print_line("continuing the run");
    return std::nullopt;
  }
  return view.finish(end ? end->code : -1, "", end ? end->reason : "");
}

}  // namespace

Status check_same_config(const RunFolder& run, const Config& config) {
  SS_ASSIGN(const LoadedConfig living, load_config(run.config()));
  Config wanted = config;
  // The command that began the run chose device and memory from its host's GPUs. This host may have
  // other GPUs.
  if (wanted.cluster.device == DeviceKind::automatic)
    wanted.cluster.device = living.config.cluster.device;
  if (wanted.cluster.device == DeviceKind::cuda && wanted.parallel.strategy == Strategy::automatic)
    wanted.cluster.memory_per_trainer_gib = living.config.cluster.memory_per_trainer_gib;
  const auto differences = diff(living.config, wanted);
  std::string text;
  for (const auto* kind : {&differences.defining, &differences.allowed})
    for (const KeyDifference& d : *kind)
      text += (text.empty() ? "" : ", ") + d.key + " is " + d.was + " there, not " + d.now;
  if (text.empty()) return {};
  return Status(Code::bad_config,
                shown_path(run.path) + " trains now, with another configuration: " + text +
                    "; to see it as it is: " + command_line({"resume", shown_path(run.path)}) +
                    "; to change it, stop it first: " + stop_command(run));
}

bool can_attach(const RunFolder& run) {
  const std::string lock = run.control() + "/lock";
  return (access(lock.c_str(), R_OK | W_OK) == 0 || errno == ENOENT) && RunLock::held(run);
}

std::optional<Status> attach(const RunStart& start, bool detach) {
  const RunFolder run{run_folder(start.config)};
  SS_RETURN_IF_ERROR(check_run_folder(run, start.config));
  auto say_at = Clock::now();
  while (launcher_lives(run)) {
    if (has_begun(run)) {
      SS_RETURN_IF_ERROR(check_same_config(run, start.config));
      if (!detach) return follow(run, start);
      print_hints(run, "trains already");
      return Status();
    }
    if (Clock::now() >= say_at) {
      terminal::error(
          "simplescale: waiting for another `train`, which prepares, starts or ends %s; "
          "Ctrl-C ends only this command\n",
          shown_path(run.path).c_str());
      say_at = Clock::now() + kSayEvery;
    }
    std::this_thread::sleep_for(kPollEvery);  // polls: a lock
  }
  SS_RETURN_IF_ERROR(wait_for_agents(run, start.config.cluster.join_timeout_ms));
  return std::nullopt;
}

Status wait_for_agents(const RunFolder& run, int64_t join_timeout_ms) {
  if (!agents_live(run)) return {};
  terminal::error(
      "simplescale: the process that started %s has died; its agents still run: waiting "
      "until they have saved and ended\n",
      shown_path(run.path).c_str());
  std::pair<uint64_t, int64_t> heartbeat;
  auto deadline = Clock::now() + milliseconds(join_timeout_ms);
  while (agents_live(run)) {
    if (const auto now = heartbeat_of(run); now != heartbeat) {
      heartbeat = now;
      deadline = Clock::now() + milliseconds(join_timeout_ms);
    }
    if (Clock::now() > deadline)
      return Status(Code::requeue,
                    "agents of an earlier start of " + shown_path(run.path) +
                        " still run, but nothing has led them for " +
                        std::to_string(join_timeout_ms / 1000) +
                        " s; `status` names their processes: end them, then start the run again "
                        "(if their host is lost and its file server keeps their lock, remove " +
                        run.control() + "/agents)");
    std::this_thread::sleep_for(kPollEvery);  // polls: a lock
  }
  return {};
}

void print_hints(const RunFolder& run, const char* what) {
  const std::string folder = shown_path(run.path);
  terminal::print("%s %s\n  its progress     %s\n  to stop it       %s\n", folder.c_str(), what,
                  command_line({"resume", folder}).c_str(), stop_command(run).c_str());
  std::fflush(stdout);
}

}  // namespace simplescale
