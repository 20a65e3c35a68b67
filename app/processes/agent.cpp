// A node's agent: the process that srun (or the local launcher) starts, once per node. It wires the
// node's resources and actors together, waits for the end, and cleans up after its trainers.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
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
#include "app/processes/actor_process.hpp"
#include "app/processes/agent.hpp"
#include "app/report.hpp"
#include "app/slurm/job.hpp"
#include "app/slurm/slurm.hpp"
#include "runtime/base/cpu_places.hpp"
#include "runtime/base/log.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/observe/trace.hpp"
#include "runtime/run/folder_watch.hpp"

namespace simplescale {

namespace {

constexpr int kLookupMs = 1'000;  // for a supervisor to answer

/// Where the data's rings come from, for all trainers of the node.
Result<std::shared_ptr<RingFiller>> make_filler(const Config& config, const Plan& plan,
                                                const Dataset& dataset, const std::string& instance,
                                                int node) {
  RingShape shape;
  shape.rings = static_cast<uint64_t>(plan.topology.trainers_per_node);
  shape.slots = static_cast<uint64_t>(config.data.ring_batches);
  shape.micro_batch_size = static_cast<uint64_t>(plan.micro_batch_size);
  shape.block_size = static_cast<uint64_t>(plan.shape.block_size);
  SS_ASSIGN(TokenRings rings,
            TokenRings::create("ss-" + instance + "-n" + std::to_string(node) + "-tokens", shape));
  const SampleOrder order(dataset.train.samples(plan.shape.block_size), data_seed(config),
                          config.data.shuffle);
  return std::make_shared<RingFiller>(
      std::move(rings), dataset.train, order,
      [](const Status& status) { log::error("the dataloader stops: {}", status.message()); });
}

/// The CPUs of each trainer of this node, beside the host's others.
std::vector<CpuList> trainer_places(const Config& config, const Plan& plan, int node) {
  const CpuList mask = cpu_mask();
  const int slots = plan.topology.trainers_per_node;
  const int nodes = plan.topology.nodes + static_cast<int>(config.cluster.spares);
  slurm::HostSlots host{node * slots, nodes * slots};  // all nodes are on this host
  if (const auto task = slurm_task())
    host = slurm::cpu_slots(*task, slots, static_cast<int>(mask.size()),
                            static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<CpuList> list = places(mask, numa_nodes(), host.total);
  list = {list.begin() + host.first, list.begin() + host.first + slots};
  for (int slot = 0; slot < slots; ++slot)
    if (const CpuList& cpus = list[static_cast<size_t>(slot)]; !cpus.empty())
      log::info("n{}.{} runs on the CPUs {} of its NUMA node", node, slot, cpu_list_text(cpus));
  return list;
}

/// The supervisors and standbys that this agent has started. They are not bound to it; at the run's
/// end it waits for them, so that nothing of the run is left behind it.
class SupervisorProcesses {
 public:
  SupervisorProcesses(std::shared_ptr<ProcessWatcher> watcher, const AgentOptions& options)
      : watcher_(std::move(watcher)), options_(options), shared_(std::make_shared<Shared>()) {}

  Status start(const std::string& standby_of) {
    const std::string node = "n" + std::to_string(options_.node);
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

  /// True if all have ended by themselves.
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

/// Turns signals into messages. A second SIGINT means: at once.
class SignalThread {
 public:
  explicit SignalThread(caf::actor node)
      : thread_([node] {
          sigset_t set = signals();
          bool asked = false;
          while (true) {
            int signal = 0;
            if (sigwait(&set, &signal) != 0) continue;
            if (signal == SIGALRM) return;  // stop()
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
    for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGQUIT, SIGALRM}) sigaddset(&set, signal);
    return set;
  }

 private:
  std::thread thread_;
};

Result<int> run_agent(const AgentOptions& o) {
  const RunFolder run{o.run};
  SS_ASSIGN(const LoadedConfig loaded, load_config(run.config()));
  const Config& config = loaded.config;
  SS_ASSIGN(const Plan plan, make_plan(config));
  SS_ASSIGN(const Dataset dataset, open_tokens(config, plan.shape));
  if (Status status = trace::start(static_cast<size_t>(config.metrics.trace_events)); !status.ok())
    log::warn("no traces: {}", status.message());
  auto states = std::make_shared<StateStore>();
  const auto places = trainer_places(config, plan, o.node);
  SS_RETURN_IF_ERROR(states->create(o.instance, plan, o.node, places));
  SS_ASSIGN(auto filler, make_filler(config, plan, dataset, o.instance, o.node));
  SS_ASSIGN(LogRules rules, LogRules::load(config.supervision.log_rules));
  auto watcher = std::make_shared<ProcessWatcher>();
  std::shared_ptr<PeerTier> peers;
  if (config.checkpoint.peer_every_steps > 0) {
    SS_ASSIGN(peers, make_peer_tier(o.instance, o.node, plan.shape,
                                    static_cast<size_t>(plan.topology.shards),
                                    static_cast<int>(config.parallel.collective_timeout_ms)));
  }

  SS_ASSIGN(auto actors, ActorProcess::start(config, {o.run}, o.instance, 2));
  caf::actor_system& system = actors->system();
  Transport& transport = actors->transport();

  auto supervisors = std::make_shared<SupervisorProcesses>(watcher, o);
  auto linked = std::make_shared<std::promise<caf::actor>>();
  LinkOptions link_options;
  link_options.node = "n" + std::to_string(o.node);
  link_options.index = o.node;
  link_options.join_timeout_ms = config.cluster.join_timeout_ms;
  link_options.watch = std::make_shared<EpochWatch>(
      EpochFiles(run, o.instance), [link = linked->get_future().share()](const EpochView& view) {
        caf::anon_send(link.get(), epochs_polled(view));
      });
  link_options.lookup = [&transport](const std::string& address, auto done) {
    transport.lookup(address, "supervisor", kLookupMs, std::move(done));
  };
  link_options.start_supervisor = [supervisors](const std::string& standby_of) {
    return supervisors->start(standby_of);
  };
  link_options.held = [states](const std::string& trainer) { return states->held(trainer); };
  auto watch = link_options.watch;
  caf::actor supervisor = system.spawn(supervisor_link, std::move(link_options));
  linked->set_value(supervisor);

  auto end = std::make_shared<std::promise<std::pair<int, std::string>>>();
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
                      [&transport](const std::string& address) {
                        return transport.lookup(address, "node", kLookupMs);
                      },
                      peers,
                      std::make_shared<LogRules>(std::move(rules)),
                      slurm::batch_log(slurm_task()),
                      places};
  caf::actor node = system.spawn(node_actor, supervisor, std::move(options));
  transport.publish("node", node);
  int code;
  {
    SignalThread signal_thread(node);
    const FolderWatch folder_watch(run, [node, run] {
      log::error("{}", run_is_gone(run));
      caf::anon_send(node, Shutdown{exit_code(Code::io), run_is_gone(run)});
    });
    std::unique_ptr<HealthReporter> health;
    if (config.metrics.health_every_ms > 0)
      health = std::make_unique<HealthReporter>(node, "n" + std::to_string(o.node), o.run,
                                                config.metrics.health_every_ms);
    code = result.get().first;
  }
  watch.reset();
  caf::anon_send_exit(supervisor, caf::exit_reason::user_shutdown);
  node = nullptr;
  supervisor = nullptr;
  transport.stop();
  filler->stop();
  if (!supervisors->wait(config.supervision.shutdown_ms))
    log::info("a supervisor started here goes on");
  return code;
}

}  // namespace

int run_agent_process(const AgentOptions& options) {
  const std::string name = "n" + std::to_string(options.node);
  init_logging(name);
  // Also removes what an agent before this one left when it was killed.
  const auto owner = SegmentOwner::claim("ss-" + options.instance + "-" + name);
  if (!owner.ok()) return report(owner.status());
  // A limit of file sizes is an error of the disk, not a death; trainers inherit this.
  signal(SIGXFSZ, SIG_IGN);
  sigset_t set = SignalThread::signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  auto code = run_agent(options);
  if (!code.ok()) return report(code.status());
  return *code;
}

}  // namespace simplescale
