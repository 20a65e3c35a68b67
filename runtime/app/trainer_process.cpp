// A trainer's process: one actor, one compute thread, one data plane. It ends with its agent.
#include <signal.h>
#include <unistd.h>

#include <caf/all.hpp>
#include <cstdlib>
#include <future>
#include <optional>
#include <thread>

#include "actors/trainer/trainer.hpp"
#include "runtime/app/actor_process.hpp"
#include "runtime/app/compute_commands.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/run_folder.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// The GPU of this trainer; none: it computes on the CPU.
Result<std::optional<DevicePlaneOptions>> choose(const Config& config, const Plan& plan,
                                                 const TrainerPlace& place) {
  if (config.cluster.device == DeviceKind::cpu) return std::optional<DevicePlaneOptions>();
  // Under srun a node is a host; otherwise all nodes are this one.
  const bool srun = !variable("SLURM_STEP_ID").empty();
  const int slots = plan.topology.trainers_per_node;
  const int index = place.slot + (srun ? 0 : place.node * slots);
  auto device = choose_device(index, srun ? slots : plan.topology.nodes * slots);
  if (device.ok()) return std::optional(*device);
  if (config.cluster.device == DeviceKind::cuda)
    return device.status().in("cluster.device = \"cuda\"");
  return std::optional<DevicePlaneOptions>();
}

Result<int> serve(const TrainerProcessOptions& o) {
  const std::string instance = variable("SIMPLESCALE_INSTANCE"),
                    agent = variable("SIMPLESCALE_AGENT");
  const RunFolder run{o.run};
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  const Config& config = loaded.config;
  SS_ASSIGN(const Plan plan, make_plan(config));
  const TrainerPlace* place = nullptr;
  for (const TrainerPlace& p : plan.topology.trainers)
    if (p.name() == o.trainer) place = &p;
  if (!place) return Status(Code::usage, run.config() + " has no trainer " + o.trainer);

  SS_ASSIGN(const std::optional<DevicePlaneOptions> device, choose(config, plan, *place));
  DataPlaneOptions data;
  data.shm_prefix = "ss-" + instance + "-" + o.trainer + "-" + std::to_string(getpid());
  if (!device || device->transport == DeviceTransport::staged)
    data.arena_bytes = arena_bytes(config, plan, !device);
  SS_ASSIGN(auto plane, DataPlane::create(data));
  if (device) {
    SS_ASSIGN(plane, make_device_plane(std::move(plane), *device));
  }

  SS_ASSIGN(auto actors, ActorProcess::start(config, instance, 1));
  SS_ASSIGN(caf::actor node, actors->transport().lookup(
                                 agent, "node", static_cast<int>(config.cluster.join_timeout_ms)));

  const std::string threads = variable("SIMPLESCALE_THREADS");
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  std::promise<int> end;
  auto result = end.get_future();
  std::atomic_flag ended;
  TrainerOptions options;
  options.compute = {o.trainer, config, plan, *place,
                     threads.empty()
                         ? threads_per_trainer(config, cores, plan.topology.trainers_per_node)
                         : std::max(1, std::atoi(threads.c_str()))};
  if (device) options.compute.device_index = device->device_index;
  options.finished = [&end, &ended](int code) {
    if (!ended.test_and_set()) end.set_value(code);
  };
  auto box = std::make_shared<std::unique_ptr<DataPlane>>(std::move(plane));
  caf::actor trainer = actors->system().spawn(trainer_actor, node, std::move(options), box);
  const int code = result.get();
  // The compute thread may be deep in a product of matrices; nothing of it is needed any more.
  unlink_shared_memory(data.shm_prefix);
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

int run_trainer_process(const TrainerProcessOptions& options) {
  init_logging(options.trainer);
  auto code = serve(options);
  if (code.ok()) return *code;
  log::error("{}", code.status().message());
  return exit_code(code.status().code());
}

}  // namespace simplescale
