#include "app/hosts/hosts.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "app/hosts/sharing.hpp"
#include "app/hosts/task.hpp"
#include "app/launch/auto_device.hpp"
#include "app/launch/bucket_start.hpp"
#include "app/launch/stops_early.hpp"
#include "app/terminal.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/words.hpp"
#include "runtime/run/agent_lock.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/run/run_state.hpp"
#include "runtime/training/names.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;

/// The GPUs that this process may use, as CUDA reports them: CUDA applies CUDA_VISIBLE_DEVICES.
std::vector<std::string> visible_gpus(const Config& config) {
  if (config.cluster.device == DeviceKind::cpu) return {};
  const auto device = choose_device(0, 1);
  if (!device.ok()) return {};  // the trainers report why
  std::vector<std::string> gpus = device->uuids;
  std::erase(gpus, "");  // unsuitable ones
  return gpus;
}

HostFacts facts_of_this_host(const Config& config) {
  HostFacts facts;
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  facts.host = name;
  facts.scope = pid_scope();
  // Containers on one host that cannot reach each other by the host's sockets count as separate
  // hosts.
  struct stat network {};
  if (stat("/proc/self/ns/net", &network) == 0) facts.scope += "/" + std::to_string(network.st_ino);
  facts.pid = getpid();
  facts.gpus = visible_gpus(config);
  return facts;
}

/// Makes this process, and the processes that it starts, prefer the task's own GPUs. False: all
/// tasks share GPUs. bad_config: only this task has too few GPUs.
Result<bool> take_own_gpus(HostPlace& place, int rank, int slots) {
  const auto told = place.told();
  SS_ASSIGN(const auto own, slurm::share_gpus(told, rank, slots));
  if (!own) {
    SS_RETURN_IF_ERROR(place.tell_own(std::nullopt));
    return false;
  }
  SS_RETURN_IF_ERROR(place.tell_own(std::vector(own->begin(), own->begin() + slots)));
  if (*own == told.at(rank).gpus) return true;
  SS_ASSIGN(const auto seen, choose_device(0, 1));
  std::vector<std::string> addresses;
  for (const std::string& uuid : *own) {
    const auto index = std::ranges::find(seen.uuids, uuid) - seen.uuids.begin();
    addresses.push_back(seen.addresses.at(static_cast<size_t>(index)));
  }
  setenv("CUDA_VISIBLE_DEVICES", joined(*own, ",").c_str(), 1);
  setenv(kGpusVariable, joined(addresses, ",").c_str(), 1);
  return true;
}

/// The options without the functions that ask for the state of a start.
HostPlace::Options options_of(const Config& config, const HostRank& rank) {
  HostPlace::Options options;
  options.rank = rank.node_rank;
  options.nnodes = rank.nnodes;
  options.timeout_ms = config.cluster.join_timeout_ms;
  options.facts = facts_of_this_host(config);
  options.say = [](const std::string& text) { terminal::error("simplescale: %s\n", text.c_str()); };
  return options;
}

std::string ended_name(const RunFolder& doctor, const std::string& instance) {
  return doctor.control() + "/ended-" + instance;
}

RunFolder folder_of_doctor(const RunFolder& run) {
  return {run.control() + "/doctor"};
}

}  // namespace

Status check_rank(const HostRank& rank) {
  if (rank.node_rank < std::max(rank.nnodes, 1)) return {};
  return Status(Code::usage, "--node-rank=" + std::to_string(rank.node_rank) + " is not below " +
                                 "--nnodes=" + std::to_string(rank.nnodes) +
                                 ": ranks count from 0");
}

Status train_on_hosts(RunStart start, const HostRank& rank, bool oversubscribe) {
  // In a container, a first process without handlers is not ended by a signal.
  const StopsEarly stops({SIGINT, SIGTERM, SIGUSR1});
  // A command that was started by ssh continues to train when the connection ends.
  for (const int number : {SIGHUP, SIGPIPE}) signal(number, SIG_IGN);
  SS_RETURN_IF_ERROR(check_task_count(start, rank.nnodes));  // before waiting for the other hosts
  const Config& config = start.config;
  const RunFolder run{run_folder(config)};
  SS_RETURN_IF_ERROR(check_new_folder(run, config));
  SS_RETURN_IF_ERROR(make_control(run));
  HostPlace::Options options = options_of(config, rank);
  options.ended = [&run](const std::string& instance) {
    return end_of(run, instance).has_value() || is_preparation_failed(run, instance);
  };
  options.began = [&run](const std::string& instance) { return is_prepared(run, instance); };
  options.ending = [&run] { return launcher_lives(run); };
  bool finished = false;
  options.may_begin = [&]() -> Status {
    SS_ASSIGN(finished, already_finished(run, config, start.plan));
    return finished ? Status(Code::aborted, "the run is already finished") : Status();
  };
  auto taken = HostPlace::take(run, std::move(options));
  if (finished) return finish_upload(run, config, nullptr);
  SS_ASSIGN(HostPlace place, std::move(taken));
  slurm::Task task = slurm::task_among(place.told(), rank.node_rank, rank.nnodes);
  auto own = take_own_gpus(place, rank.node_rank, start.plan.topology.trainers_per_node);
  if (!own.ok()) return own.status().in(node_name(task.task) + " on " + task.host);
  task.own_gpus = *own;
  task.shares_gpus = !*own;
  task.instance = place.instance();
  setenv(slurm::kTaskVariable, slurm::text_of(task).c_str(), 1);  // for the processes of the node
  return train_as_task(std::move(start), task, oversubscribe, &place);
}

Result<HostPlace> meet_for_doctor(const RunFolder& run, const Config& config,
                                  const HostRank& rank) {
  SS_RETURN_IF_ERROR(make_control(run));
  const RunFolder folder = folder_of_doctor(run);
  SS_RETURN_IF_ERROR(make_control(folder));
  HostPlace::Options options = options_of(config, rank);
  options.ended = [folder](const std::string& instance) {
    std::error_code ignored;
    return fs::exists(ended_name(folder, instance), ignored);
  };
  options.began = [](const std::string&) { return false; };
  options.ending = [] { return false; };
  options.may_begin = [folder]() -> Status {  // removes what earlier checks have left
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder.control(), ignored))
      if (entry.path().filename() != "hosts") fs::remove_all(entry.path(), ignored);
    return {};
  };
  SS_ASSIGN(HostPlace place, HostPlace::take(folder, std::move(options)));
  slurm::Task task = slurm::task_among(place.told(), rank.node_rank, rank.nnodes);
  task.instance = place.instance();
  setenv(slurm::kTaskVariable, slurm::text_of(task).c_str(), 1);
  return place;
}

void end_doctor(const RunFolder& run, const HostPlace& place) {
  const std::string name = ended_name(folder_of_doctor(run), place.instance());
  std::error_code error;
  fs::create_directory(name, error);  // all commands create it, at the same time
  if (error)
    terminal::error("simplescale: cannot create %s: %s\n", name.c_str(), error.message().c_str());
}

}  // namespace simplescale
