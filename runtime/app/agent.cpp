// A node's agent: the process that srun (or the local launcher) starts, once per node. It wires the
// node's resources and actors together, waits for the end, and cleans up after its trainers.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <caf/all.hpp>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "actors/job/journal.hpp"
#include "actors/job/supervisor.hpp"
#include "actors/node/node.hpp"
#include "runtime/app/actor_process.hpp"
#include "runtime/app/agent.hpp"
#include "runtime/app/report.hpp"
#include "runtime/base/log.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/data/data_location.hpp"

namespace simplescale {

namespace {

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

/// What the supervisor's node finds out before anything starts: where the run stands.
Result<JobOptions> job_options(const AgentOptions& o, const Config& config, const Plan& plan,
                               const Dataset& dataset, std::shared_ptr<Journal> journal) {
  JobOptions job;
  job.config = config;
  job.plan = plan;
  job.run = {o.run};
  job.node = "n" + std::to_string(o.node);
  job.tokenizer = dataset.tokenizer;
  job.journal = std::move(journal);
  if (auto text = read_text(job.run.generation()); text.ok())
    job.last_generation = std::strtoull(text->c_str(), nullptr, 10);
  auto found = find_newest_valid(checkpoint_folder(config));
  if (found.ok()) {
    for (const std::string& warning : found->warnings)
      log::warn("{}; the next older checkpoint is used", warning);
    if (found->checkpoint.info().shape != plan.shape)
      return Status(Code::bad_config, found->checkpoint.folder() +
                                          " holds another model than the configuration's; give "
                                          "this run a folder of its own with --run=FOLDER");
    job.checkpoint_step = found->checkpoint.info().step;
  } else if (found.status().code() != Code::not_found) {
    return found.status();
  }
  return job;
}

/// Waits for the file in which the supervisor's agent says where it is.
Result<std::string> supervisor_address(const RunFolder& run, const std::string& instance,
                                       int64_t timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    auto text = read_text(run.supervisor(instance));
    if (text.ok() && !text->empty()) return text;
    if (std::chrono::steady_clock::now() > deadline)
      return Status(Code::requeue,
                    "no supervisor has shown up in " + run.control() + " within " +
                        std::to_string(timeout_ms) +
                        " ms; is the run folder on a file system that all nodes see?");
    std::this_thread::sleep_for(
        std::chrono::milliseconds(5));  // a shared file system tells no changes
  }
}

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
  auto states = std::make_shared<StateStore>();
  SS_RETURN_IF_ERROR(states->create(o.instance, plan, o.node));
  SS_ASSIGN(auto filler, make_filler(config, plan, dataset, o.instance, o.node));
  auto watcher = std::make_shared<ProcessWatcher>();
  auto journal = o.node == 0 ? std::make_shared<Journal>(run.path) : nullptr;

  SS_ASSIGN(auto actors, ActorProcess::start(config, o.instance, 2));
  caf::actor_system& system = actors->system();
  Transport& transport = actors->transport();

  caf::actor supervisor;
  if (o.node == 0) {
    SS_ASSIGN(JobOptions job, job_options(o, config, plan, dataset, journal));
    supervisor = system.spawn(job_supervisor, std::move(job));
    transport.publish("supervisor", supervisor);
    SS_RETURN_IF_ERROR(write_file_atomic(run.supervisor(o.instance), transport.address()));
  } else {
    SS_ASSIGN(const std::string address,
              supervisor_address(run, o.instance, config.cluster.join_timeout_ms));
    SS_ASSIGN(supervisor, transport.lookup(address, "supervisor",
                                           static_cast<int>(config.cluster.join_timeout_ms)));
  }

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
                      }};
  caf::actor node = system.spawn(node_actor, supervisor, std::move(options));
  transport.publish("node", node);
  int code;
  {
    SignalThread signal_thread(node);
    code = result.get().first;
  }
  if (o.node == 0) caf::anon_send_exit(supervisor, caf::exit_reason::user_shutdown);
  std::error_code ignored;
  if (o.node == 0) std::filesystem::remove(run.supervisor(o.instance), ignored);
  node = nullptr;
  supervisor = nullptr;
  transport.stop();
  filler->stop();
  return code;
}

}  // namespace

int run_agent_process(const AgentOptions& options) {
  const std::string name = "n" + std::to_string(options.node);
  init_logging(name);
  sigset_t set = SignalThread::signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  auto code = run_agent(options);
  unlink_shared_memory("ss-" + options.instance + "-" + name + ".");
  unlink_shared_memory("ss-" + options.instance + "-" + name + "-");
  if (!code.ok()) return report(code.status());
  return *code;
}

}  // namespace simplescale
