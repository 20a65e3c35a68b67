#include "app/processes/actor_process.hpp"

#include <caf/all.hpp>

#include "app/slurm/slurm.hpp"
#include "runtime/base/process.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/run/run_key.hpp"

namespace simplescale {

bool has_other_hosts(const Config& config) {
  const auto task = slurm::task_of(environment_variable);
  return (task && task->other_hosts) || may_grow(config);
}

ActorProcess::SystemConfig::SystemConfig(size_t threads) {
  Transport::configure(*this);
  set("scheduler.policy", caf::atom("sharing"));  // work stealing would poll when idle
  set("scheduler.max-threads", threads);
}

ActorProcess::ActorProcess(size_t threads) : config_(threads), system_(config_) {}

Result<std::unique_ptr<ActorProcess>> ActorProcess::start(const Config& config,
                                                          const RunFolder& run,
                                                          const std::string& instance,
                                                          size_t threads) {
  std::unique_ptr<ActorProcess> process(new ActorProcess(threads));
  TransportOptions options;
  options.run_id = instance;
  options.network = has_other_hosts(config);
  SS_ASSIGN(options.key, read_run_key(run));
  options.heartbeat_ms = static_cast<uint32_t>(config.supervision.heartbeat_ms);
  options.silence_ms = static_cast<uint32_t>(config.supervision.silence_ms);
  SS_ASSIGN(process->transport_, Transport::start(process->system_, options));
  return process;
}

}  // namespace simplescale
