// A trainer's process: one actor, one compute thread, one data plane. It gets ready without knowing
// which trainer it will be, and ends with its agent.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <caf/all.hpp>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <optional>
#include <thread>

#include "actors/trainer/engine_setup.hpp"
#include "actors/trainer/trainer.hpp"
#include "app/processes/actor_process.hpp"
#include "app/processes/trainer_process.hpp"
#include "app/slurm/slurm.hpp"
#include "runtime/base/lifeline.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/process.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/run/run_folder.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

namespace {

/// The GPU of a trainer; none: it computes on the CPU.
Result<std::optional<DevicePlaneOptions>> choose(const Config& config, const Plan& plan, int node,
                                                 int slot) {
  if (config.cluster.device == DeviceKind::cpu) return std::optional<DevicePlaneOptions>();
  const int slots = plan.topology.trainers_per_node;
  const int nodes = plan.topology.nodes + static_cast<int>(config.cluster.spares);
  slurm::HostSlots host{node * slots, nodes * slots};  // all nodes are on this host
  if (const auto task = slurm::task_of(environment_variable))
    host = slurm::host_slots(*task, slots);
  auto device = choose_device(host.first + slot, host.total);
  if (device.ok()) return std::optional(*device);
  if (config.cluster.device == DeviceKind::cuda)
    return device.status().in("cluster.device = \"cuda\"");
  return std::optional<DevicePlaneOptions>();
}

/// "n3.1" -> 3, 1.
Result<std::pair<int, int>> node_and_slot(const std::string& trainer) {
  int node = 0, slot = 0;
  if (std::sscanf(trainer.c_str(), "n%d.%d", &node, &slot) != 2 || node < 0 || slot < 0)
    return Status(Code::bad_data, "no trainer's name: " + trainer);
  return std::pair(node, slot);
}

/// Lines go to the log of the trainer that this process has become.
void write_log_of(const RunFolder& run, const std::string& trainer) {
  const std::string path = run.logs() + "/" + trainer + ".log";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return log::warn("cannot write {}", path);
  log::info("goes on in {}", path);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  close(file);
  set_log_name(trainer);
}

Result<int> serve(const TrainerProcessOptions& o) {
  const std::string instance = environment_variable("SIMPLESCALE_INSTANCE"),
                    agent = environment_variable("SIMPLESCALE_AGENT");
  const RunFolder run{o.run};
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  const Config& config = loaded.config;
  SS_ASSIGN(const Plan plan, make_plan(config));

  // All slots of a node have a GPU, or none has; which one, follows from the slot.
  int node_index = 0;
  std::sscanf(o.process.c_str(), "n%d", &node_index);
  SS_ASSIGN(const std::optional<DevicePlaneOptions> device, choose(config, plan, node_index, 0));
  std::string file_name = o.process;
  std::replace(file_name.begin(), file_name.end(), '/', '.');
  DataPlaneOptions data;
  data.node_prefix = "ss-" + instance + "-" + file_name.substr(0, file_name.rfind('.') + 1);
  data.shm_prefix = "ss-" + instance + "-" + file_name + "-" + std::to_string(getpid());
  data.communicators = 6;  // shard, replicate, transfers, and room for their predecessors
  if (!device || device->transport == DeviceTransport::staged)
    data.arena_bytes = arena_bytes(config, plan, !device);
  if (Status status = trace::start(static_cast<size_t>(config.metrics.trace_events),
                                   data.shm_prefix + "-trace");
      !status.ok())
    log::warn("no traces: {}", status.message());
  SS_ASSIGN(auto plane, DataPlane::create(data));
  std::vector<uint8_t> address = plane->address();
  if (device) address = device_plane_address(std::move(address), *device);

  SS_ASSIGN(auto actors, ActorProcess::start(config, run, instance, 1));
  SS_ASSIGN(caf::actor node, actors->transport().lookup(
                                 agent, "node", static_cast<int>(config.cluster.join_timeout_ms)));

  const std::string threads = environment_variable("SIMPLESCALE_THREADS");
  const int cores = usable_cores();
  std::promise<int> end;
  auto result = end.get_future();
  std::atomic_flag ended;
  TrainerOptions options;
  options.process = o.process;
  options.heartbeat = std::chrono::milliseconds(config.supervision.heartbeat_ms);
  options.compute = {config,
                     plan,
                     threads.empty()
                         ? threads_per_trainer(config, cores, plan.topology.trainers_per_node)
                         : std::max(1, std::atoi(threads.c_str())),
                     {}};
  if (device)
    options.compute.choose_device = [config, plan](
                                        const std::string& trainer,
                                        std::unique_ptr<DataPlane>& host) -> Result<int> {
      SS_ASSIGN(const auto place, node_and_slot(trainer));
      SS_ASSIGN(const auto own, choose(config, plan, place.first, place.second));
      if (!own) return Status(Code::unavailable, trainer + " has no GPU any more");
      SS_ASSIGN(host, make_device_plane(std::move(host), *own));
      return own->device_index;
    };
  options.became = [run, known = std::make_shared<std::string>()](const std::string& trainer) {
    if (*known == trainer) return;
    *known = trainer;
    write_log_of(run, trainer);
  };
  options.finished = [&end, &ended](int code) {
    if (!ended.test_and_set()) end.set_value(code);
  };
  SS_RETURN_IF_ERROR(hold_lifeline(data.shm_prefix + "-life"));
  auto box = std::make_shared<std::unique_ptr<DataPlane>>(std::move(plane));
  caf::actor trainer =
      actors->system().spawn(trainer_actor, node, std::move(options), std::move(address), box);
  const int code = result.get();
  // The compute thread may be deep in a product of matrices; nothing of it is needed any more.
  unlink_shared_memory(data.shm_prefix);
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

int run_trainer_process(const TrainerProcessOptions& options) {
  init_logging(options.process);
  auto code = serve(options);
  if (code.ok()) return *code;
  log::error("{}", code.status().message());
  return exit_code(code.status().code());
}

}  // namespace simplescale
