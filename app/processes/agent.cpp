// A node's agent: the process that srun or the local launcher starts once on each node. It creates
// the node's shared memory, dataloader and actors, and waits for the run's end. The main thread
// only waits; actors run on two CAF workers.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <caf/all.hpp>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "actors/node/health.hpp"
#include "actors/node/node.hpp"
#include "actors/node/supervisor_link.hpp"
#include "actors/peer/transfer.hpp"
#include "app/hosts/sharing.hpp"
#include "app/hosts/task.hpp"
#include "app/launch/auto_device.hpp"
#include "app/processes/actor_process.hpp"
#include "app/processes/agent.hpp"
#include "app/report.hpp"
#include "app/slurm/slurm.hpp"
#include "runtime/base/cpu_affinity.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/named_descriptors.hpp"
#include "runtime/config/run_instructions.hpp"
#include "runtime/diagnostics/hardware.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/run/agent_lock.hpp"
#include "runtime/run/folder_watch.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/run/run_state.hpp"
#include "runtime/training/names.hpp"

namespace simplescale {

namespace {

/// Makes the dataloader, which reads samples into the token rings of all trainers of the node.
Result<std::shared_ptr<RingFiller>> make_filler(const Config& config, const Plan& plan,
                                                const RunData& data, const std::string& instance,
                                                int node) {
  RingShape shape;
  shape.rings = static_cast<uint64_t>(plan.topology.trainers_per_node);
  shape.slots = static_cast<uint64_t>(config.data.ring_batches);
  shape.micro_batch_size = static_cast<uint64_t>(plan.micro_batch_size);
  shape.block_size = static_cast<uint64_t>(plan.shape.block_size);
  SS_ASSIGN(TokenRings rings,
            TokenRings::create("ss-" + instance + "-" + node_name(node) + "-tokens", shape));
  return std::make_shared<RingFiller>(
      std::move(rings), data.train(), sample_order(config, plan, data),
      [](const Status& status) { log::error("the dataloader failed: {}", status.message()); },
      // A failed read from a bucket was already repeated for as long as trainers wait.
      data.files.in_bucket() ? Retries{.tries = 0} : Retries{});
}

/// The CPUs of each trainer of this node: those near its preferred GPU or, without GPUs, its share
/// of the host's CPUs. Nodes on the same host get different shares. Empty: the trainer is not
/// bound.
std::vector<CpuList> trainer_places(const Config& config, const Plan& plan, int node) {
  const CpuList mask = cpu_mask();
  const std::vector<CpuList> numa = numa_nodes();
  const int slots = plan.topology.trainers_per_node;
  const int nodes = plan.topology.nodes + static_cast<int>(config.cluster.spares);
  slurm::HostSlots cpus{node * slots, nodes * slots}, gpus = cpus;  // all nodes are on this host
  if (const auto task = slurm_task()) {
    cpus = slurm::cpu_slots(*task, slots, static_cast<int>(mask.size()),
                            static_cast<int>(std::thread::hardware_concurrency()));
    gpus = slurm::host_slots(*task, slots);
  }
  std::vector<CpuList> list = trainer_cpus(mask, numa, cpus.total);
  list = {list.begin() + cpus.first, list.begin() + cpus.first + slots};
  const auto addresses = slurm::slot_gpus(environment_variable(kGpusVariable), gpus, slots);
  if (!numa.empty() && config.cluster.device != DeviceKind::cpu)
    std::ranges::transform(addresses, list.begin(),
                           [&mask, hardware = read_hardware()](const std::string& address) {
                             return cpus_near_gpu(mask, hardware, address);
                           });
  for (int slot = 0; slot < slots; ++slot)
    if (const CpuList& own = list[static_cast<size_t>(slot)]; !own.empty())
      log::info("{} is bound to CPUs {}", trainer_name(node_name(node), slot), cpu_list_text(own));
  return list;
}

/// The supervisors and standbys that this agent has started. If the agent dies, they outlive it. At
/// the run's end the agent waits for them, so that no process of the run remains.
class SupervisorProcesses {
 public:
  SupervisorProcesses(std::shared_ptr<ProcessWatcher> watcher, const AgentOptions& options)
      : watcher_(std::move(watcher)), options_(options), shared_(std::make_shared<Shared>()) {}

  Status start(const std::string& standby_of) {
    const std::string node = node_name(options_.node);
    SpawnOptions command;
    command.argv = {
        program_folder() + "/simplescale", "supervisor", "--run", options_.run, "--node", node};
    if (!standby_of.empty()) {
      command.argv.push_back("--standby-of");
      command.argv.push_back(standby_of);
    }
    command.environment = {{"SIMPLESCALE_INSTANCE", options_.instance}};
    command.output = RunFolder{options_.run}.logs() + "/supervisor-" + node + ".log";
    command.die_with_parent = false;
    auto child = watcher_->spawn(command, [shared = shared_](pid_t pid, ExitStatus status) {
      if (!status.ok()) log::warn("supervisor process {} ended with {}", pid, status.text());
      std::lock_guard lock(shared->mutex);
      shared->ended.insert(pid);
      shared->changed.notify_all();
    });
    if (!child.ok()) return child.status();
    std::lock_guard lock(shared_->mutex);
    shared_->started.insert(*child);
    return {};
  }

  /// For a drill that imitates a dead host: its supervisor and its standby die, too.
  void kill() {
    std::lock_guard lock(shared_->mutex);
    for (const pid_t pid : shared_->started)
      if (!shared_->ended.contains(pid)) ::kill(pid, SIGKILL);
  }

  /// Waits until all have ended. False: one still runs after timeout_ms; it is not killed.
  bool wait(int64_t timeout_ms) {
    std::unique_lock lock(shared_->mutex);
    return shared_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] {
      return std::ranges::includes(shared_->ended, shared_->started);
    });
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::set<pid_t> started, ended;
  };
  std::shared_ptr<ProcessWatcher> watcher_;
  const AgentOptions options_;
  std::shared_ptr<Shared> shared_;
};

/// Sends the node actor the signals of this process, and those that the launcher queues as values
/// of SIGRTMIN. Sends a second SIGINT as SIGQUIT: stop at once.
class SignalThread {
 public:
  explicit SignalThread(caf::actor node)
      : thread_([node] {
          sigset_t set = signals();
          bool asked = false;
          const bool of_host = !environment_variable(slurm::kTaskVariable).empty();
          while (true) {
            siginfo_t info{};
            int signal = sigwaitinfo(&set, &info);
            if (signal < 0) continue;
            if (signal == SIGALRM) return;  // from the destructor
            const bool of_launcher = signal == SIGRTMIN;
            // systemd signals all processes of a host; the host's command decides what to do.
            if (of_host && !of_launcher) continue;
            if (of_launcher) signal = info.si_value.sival_int;
            caf::anon_send(node, local::StopSignal{asked && signal == SIGINT ? SIGQUIT : signal});
            asked = true;
          }
        }) {}
  ~SignalThread() {
    pthread_kill(thread_.native_handle(), SIGALRM);
    thread_.join();
  }
  static sigset_t signals() {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGQUIT, SIGALRM, SIGRTMIN})
      sigaddset(&set, signal);
    return set;
  }

 private:
  std::thread thread_;
};

/// Reads the term files and sends their contents to the node's supervisor link.
std::shared_ptr<TermWatch> watch_terms(const RunFolder& run, const std::string& instance,
                                       std::shared_future<caf::actor> link) {
  return std::make_shared<TermWatch>(TermFiles(run, instance),
                                     [link = std::move(link)](const TermView& view) {
                                       caf::anon_send(link.get(), terms_polled(view));
                                     });
}

LinkOptions make_link_options(const AgentOptions& o, const Config& config, Transport& transport,
                              std::shared_ptr<SupervisorProcesses> supervisors,
                              std::shared_ptr<StateStore> states) {
  LinkOptions options;
  options.node = node_name(o.node);
  options.index = o.node;
  options.join_timeout_ms = config.cluster.join_timeout_ms;
  options.lookup = [&transport](const std::string& address, auto done) {
    transport.lookup(address, "supervisor", kLookupMs, std::move(done));
  };
  options.start_supervisor = [supervisors](const std::string& standby_of) {
    return supervisors->start(standby_of);
  };
  options.held = [states](const std::string& trainer) { return states->held(trainer); };
  options.disconnect = [&transport](const caf::node_id& process, const std::string& reason) {
    transport.peer_is_dead(process, reason);
  };
  return options;
}

/// Finds the nodes whose links a diagnosis checks. The diagnosis actor has a thread of its own,
/// which may outlive the transport. Any thread.
class NodeLookup {
 public:
  explicit NodeLookup(Transport& transport) : transport_(&transport) {}
  Result<caf::actor> find(const std::string& address) {
    std::lock_guard lock(mutex_);
    if (!transport_) return Status(Code::aborted, "the agent ends");
    return transport_->lookup(address, "node", kLookupMs);
  }
  /// Call it once the transport has stopped, which ends a waiting lookup.
  void end() {
    std::lock_guard lock(mutex_);
    transport_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Transport* transport_;
};

/// The run's exit code and the reason of its end.
using AgentEnd = std::pair<int, std::string>;

/// Waits for the end of the run. Meanwhile the node actor gets signals, the loss of the run's
/// folder, and the host's health.
int wait_for_end(const caf::actor& node, const RunFolder& run, const AgentOptions& o,
                 const Config& config, std::future<AgentEnd>& end) {
  SignalThread signal_thread(node);
  const FolderWatch folder_watch(
      run,
      [node, run] {
        log::error("{}", run_gone_message(run));
        caf::anon_send(node, Shutdown{exit_code(Code::io), run_gone_message(run)});
      },
      std::chrono::seconds(1), FolderWatch::looks_of_agent(config.cluster.join_timeout_ms));
  std::unique_ptr<HealthReporter> health;
  if (config.metrics.health_every_ms > 0)
    health = std::make_unique<HealthReporter>(node, node_name(o.node), o.run,
                                              config.metrics.health_every_ms);
  return end.get().first;
}

Result<int> run_agent(const AgentOptions& o) {
  const RunFolder run{o.run};
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  const Config& config = loaded.config;
  SS_ASSIGN(const Plan plan, make_plan(config));
  SS_ASSIGN(const RunData data, open_tokens(config, plan.shape));
  SS_ASSIGN(const InstructionSet required, required_instructions(run, config));
  if (Status status = trace::start(static_cast<size_t>(config.metrics.trace_events)); !status.ok())
    log::warn("no traces: {}", status.message());
  SS_ASSIGN(const std::string key, read_run_key(run));
  set_name_secret(key);
  auto states = std::make_shared<StateStore>();
  const auto places = trainer_places(config, plan, o.node);
  // Create the filler first. It starts the thread that gives trainers this agent's memory, and a
  // thread inherits its creator's CPUs: while the states below are created, those of one trainer.
  SS_ASSIGN(auto filler, make_filler(config, plan, data, o.instance, o.node));
  SS_RETURN_IF_ERROR(states->create(o.instance, plan, o.node, places));
  SS_ASSIGN(LogRules rules, LogRules::load(config.supervision.log_rules));
  auto watcher = std::make_shared<ProcessWatcher>();
  DataPlaneOptions plane_options;
  plane_options.ranks_max = std::max(plane_options.ranks_max, plan.topology.most_ranks());
  plane_options.network = has_other_hosts(config);
  plane_options.trusted_networks = config.transport.trusted_networks;
  plane_options.key = key;
  SS_ASSIGN(const auto plane, make_agent_plane(std::move(plane_options), o.instance, o.node));
  std::shared_ptr<PeerTier> peers;
  if (peer_every_steps(config, plan.topology) > 0)
    peers =
        std::make_shared<PeerTier>(agent_segments(o.instance, o.node), plan.shape, plan.state,
                                   plane, static_cast<int>(config.parallel.collective_timeout_ms));

  SS_ASSIGN(auto actors, ActorProcess::start(config, {o.run}, o.instance, 2));
  caf::actor_system& system = actors->system();
  Transport& transport = actors->transport();

  auto supervisors = std::make_shared<SupervisorProcesses>(watcher, o);
  LinkOptions link_options = make_link_options(o, config, transport, supervisors, states);
  std::promise<caf::actor> to_watch;
  link_options.watch = watch_terms(run, o.instance, to_watch.get_future().share());
  auto watch = link_options.watch;
  caf::actor supervisor = system.spawn(supervisor_link, std::move(link_options));
  to_watch.set_value(supervisor);

  auto nodes = std::make_shared<NodeLookup>(transport);
  auto end = std::make_shared<std::promise<AgentEnd>>();
  auto result = end->get_future();
  NodeOptions options{o.node,
                      config,
                      plan,
                      run,
                      o.instance,
                      transport.address(),
                      watcher,
                      states,
                      filler,
                      std::make_shared<DiskFaults>(),
                      [&transport](TransportFault fault) { transport.inject(std::move(fault)); },
                      [end](int code, std::string reason) {
                        end->set_value({code, std::move(reason)});
                      },
                      [nodes](const std::string& address) { return nodes->find(address); },
                      plane,
                      peers,
                      std::make_shared<LogRules>(std::move(rules)),
                      slurm::batch_log(slurm_task()),
                      places};
  if (config.cluster.device != DeviceKind::cuda) options.instructions = best_instructions();
  options.run_instructions = required;
  options.kill_supervisors = [supervisors] { supervisors->kill(); };
  caf::actor node = system.spawn(node_actor, supervisor, std::move(options));
  transport.publish("node", node);
  const int code = wait_for_end(node, run, o, config, result);
  watch.reset();
  caf::anon_send_exit(supervisor, caf::exit_reason::user_shutdown);
  node = nullptr;
  supervisor = nullptr;
  transport.stop();
  nodes->end();
  filler->stop();
  if (!supervisors->wait(config.supervision.shutdown_ms))
    log::info("a supervisor that this agent started is still running");
  return code;
}

}  // namespace

int run_agent_process(const AgentOptions& options) {
  const std::string name = node_name(options.node);
  init_logging(name);
  if (Status own = keep_others_out({options.run}); !own.ok()) return report_status(own);
  // LOCK-1. Held until this process ends; by then the agent's supervisors have ended, too.
  const auto lock = AgentLock::share({options.run});
  if (!lock.ok()) return report_status({Code::requeue, lock.status().message()});
  // The start's supervisor has ended: this agent would start another one.
  if (const auto end = end_of({options.run}, options.instance)) {
    log::info("this start of the run has ended: {}", end->reason);
    return end->code;
  }
  signal(SIGHUP, SIG_IGN);  // no process of a run ends with its terminal; trainers inherit this
  // A write beyond the limit of file sizes fails with EFBIG instead of killing the process.
  // Trainers inherit this.
  signal(SIGXFSZ, SIG_IGN);
  sigset_t set = SignalThread::signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  auto code = run_agent(options);
  if (!code.ok()) return report_status(code.status());
  return *code;
}

}  // namespace simplescale
