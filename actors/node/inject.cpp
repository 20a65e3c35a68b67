#include "actors/node/inject.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "runtime/base/log.hpp"
#include "runtime/base/process.hpp"

namespace simplescale {
namespace {

using std::chrono::milliseconds;

milliseconds duration_of(const InjectFault& fault, int64_t default_ms) {
  return milliseconds(fault.ms > 0 ? static_cast<int64_t>(fault.ms) : default_ms);
}

uint32_t as_u32(milliseconds time) {
  return static_cast<uint32_t>(std::clamp<int64_t>(time.count(), 0, UINT32_MAX));
}

/// The target trainer; if the target is the node, its first trainer.
Result<std::string> trainer_of(const InjectContext& c, const InjectFault& fault) {
  if (fault.target == c.node && !c.trainers.empty()) return c.trainers.front();
  if (std::ranges::find(c.trainers, fault.target) != c.trainers.end()) return fault.target;
  return Status(Code::not_found, c.node + " has no trainer " + fault.target);
}

Result<pid_t> pid_of(const InjectContext& c, const InjectFault& fault) {
  SS_ASSIGN(const std::string trainer, trainer_of(c, fault));
  const pid_t pid = c.pid_of(trainer);
  if (pid <= 0) return Status(Code::not_found, trainer + " is not up");
  return pid;
}

/// Wakes a stopped process, perhaps this one, after `ms`; 0: never.
Status wake_later(pid_t pid, uint64_t ms) {
  if (ms == 0) return {};
  SpawnOptions command;
  command.argv = {"/bin/sh", "-c",
                  "sleep " + std::to_string(ms / 1000) + "." +
                      std::to_string(ms % 1000 + 1000).substr(1) + "; kill -CONT " +
                      std::to_string(pid)};
  command.die_with_parent = false;
  command.inherits = Inherits::needed;
  SS_ASSIGN(const pid_t helper, spawn(command));
  (void)helper;  // a zombie until the agent ends
  return {};
}

Status kill_trainer(const InjectContext& c, const InjectFault& fault) {
  SS_ASSIGN(const pid_t pid, pid_of(c, fault));
  kill(pid, SIGKILL);
  return {};
}

Status stop_trainer(const InjectContext& c, const InjectFault& fault) {
  SS_ASSIGN(const pid_t pid, pid_of(c, fault));
  kill(pid, SIGSTOP);
  return wake_later(pid, fault.ms);
}

Status forward_to_trainer(const InjectContext& c, const InjectFault& fault) {
  SS_ASSIGN(const std::string trainer, trainer_of(c, fault));
  c.send_to_trainer(trainer, fault);
  return {};
}

Status forward_to_all_trainers(const InjectContext& c, const InjectFault& fault) {
  for (const std::string& trainer : c.trainers) c.send_to_trainer(trainer, fault);
  return {};
}

/// Imitates a dead host: the trainers die with their agent, so kill its supervisor or standby, too.
Status kill_agent(const InjectContext& c, const InjectFault&) {
  if (c.kill_supervisors) c.kill_supervisors();
  kill(getpid(), SIGKILL);
  return {};
}

Status stop_agent(const InjectContext&, const InjectFault& fault) {
  SS_RETURN_IF_ERROR(wake_later(getpid(), fault.ms));
  kill(getpid(), SIGSTOP);
  return {};
}

/// Cuts this node off from the other nodes: the agent's messages and the trainers' collectives.
Status partition_node(const InjectContext& c, const InjectFault& fault) {
  const uint32_t for_ms = as_u32(duration_of(fault, 5000));
  c.inject_network_fault({.lose = 1, .for_ms = for_ms, .spared = c.processes});
  for (const std::string& trainer : c.trainers)
    c.send_to_trainer(trainer, {.kind = fault.kind, .target = trainer, .ms = for_ms});
  return {};
}

Status lose_messages(const InjectContext& c, const InjectFault& fault) {
  c.inject_network_fault({.lose = fault.value > 0 ? std::min(fault.value, 1.0) : 0.1,
                          .for_ms = as_u32(duration_of(fault, 5000)),
                          .spared = c.processes});
  return {};
}

Status slow_link(const InjectContext& c, const InjectFault& fault) {
  const double delay_ms = fault.value > 0 ? std::min(fault.value, 60'000.0) : 100;
  const uint32_t for_ms = as_u32(duration_of(fault, 5000));
  c.inject_network_fault(
      {.delay_ms = static_cast<uint32_t>(delay_ms), .for_ms = for_ms, .spared = c.processes});
  for (const std::string& trainer : c.trainers)
    c.send_to_trainer(
        trainer,
        {.kind = fault.kind, .target = trainer, .ms = for_ms, .value = std::floor(delay_ms)});
  return {};
}

/// Corrupts a trainer's state; if the target is the node and it keeps peer copies, corrupts those.
Status corrupt_snapshot(const InjectContext& c, const InjectFault& fault) {
  if (fault.target == c.node && c.corrupt_peer_copies && c.corrupt_peer_copies().ok()) return {};
  SS_ASSIGN(const std::string trainer, trainer_of(c, fault));
  return c.states->flip_bit(trainer);
}

Status corrupt_checkpoint(const InjectContext& c, const InjectFault&) {
  return corrupt_newest_checkpoint(c.checkpoints);
}

Status disk_full(const InjectContext& c, const InjectFault& fault) {
  c.disk->fill(duration_of(fault, 5000));
  return {};
}

Status slow_disk(const InjectContext& c, const InjectFault& fault) {
  const double each_ms = fault.value > 0 ? std::min(fault.value, 60'000.0) : 100;
  c.disk->slow_down(milliseconds(static_cast<int64_t>(each_ms)), duration_of(fault, 5000));
  return {};
}

using Function = Status (*)(const InjectContext&, const InjectFault&);
const std::map<std::string, Function> kFunctions = {
    {"kill_trainer", kill_trainer},
    {"stop_trainer", stop_trainer},
    {"segfault_trainer", forward_to_trainer},
    {"oom_trainer", forward_to_trainer},
    {"hang_trainer", forward_to_trainer},
    {"bitflip_gradient", forward_to_trainer},
    {"nan_loss", forward_to_trainer},
    {"slow_node", forward_to_all_trainers},
    {"kill_agent", kill_agent},
    {"stop_agent", stop_agent},
    {"partition_node", partition_node},
    {"lose_messages", lose_messages},
    {"slow_link", slow_link},
    {"corrupt_snapshot", corrupt_snapshot},
    {"corrupt_checkpoint", corrupt_checkpoint},
    {"disk_full", disk_full},
    {"slow_disk", slow_disk},
};

}  // namespace

Status inject(const InjectContext& context, const InjectFault& fault) {
  const auto found = kFunctions.find(fault.kind);
  if (found == kFunctions.end())
    return Status(Code::bad_data, "\"" + fault.kind + "\" is not a fault that a node injects");
  log::warn("injected: {} {}", fault.kind, fault.target);
  return found->second(context, fault).in("inject " + fault.kind);
}

Status corrupt_newest_checkpoint(const std::string& checkpoints) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints + "/latest", error)) {
    const std::string path = entry.path().string();
    if (!entry.path().filename().string().starts_with("shard-")) continue;
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return Status(Code::io, "cannot corrupt " + path);
    const off_t at = static_cast<off_t>(entry.file_size(error) / 2);
    unsigned char byte = 0;
    bool done = pread(file, &byte, 1, at) == 1;
    byte ^= 0xff;
    done = done && pwrite(file, &byte, 1, at) == 1;
    close(file);
    return done ? Status() : Status(Code::io, "cannot corrupt " + path);
  }
  return Status(Code::not_found, "there is no checkpoint in " + checkpoints);
}

}  // namespace simplescale
