#include "runtime/config/preflight.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "runtime/base/host_memory.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/process.hpp"
#include "runtime/observe/log_rules.hpp"

namespace simplescale {
namespace {

namespace fs = std::filesystem;

std::string mib(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1u << 20));
  return text;
}

/// The folder, or its nearest parent that exists.
fs::path existing(const fs::path& folder) {
  std::error_code ignored;
  fs::path path = fs::absolute(folder, ignored).lexically_normal();
  while (path.has_relative_path() && !fs::exists(path, ignored)) path = path.parent_path();
  return path;
}

uint64_t free_bytes(const fs::path& folder) {
  struct statvfs info {};
  if (statvfs(existing(folder).c_str(), &info) != 0) return 0;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

/// Creates the folder and a file in it, then removes what it has created. name: of the folder for
/// the message. Another task may be creating the same folder.
Status check_writable(const char* key, const std::string& name, const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> made;
  for (fs::path path = fs::absolute(folder, error).lexically_normal();
       path.has_relative_path() && !fs::exists(path, error); path = path.parent_path())
    made.push_back(path);
  std::string reason;
  fs::create_directories(folder, error);
  if (error) {
    reason = error.message();
  } else {
    // A name that no other user of the folder can know before.
    const std::string probe = folder + "/" + kWritableProbe + unique_id();
    const int fd = open_output(probe, Output::replace, 0600);
    if (fd < 0 || write(fd, "x", 1) != 1) reason = std::strerror(errno);
    if (fd >= 0 && close(fd) != 0 && reason.empty()) reason = std::strerror(errno);
    if (fd >= 0) unlink(probe.c_str());
  }
  for (const fs::path& path : made) fs::remove(path, error);  // innermost first; keeps those in use
  if (reason.empty()) return {};
  return bad_config(std::string(key) + ": cannot write to " + name + ": " + reason);
}

/// Number of checkpoints in the folder: they already occupy their part of the space.
uint64_t checkpoints_in(const fs::path& folder) {
  std::error_code error;
  uint64_t found = 0;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    found += entry->path().filename().string().starts_with("step-");
  return found;
}

Status check_disk(const Config& config, const Plan& plan) {
  const std::string folder = checkpoint_folder(config);
  const uint64_t one = checkpoint_bytes(plan), all = checkpoint_space_bytes(config, plan);
  const uint64_t kept = std::max<uint64_t>(1, all / std::max<uint64_t>(1, one)) - 1;
  const uint64_t needed = all - std::min(kept, checkpoints_in(folder)) * one;
  const uint64_t free = free_bytes(folder);
  if (free >= needed) return {};
  return bad_config("checkpoint.keep = " + std::to_string(config.checkpoint.keep) + " needs " +
                    mib(needed) + " (" + mib(one) + " a checkpoint), but " +
                    existing(folder).string() + " has " + mib(free) +
                    " free: lower checkpoint.keep, or set checkpoint.folder to another disk");
}

Status check_shared_memory(const Config& config, const Plan& plan, const PreflightInput& input) {
  const uint64_t needed = host_needs(config, plan, input.trainers_on_host, input.staged).shared;
  const uint64_t left = input.memory_left > 0 ? input.memory_left : memory_left();
  if (left >= needed) return {};
  return bad_config("cluster.trainers_per_node: " + std::to_string(input.trainers_on_host) +
                    " trainers on this host need " + mib(needed) +
                    " of shared memory, but it has only " + mib(left) +
                    " of memory left: end other programs, or use fewer trainers or more hosts");
}

std::string gib(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", static_cast<double>(bytes) / (1u << 30));
  return text;
}

int cores_of(const PreflightInput& input) {
  return std::max(1, input.cores > 0 ? input.cores : usable_cores());
}

/// Refuses only what is surely a mistake, since users try out runs of many nodes on one small
/// machine.
Status check_processes(const Config& config, const Plan& plan, const PreflightInput& input) {
  if (input.oversubscribe) return {};
  const HostNeeds needs = host_needs(config, plan, input.trainers_on_host, input.staged);
  const int cores = cores_of(input);
  const uint64_t memory = input.host_memory > 0 ? input.host_memory : memory_of_host();
  const bool crowd = needs.processes() > static_cast<int64_t>(cores) * processes_per_core_max;
  const bool large = memory > 0 && needs.memory() > memory;
  if (!crowd && !large) return {};
  const auto count = [](int number, const char* what) {
    return std::to_string(number) + " " + what;
  };
  return bad_config(
      "cluster.nodes = " + std::to_string(config.cluster.nodes) + ": " +
      count(needs.processes(), "processes on this host (") + count(needs.nodes, "agents, ") +
      count(needs.trainers, "trainers, ") + count(needs.warm, "warm processes, ") +
      count(needs.supervisors, "supervisors) need about ") + gib(needs.memory()) + " of memory (" +
      gib(needs.shared) + " of it shared" +
      (needs.copies > 0 ? ", " + gib(needs.copies) + " copies for peers" : "") + "); there are " +
      gib(memory) + " and " + count(cores, "cores, at most ") +
      std::to_string(processes_per_core_max) +
      " processes each: use fewer nodes or more hosts, or start them anyway with train "
      "--oversubscribe");
}

/// Refuses what would surely fail, and so late that its cause is hard to see.
Status check_process_limits(const Config& config, const Plan& plan, const PreflightInput& input) {
  // Measured: threads of an agent, a trainer and a supervisor at least; descriptors of an agent.
  constexpr uint64_t agent_threads = 12, trainer_threads = 4, supervisor_threads = 6,
                     agent_descriptors = 48, descriptors_of_slot = 8;
  const HostNeeds needs = host_needs(config, plan, input.trainers_on_host, input.staged);
  const auto number = [](int value) { return static_cast<uint64_t>(value); };
  return check_limits("train",
                      {.descriptors = agent_descriptors +
                                      descriptors_of_slot * number(plan.topology.trainers_per_node),
                       .threads = agent_threads * number(needs.nodes) +
                                  trainer_threads * number(needs.trainers + needs.warm) +
                                  supervisor_threads * number(needs.supervisors),
                       .address_space = needs.address_space},
                      input.limits);
}

/// 0 if a server can listen at the address; otherwise the errno.
int listen_error(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  int error = bind(fd, address.ai_addr, address.ai_addrlen) != 0 ? errno : 0;
  // With SO_REUSEADDR two sockets can bind the same port until one of them listens.
  if (error == 0 && listen(fd, 1) != 0) error = EADDRINUSE;
  close(fd);
  return error;
}

/// Succeeds if the server can listen at one of the addresses of http_host. Checks this host only;
/// the server moves with the supervisor.
Status check_http(const std::string& host, int64_t port) {
  if (port == 0) return {};
  const auto bad_host = [&](const char* reason) {
    return bad_config("metrics.http_host = \"" + host + "\": " + reason +
                      "; name an address of this host, or 0.0.0.0 for all");
  };
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  const int unknown = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (unknown != 0) return bad_host(gai_strerror(unknown));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* address = found; address && error != 0; address = address->ai_next) {
    const int next = listen_error(*address);
    if (next == 0 || error == EADDRNOTAVAIL)
      error = next;  // keeps the error that is about the port
  }
  freeaddrinfo(found);
  if (error == 0) return {};
  if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT) return bad_host(std::strerror(error));
  return bad_config("metrics.http_port = " + std::to_string(port) + " cannot be used: " +
                    std::strerror(error) + "; choose another port, or 0 for none");
}

Status check_data(const Config& config, const Plan& plan, const PreflightInput& input) {
  const DataConfig& data = config.data;
  std::error_code ignored;
  if (data.source.empty() && data.blend.empty() && !fs::exists(data_folder(config), ignored))
    return bad_config("data.source is not set, and there is no prepared folder " +
                      data_folder(config));
  const auto block = static_cast<uint64_t>(plan.shape.block_size);
  if (input.train_tokens && *input.train_tokens < block + 1)
    return Status(Code::bad_data,
                  "model.block_size = " + std::to_string(block) + " is longer than the data, " +
                      std::to_string(*input.train_tokens) +
                      " tokens: a sample has block_size + 1 tokens; use a smaller block_size, or "
                      "more text");
  return {};
}

}  // namespace

Status check_log_rules(const Config& config) {
  return LogRules::load(config.supervision.log_rules).status().in("supervision.log_rules");
}

uint64_t checkpoint_bytes(const Plan& plan) {
  return plan.state_bytes() * plan.parameters;
}

uint64_t checkpoint_space_bytes(const Config& config, const Plan& plan) {
  const auto steps = static_cast<uint64_t>(plan.max_steps);
  const auto every = static_cast<uint64_t>(config.checkpoint.disk_every_steps);
  const auto permanent_every = static_cast<uint64_t>(config.checkpoint.permanent_every_steps);
  const uint64_t written = 1 + (every ? steps / every : 0);  // and one at the end
  const uint64_t kept = std::min<uint64_t>(static_cast<uint64_t>(config.checkpoint.keep), written);
  const uint64_t permanent = permanent_every ? steps / permanent_every : 0;
  return (kept + permanent + 1) * checkpoint_bytes(plan);
}

HostNeeds host_needs(const Config& config, const Plan& plan, int trainers, bool staged) {
  // Measured private memory of a trainer with a tiny model, of an agent after some minutes, and of
  // a supervisor.
  constexpr uint64_t trainer_bytes = uint64_t{100} << 20, agent_bytes = uint64_t{35} << 20,
                     supervisor_bytes = uint64_t{10} << 20;
  constexpr uint64_t trace_event_bytes = 128;
  const Topology& t = plan.topology;
  // Shared memory of data planes beside what engines allocate; tests/actors/trainer compares.
  const uint64_t of_ranks =
                     (uint64_t{50} << 10) * static_cast<uint64_t>(std::max(t.most_ranks(), 64)),
                 trainer_plane_bytes = (uint64_t{47} << 20) + of_ranks,
                 agent_plane_bytes = (uint64_t{25} << 20) + of_ranks;
  const bool gpus = config.cluster.device == DeviceKind::cuda;
  HostNeeds needs;
  needs.trainers = trainers;
  needs.nodes = (trainers + t.trainers_per_node - 1) / t.trainers_per_node;
  needs.warm = needs.nodes * static_cast<int>(config.supervision.warm_processes);
  needs.supervisors = needs.nodes > 1 ? 2 : 1;
  const auto count = static_cast<uint64_t>(trainers), nodes = static_cast<uint64_t>(needs.nodes),
             warm = static_cast<uint64_t>(needs.warm);

  const auto state_of = [&](int shards) {
    return plan.state_bytes() *
           shard_layout(units_of(plan.shape), static_cast<size_t>(shards)).total;
  };
  const uint64_t state = state_of(t.shards);
  // With NCCL the engine's buffers have no copy in host memory.
  const auto arena_of = [&](const MemoryEstimate& memory) {
    return gpus && !staged ? 0
                           : memory.parameters + memory.staged_gradients + memory.exchange +
                                 (gpus ? memory.state : 0);
  };
  const uint64_t arena = arena_of(plan.memory);
  const uint64_t process = trainer_plane_bytes + arena +
                           trace_event_bytes * static_cast<uint64_t>(config.metrics.trace_events);
  const uint64_t sample = 4 * (static_cast<uint64_t>(plan.shape.block_size) + 1);
  const uint64_t ring =
      static_cast<uint64_t>(config.data.ring_batches * plan.micro_batch_size) * sample;
  // Copies of other nodes' shards, assuming that they are spread evenly. Without a node outside the
  // only domain, each node also keeps copies of its own shards (PEER-1).
  const bool peers = peer_every_steps(config, t) > 0;
  const bool inside = t.domains() == 1 && config.cluster.spares == 0;
  const auto kept =
      static_cast<uint64_t>(peers ? std::min(trainers, t.shards) * (inside ? 2 : 1) : 0);
  needs.shared = (count + kept) * 2 * state + count * ring + (count + warm) * process +
                 nodes * agent_plane_bytes;

  // A trainer maps its state, and the segments of the members of its two communicators that are on
  // this host. Measured: what libtorch and the rest of it need at least.
  constexpr uint64_t trainer_program = uint64_t{920} << 20;
  const int members = std::min(trainers, t.shards + t.groups - 1);
  // Room for groups of other sizes has addresses, and gets memory when it is needed.
  uint64_t most_state = state, most_arena = arena;
  for (const int size : t.group_sizes) {
    most_state = std::max(most_state, state_of(t.shards_of(size)));
    most_arena =
        std::max(most_arena,
                 arena_of(memory_in_groups(config, plan, size, plan.wave_of(t.shards_of(size)))));
  }
  needs.address_space = trainer_program +
                        (process - arena + most_arena) * static_cast<uint64_t>(members) +
                        2 * most_state + (gpus ? plan.memory.host : plan.memory.activations);

  // The agent holds the two newest steps of each trainer until they have been sent to a peer.
  if (peers) needs.copies = count * 2 * state;
  needs.private_ = needs.copies +
                   count * (trainer_bytes + (gpus ? plan.memory.host : plan.memory.activations)) +
                   warm * trainer_bytes + nodes * agent_bytes +
                   static_cast<uint64_t>(needs.supervisors) * supervisor_bytes;
  return needs;
}

std::string crowd_warning(const Config& config, const PreflightInput& input) {
  const int cores = cores_of(input), trainers = input.trainers_on_host;
  if (config.cluster.device == DeviceKind::cuda || trainers <= trainers_per_core_max * cores)
    return "";
  return std::to_string(trainers) + " trainers share the " + std::to_string(cores) +
         (cores == 1 ? " core" : " cores") +
         " of this host: steps will be slow, and a process that gets no CPU time for long counts "
         "as lost; use fewer nodes or trainers_per_node, or raise supervision.silence_ms";
}

Status preflight(const Config& config, const Plan& plan, const PreflightInput& input) {
  SS_RETURN_IF_ERROR(check_data(config, plan, input));
  SS_RETURN_IF_ERROR(check_processes(config, plan, input));
  SS_RETURN_IF_ERROR(check_process_limits(config, plan, input));
  if (input.writes_checkpoints) {
    SS_RETURN_IF_ERROR(check_writable("run.folder", run_folder(config), run_folder(config)));
    SS_RETURN_IF_ERROR(
        check_writable("checkpoint.folder", checkpoint_folder(config), checkpoint_folder(config)));
    if (input.prepares_data)
      SS_RETURN_IF_ERROR(
          check_writable("data.folder", data_folder(config), existing(data_folder(config))));
    SS_RETURN_IF_ERROR(check_disk(config, plan));
    SS_RETURN_IF_ERROR(check_http(config.metrics.http_host, config.metrics.http_port));
  }
  return check_shared_memory(config, plan, input);
}

}  // namespace simplescale
