// A trainer's process: one actor, one compute thread, one data plane. It starts without knowing
// which trainer it becomes (warm processes wait until one dies), and ends with its agent.
#include <unistd.h>

#include <algorithm>
#include <caf/all.hpp>
#include <cstdlib>
#include <future>
#include <optional>

#include "actors/trainer/engine_setup.hpp"
#include "actors/trainer/trainer.hpp"
#include "app/hosts/sharing.hpp"
#include "app/processes/actor_process.hpp"
#include "app/processes/trainer_process.hpp"
#include "app/slurm/slurm.hpp"
#include "runtime/base/lifeline.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/named_descriptors.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/process.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/training/names.hpp"
#include "transport/gpu/gpu_claim.hpp"
#include "transport/gpu/nccl_network.hpp"
#include "transport/nccl/device_plane.hpp"

namespace simplescale {

namespace {

/// Keeps NCCL away from untrusted networks. Call it before choose_gpu(), which loads NCCL.
/// bad_config: NCCL may be used, but this host is on none of its networks.
Status limit_nccl(const Config& config) {
  const std::string& trusted = config.transport.trusted_networks;
  if (!nccl_is_allowed(has_other_hosts(config), trusted)) return {};
  SS_ASSIGN(const Variables set,
            nccl_variables(has_other_hosts(config), trusted, local_addresses()));
  set_nccl_variables(set);
  return {};
}

/// The GPU of the trainer in a slot of a node; nothing: the trainer computes on the CPU. Error: the
/// configuration requires GPUs and there is none.
Result<std::optional<DevicePlaneOptions>> choose_gpu(const Config& config, const Plan& plan,
                                                     int node, int slot) {
  if (config.cluster.device == DeviceKind::cpu) return std::optional<DevicePlaneOptions>();
  const int slots = plan.topology.trainers_per_node;
  const int nodes = plan.topology.nodes + static_cast<int>(config.cluster.spares);
  slurm::HostSlots host{node * slots, nodes * slots};  // all nodes are on this host
  const auto task = slurm::task_of(environment_variable);
  if (task) host = slurm::host_slots(*task, slots);
  const bool staged = (task && task->shares_gpus) ||
                      !nccl_is_allowed(has_other_hosts(config), config.transport.trusted_networks);
  auto device = choose_device(host.first + slot, host.total);
  if (device.ok() && staged) device->transport = DeviceTransport::staged;
  // NCCL works with a slice of a GPU (MIG) if no other rank can be on the same GPU.
  if (device.ok() && nodes * slots == 1) device->transport = DeviceTransport::nccl;
  if (device.ok()) return std::optional(*device);
  if (config.cluster.device == DeviceKind::cuda)
    return device.status().in("cluster.device = \"cuda\"");
  return std::optional<DevicePlaneOptions>();
}

/// Switches this process's log to the file of the trainer that it has become.
void switch_log_to(const RunFolder& run, const std::string& trainer) {
  const std::string path = run.logs() + "/" + trainer + ".log";
  const int file = open_output(path, Output::append);
  if (file < 0) return log::warn("cannot write {}", path);
  log::info("this log continues in {}", path);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  close(file);
  set_log_name(trainer);
}

/// The host's data plane, and the address under which peers reach it.
struct Plane {
  std::unique_ptr<DataPlane> host;
  std::vector<uint8_t> address;
  std::string shm_prefix;  // of the shared memory of this process
};

/// device: of any slot of this node, because either all slots have a GPU or none has.
Result<Plane> create_plane(const TrainerProcessOptions& o, const std::string& instance,
                           const Config& config, const Plan& plan,
                           const std::optional<DevicePlaneOptions>& device) {
  std::string file_name = o.process;
  std::replace(file_name.begin(), file_name.end(), '/', '.');
  DataPlaneOptions options =
      plane_options(config, plan, device ? std::optional(device->transport) : std::nullopt);
  options.node_prefix = "ss-" + instance + "-" + file_name.substr(0, file_name.rfind('.') + 1);
  options.shm_prefix = "ss-" + instance + "-" + file_name + "-" + std::to_string(getpid());
  options.network = has_other_hosts(config);
  SS_ASSIGN(options.key, read_run_key(RunFolder{o.run}));
  set_name_secret(options.key);
  if (Status status = trace::start(static_cast<size_t>(config.metrics.trace_events),
                                   options.shm_prefix + "-trace");
      !status.ok())
    log::warn("no traces: {}", status.message());
  SS_ASSIGN(auto host, DataPlane::create(options));
  std::vector<uint8_t> address = host->address();
  if (device) address = device_plane_address(std::move(address), *device);
  return Plane{std::move(host), std::move(address), options.shm_prefix};
}

/// node: the process's node, one of whose trainers it becomes.
ComputeOptions make_compute_options(const RunFolder& run, const Config& config, const Plan& plan,
                                    int node, bool gpu) {
  const std::string threads = environment_variable("SIMPLESCALE_THREADS");
  ComputeOptions options{
      config,
      plan,
      threads.empty() ? threads_per_trainer(config, usable_cores(), plan.topology.trainers_per_node)
                      : std::max(1, std::atoi(threads.c_str())),
      {},
      run.products(),
      run.traces(),
      {}};
  if (!gpu) return options;
  const int warm_slots = config.supervision.warm_context ? plan.topology.trainers_per_node : 0;
  for (int slot = 0; slot < warm_slots; ++slot)
    if (const auto device = choose_gpu(config, plan, node, slot); device.ok() && *device) {
      options.warm_gpus.devices.insert((*device)->device_index);
      options.warm_gpus.nccl = (*device)->transport == DeviceTransport::nccl;
    }
  options.warm_gpus.nccl_timeout = std::chrono::milliseconds(config.parallel.collective_timeout_ms);
  // Called once the process knows which trainer it becomes, because the slot decides which GPU it
  // prefers.
  options.choose_device = [config, plan, lock = std::make_shared<HostLock>()](
                              const std::string& trainer,
                              std::unique_ptr<DataPlane>& host) -> Result<int> {
    const auto node = node_number(trainer), slot = slot_number(trainer);
    if (!node || !slot) return Status(Code::bad_data, "not a trainer's name: " + trainer);
    SS_ASSIGN(auto own, choose_gpu(config, plan, *node, *slot));
    if (!own) return Status(Code::unavailable, trainer + " has no GPU any more");
    SS_ASSIGN(GpuClaim claim, claim_gpu(*own));
    if (!claim.warning.empty()) log::warn("{}: {}", trainer, claim.warning);
    log::info("{} uses GPU {}{}; collectives go through {}", trainer, claim.device_index,
              claim.device_index == own->device_index
                  ? ""
                  : ", since another process holds GPU " + std::to_string(own->device_index),
              own->transport == DeviceTransport::nccl ? "NCCL" : "host memory");
    own->device_index = claim.device_index;
    own->native_sums = !config.train.deterministic;
    *lock = std::move(claim.lock);
    SS_ASSIGN(host, make_device_plane(std::move(host), *own));
    return own->device_index;
  };
  return options;
}

Result<int> serve_agent(const TrainerProcessOptions& o) {
  const std::string instance = environment_variable("SIMPLESCALE_INSTANCE"),
                    agent = environment_variable("SIMPLESCALE_AGENT");
  const RunFolder run{o.run};
  SS_RETURN_IF_ERROR(keep_others_out(run));
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  const Config& config = loaded.config;
  SS_ASSIGN(const Plan plan, make_plan(config));
  const int node_index = node_number(o.process).value_or(0);
  const Status limited = config.cluster.device == DeviceKind::cpu ? Status() : limit_nccl(config);
  SS_ASSIGN(const std::optional<DevicePlaneOptions> device,
            choose_gpu(config, plan, node_index, 0));
  if (device && device->transport == DeviceTransport::nccl) SS_RETURN_IF_ERROR(limited);
  SS_ASSIGN(Plane plane, create_plane(o, instance, config, plan, device));
  SS_ASSIGN(auto actors, ActorProcess::start(config, run, instance, 1));
  SS_ASSIGN(caf::actor node, actors->transport().lookup(
                                 agent, "node", static_cast<int>(config.cluster.join_timeout_ms)));

  std::promise<int> end;
  auto result = end.get_future();
  std::atomic_flag ended;
  TrainerOptions options;
  options.process = o.process;
  options.heartbeat = std::chrono::milliseconds(config.supervision.heartbeat_ms);
  options.compute = make_compute_options(run, config, plan, node_index, device.has_value());
  options.became = [run, known = std::make_shared<std::string>()](const std::string& trainer) {
    if (*known == trainer) return;
    *known = trainer;
    switch_log_to(run, trainer);
  };
  options.finished = [&end, &ended](int code) {
    if (!ended.test_and_set()) end.set_value(code);
  };
  SS_RETURN_IF_ERROR(hold_lifeline(plane.shm_prefix + "-life"));
  auto box = std::make_shared<std::unique_ptr<DataPlane>>(std::move(plane.host));
  caf::actor trainer = actors->system().spawn(trainer_actor, node, std::move(options),
                                              std::move(plane.address), box);
  const int code = result.get();
  // _exit: the compute thread may be in the middle of a matrix product, whose result is not needed.
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

int run_trainer_process(const TrainerProcessOptions& options) {
  init_logging(options.process);
  protect_nccl_settings();
  auto code = serve_agent(options);
  if (code.ok()) return *code;
  log::error("{}", code.status().message());
  return exit_code(code.status().code());
}

}  // namespace simplescale
