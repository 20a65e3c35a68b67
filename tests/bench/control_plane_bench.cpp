// bench control_plane: one supervisor with 1,024 simulated agents of 8 trainers each.
//
//   ./simplescale bench control_plane [--nodes 1024] [--trainers 8] [--seconds 10] [--work FOLDER]
//                                     [--program FILE]
//
// Starts one real supervisor process. This process plays the agents of all nodes, and one console.
// Each is a peer with its own connection, handshake with the run's key, heartbeats and, for an
// agent, registration over the real protocol. The trainers are simulated and answer at once.
//
// Measures the share of a core that the supervisor process uses (from /proc), first with heartbeats
// alone at 10 Hz, then with each node's health and a step every second as well; and the time of
// `status` under the same load. One thread. Prints JSON lines, then a table.
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/base/log.hpp"
#include "runtime/base/process.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/run/term.hpp"
#include "transport/caf/address.hpp"
#include "transport/caf/core.hpp"
#include "transport/caf/envelope.hpp"
#include "transport/caf/proof.hpp"
#include "transport/protocol/convert.hpp"
#include "transport/stream/messenger.hpp"

using namespace simplescale;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

namespace {

constexpr uint64_t kAgentActor = 1;              // id of the only actor of each simulated process
constexpr uint64_t kNormal = uint64_t{1} << 60;  // in a CAF message id: normal priority
constexpr auto kHeartbeat = std::chrono::milliseconds(100);
constexpr auto kDeadline = std::chrono::seconds(120);

double seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

template <class T>
T must(Result<T> result) {
  if (result.ok()) return result.take();
  std::fprintf(stderr, "control_plane_bench: %s\n", result.status().message().c_str());
  std::exit(1);
}

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "control_plane_bench: %s\n", status.message().c_str());
  std::exit(1);
}

/// One simulated process, which is a peer of the supervisor process.
struct Agent {
  std::string name;  // "n17", or "console"
  remote::Side side, theirs;
  stream::LinkPtr link;
  uint64_t sequence = 0, supervisor = 0;  // of the next message; id of the supervisor actor or 0
  Clock::time_point spoke;                // when this agent last sent a message
};

struct Job {
  Config config;
  Plan plan;
  RunFolder run;
  std::string instance, key;
};

class Agents {
 public:
  Agents(const Job& job, const std::string& address) : job_(job), address_(address) {
    target_ = must(remote::parse_address(address));
    messenger_ = must(stream::Messenger::create(
        {.key = job.key, .host = {1}},  // as on another host: over TCP
        {[this](const auto& link, stream::Incoming& message) { arrived(link, message); },
         [](const auto&, auto, const std::string&) {}}));
    const int nodes = job.plan.topology.nodes;
    for (int i = 0; i <= nodes; ++i) {
      Agent agent;
      agent.name = i < nodes ? "n" + std::to_string(i) : "console";
      caf::node_id::default_data::host_id_type host{};
      std::random_device random;
      for (auto& byte : host) byte = static_cast<uint8_t>(random());
      agent.side = {remote::node_to_bytes(caf::make_node_id(uint32_t{1}, host)),
                    static_cast<uint64_t>(i) + 1, remote::random_nonce(), messenger_->address()};
      agents_.push_back(std::move(agent));
    }
  }

  /// Sends the hellos of all nodes at once, as at the start of a job, then the console's.
  void connect() {
    for (Agent& agent : agents_) {
      agent.link = must(messenger_->connect(target_.worker));
      const remote::Proof proof = remote::prove(job_.key, "", remote::Role::hello, agent.side, {});
      post(agent, {remote::FrameHeader::kMagic, 0, 0, 0},
           remote::make_envelope([&](wire::Envelope::Builder out) {
             auto hello = out.initHello();
             hello.setVersion(wire::PROTOCOL_VERSION);
             hello.setRunId(job_.instance);
             hello.setNode(kj::arrayPtr(agent.side.node.data(), agent.side.node.size()));
             hello.setToken(agent.side.token);
             hello.setAddress(kj::arrayPtr(agent.side.address.data(), agent.side.address.size()));
             hello.setNonce(kj::arrayPtr(agent.side.nonce.data(), agent.side.nonce.size()));
             hello.setProof(kj::arrayPtr(proof.data(), proof.size()));
           }));
      turn();
    }
  }

  /// Serves the connections until done() is true. False: the deadline passed first.
  bool until(const std::function<bool()>& done, Clock::duration deadline = kDeadline) {
    const auto end = Clock::now() + deadline;
    while (!done()) {
      if (Clock::now() > end) return false;
      turn();
    }
    return true;
  }

  /// Every trainer of every node reports the next step.
  void step() {
    ++step_;
    const BatchLayout layout =
        batch_layout(job_.plan, groups_, static_cast<uint64_t>(job_.plan.topology.shards));
    for (Agent& agent : agents_)
      for (const std::string& trainer : trainers_of(agent)) {
        StepDone done;
        done.generation = generation_;
        done.step = step_;
        done.trainer = trainer;
        done.loss = 5.0 / static_cast<double>(step_) + 2;
        done.grad_norm = 1;
        done.learning_rate = 1e-3;
        done.step_ms = done.busy_ms = 900;
        const auto& place = places_.at(trainer);
        done.samples = samples_of(job_.plan, layout, place.first, place.second, step_);
        done.time =
            std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
                .count();
        tell(agent, done);
      }
  }

  void health() {
    const GpuHealth gpu{"NVIDIA H100", 0.97, 61, 640, 0.8, 0, 1980, 0, 0};
    for (Agent& agent : agents_) {
      if (agent.name == "console") continue;
      NodeHealth health{agent.name, 0.5, 0.4, 0.3, 80, 81, std::vector(8, gpu), {}};
      for (const std::string& trainer : trainers_of(agent))
        health.trainers.push_back({trainer, step_, 900.12, 1.23, 300.45, 500.67, 80.89, 45.67});
      tell(agent, health);
    }
  }

  /// Sends a console command. Returns the ms until its whole answer has arrived; -1: none in time.
  double ask(const std::vector<std::string>& words) {
    Agent& console = agents_.back();
    const size_t before = answers_;
    const auto begin = Clock::now();
    tell(console, Command{words, "bench"}, kNormal | ++requests_);
    if (!until([&] { return answers_ > before; })) return -1;
    return 1e3 * seconds(Clock::now() - begin);
  }

  size_t connected() const { return connected_; }
  size_t joined() const { return joined_; }
  uint64_t heartbeats() const { return heartbeats_; }
  uint64_t received() const { return received_; }
  size_t answer_bytes() const { return answer_bytes_; }
  uint64_t last_step() const { return step_; }

 private:
  std::vector<std::string> trainers_of(const Agent& agent) const {
    std::vector<std::string> names;
    if (agent.name != "console")
      for (int slot = 0; slot < job_.plan.topology.trainers_per_node; ++slot)
        names.push_back(agent.name + "." + std::to_string(slot));
    return names;
  }

  /// Makes progress, sends the heartbeats that are due, and sleeps for at most 1 ms if idle.
  void turn() {
    bool busy = false;
    for (int i = 0; i < 64 && messenger_->progress(); ++i) busy = true;
    while (!arrivals_.empty()) {
      auto [token, words] = std::move(arrivals_.front());
      arrivals_.pop_front();
      handle(agents_[token - 1], words);
      busy = true;
    }
    const auto now = Clock::now();
    if (now >= next_beat_) {
      next_beat_ = now + std::chrono::milliseconds(1);
      for (Agent& agent : agents_)
        if (agent.supervisor != 0 && now - agent.spoke >= kHeartbeat) {
          ++heartbeats_;
          send(agent,
               remote::make_envelope([](wire::Envelope::Builder out) { out.setHeartbeat(); }));
        }
    }
    if (busy) return;
    if (!messenger_->arm()) return;
    pollfd event{messenger_->event_fd(), POLLIN, 0};
    poll(&event, 1, 1);
  }

  void post(Agent& agent, const remote::FrameHeader& header, remote::Words words) {
    const auto kept = std::make_shared<const remote::Words>(kj::mv(words));
    const auto bytes = kept->asBytes();
    messenger_->send(agent.link, {reinterpret_cast<const uint8_t*>(&header), sizeof header},
                     {bytes.begin(), bytes.size()}, kept);
  }
  void send(Agent& agent, remote::Words words) {
    agent.spoke = Clock::now();
    post(agent, {remote::FrameHeader::kMagic, 0, agent.theirs.token, agent.sequence++},
         kj::mv(words));
  }
  template <class T>
  void tell(Agent& agent, const T& message, uint64_t id = kNormal) {
    send(agent, remote::make_envelope(
                    [&](wire::Envelope::Builder out) {
                      auto envelope = out.initMessage();
                      envelope.setSender(kAgentActor);
                      envelope.setReceiver(agent.supervisor);
                      envelope.setId(id);
                      wire::write(message, envelope.initBody());
                    },
                    wire::bytes_of(message)));
  }

  // --- Received messages ---

  void arrived(const stream::LinkPtr& link, const stream::Incoming& message) {
    messenger_->trust(link, 64 << 20);
    remote::FrameHeader frame;
    if (message.header_bytes != sizeof frame) return;
    std::memcpy(&frame, message.header.data(), sizeof frame);
    if (frame.token == 0 || frame.token > agents_.size()) return;
    auto words = kj::heapArray<capnp::word>(message.bytes / sizeof(capnp::word));
    std::memcpy(words.asBytes().begin(), message.data.get(), words.asBytes().size());
    arrivals_.emplace_back(frame.token, kj::mv(words));
  }

  void handle(Agent& agent, const remote::Words& words) {
    ++received_;
    capnp::FlatArrayMessageReader reader(words, remote::reader_options(words.size()));
    auto envelope = reader.getRoot<wire::Envelope>();
    switch (envelope.which()) {
      case wire::Envelope::WELCOME: {
        auto welcome = envelope.getWelcome();
        const auto bytes = [](capnp::Data::Reader data) {
          return std::vector<uint8_t>(data.begin(), data.end());
        };
        agent.theirs = {
            bytes(welcome.getNode()), welcome.getToken(), {}, bytes(welcome.getAddress())};
        std::ranges::copy(welcome.getNonce(), agent.theirs.nonce.begin());
        const remote::Proof proof =
            remote::prove(job_.key, job_.instance, remote::Role::proof, agent.side, agent.theirs);
        send(agent, remote::make_envelope([&](wire::Envelope::Builder out) {
               out.setProof(kj::arrayPtr(proof.data(), proof.size()));
             }));
        send(agent, remote::make_envelope([](wire::Envelope::Builder out) {
               auto lookup = out.initLookup();
               lookup.setId(1);
               lookup.setName("supervisor");
             }));
        return;
      }
      case wire::Envelope::FOUND:
        agent.supervisor = envelope.getFound().getActor();
        ++connected_;
        present(agent);
        return;
      case wire::Envelope::MESSAGE:
        return obey(agent, envelope.getMessage(), words.asBytes().size());
      case wire::Envelope::GOODBYE:
      case wire::Envelope::REFUSED:
        std::fprintf(stderr, "%s: the supervisor refused or closed the connection\n",
                     agent.name.c_str());
        return;
      default:
        return;
    }
  }

  void present(Agent& agent) {
    if (agent.name == "console") return;
    tell(agent,
         NodeHello{agent.name, "host-" + agent.name, getpid(),
                   static_cast<uint32_t>(job_.plan.topology.trainers_per_node), 0, address_});
    for (const std::string& trainer : trainers_of(agent))
      tell(agent, TrainerUp{trainer, getpid(), messenger_->address(), {}, 0});
  }

  void obey(Agent& agent, wire::Message::Reader message, size_t bytes) {
    auto body = message.getBody();
    if (body.isCommandReply()) {
      ++answers_;
      answer_bytes_ = bytes;
    } else if (body.isFenceGeneration() || body.isLeaveGeneration()) {
      const uint64_t generation = body.isFenceGeneration()
                                      ? body.getFenceGeneration().getGeneration()
                                      : body.getLeaveGeneration().getGeneration();
      for (const std::string& trainer : trainers_of(agent))
        tell(agent, TrainerIdle{.trainer = trainer, .generation = generation});
    } else if (body.isJoinGeneration()) {
      auto join = body.getJoinGeneration();
      if (join.getGeneration() != generation_) {
        generation_ = join.getGeneration();
        step_ = join.getStep();
        groups_ = join.getGroups();
        places_.clear();
        joined_ = 0;
        for (auto member : join.getMembers())
          places_[member.getTrainer().cStr()] = {member.getGroup(), member.getShard()};
      }
      ++joined_;
      for (const std::string& trainer : trainers_of(agent))
        tell(agent, TrainerReady{trainer, generation_, step_, 1, 0});
    }
  }

  const Job& job_;
  const std::string address_;
  remote::Address target_;
  std::unique_ptr<stream::Messenger> messenger_;
  std::vector<Agent> agents_;  // index: token - 1
  std::deque<std::pair<uint64_t, remote::Words>> arrivals_;
  Clock::time_point next_beat_;
  std::map<std::string, std::pair<uint32_t, uint32_t>> places_;  // trainer -> group, shard
  uint64_t generation_ = 0, step_ = 0, groups_ = 0, requests_ = 0;
  uint64_t heartbeats_ = 0, received_ = 0;
  size_t connected_ = 0, joined_ = 0, answers_ = 0, answer_bytes_ = 0;
};

/// CPU seconds that a process has used so far.
double cpu_s(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  text.erase(0, text.rfind(')') + 2);
  unsigned long user = 0, system = 0;
  std::sscanf(text.c_str(), "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

/// Makes a run folder for this many nodes, in the state in which `train` starts the agents.
Job make_job(const std::string& work, int nodes, int trainers) {
  std::filesystem::remove_all(work);
  for (const char* folder : {"/run/control", "/run/logs", "/run/checkpoints"})
    std::filesystem::create_directories(work + folder);
  const int world = nodes * trainers;
  std::vector<uint16_t> tokens(static_cast<size_t>(world) * 17 + 1000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i * 7 % 200);
  std::ofstream(work + "/tokens.bin", std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()),
             static_cast<std::streamsize>(2 * tokens.size()));
  const std::string text =
      "[run]\nname = \"control-plane\"\nfolder = \"" + work + "/run\"\n" +
      "[model]\ndim = 48\nhidden = 80\nlayers = 2\nheads = 4\nkv_heads = 2\nvocab = 211\n"
      "block_size = 16\n[data]\nformat = \"nanogpt\"\nvalidation_fraction = 0.0\nsource = \"" +
      work + "/tokens.bin\"\n[train]\nmicro_batch_size = 1\nmax_steps = 1000000\n" +
      "[parallel]\nstrategy = \"hybrid_shard\"\ngroup_nodes = " +
      std::to_string(nodes % 4 == 0 ? 4 : 1) + "\n[cluster]\nnodes = " + std::to_string(nodes) +
      "\ntrainers_per_node = " + std::to_string(trainers) +
      "\ndevice = \"cpu\"\n[supervision]\nheartbeat_ms = 100\n[checkpoint]\ndisk_every_steps = 0\n";
  Job job;
  job.config = must(load_config_text(text, "control_plane.toml")).config;
  job.plan = must(make_plan(job.config));
  job.run = {work + "/run"};
  job.instance = unique_id();
  must(write_file_atomic(job.run.config(), to_toml(job.config)));
  must(TermFiles(job.run, job.instance).begin());
  job.key = must(read_run_key(job.run));
  return job;
}

pid_t start_supervisor(const Job& job, const std::string& program) {
  SpawnOptions command;
  command.argv = {program, "supervisor", "--run=" + job.run.path, "--node=n0"};
  command.environment = {{"SIMPLESCALE_INSTANCE", job.instance}};
  // As a task of srun, so that it also listens on TCP.
  const std::pair<const char*, const char*> task[] = {
      {"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}};
  for (const auto& [name, value] : task) command.environment.emplace_back(name, value);
  command.output = job.run.logs() + "/supervisor-n0.log";
  return must(spawn(command));
}

struct Times {
  std::vector<double> ms;
  double at(double q) {
    std::ranges::sort(ms);
    return ms.empty() ? -1 : ms[static_cast<size_t>(q * static_cast<double>(ms.size() - 1) + 0.5)];
  }
};

/// Measures the supervisor for for_s seconds, calling each_second() once per second; then the time
/// of 50 `status` commands under the same load. Prints and returns the result as a JSON line.
json measure(const char* what, Agents& agents, pid_t supervisor, double for_s,
             const std::function<void()>& each_second) {
  Times status;
  const double cpu = cpu_s(supervisor), own = cpu_s(getpid());
  const uint64_t beats = agents.heartbeats(), received = agents.received();
  const auto begin = Clock::now();
  for (int second = 0; second < static_cast<int>(for_s); ++second) {
    each_second();
    const auto next = begin + std::chrono::seconds(second + 1);
    agents.until([&] { return Clock::now() > next; });
  }
  const double took = seconds(Clock::now() - begin);
  json line = {{"what", what},
               {"seconds", took},
               {"supervisor_cores", (cpu_s(supervisor) - cpu) / took},
               {"agents_cores", (cpu_s(getpid()) - own) / took},
               {"heartbeats_per_s", static_cast<double>(agents.heartbeats() - beats) / took},
               {"received_per_s", static_cast<double>(agents.received() - received) / took}};
  // In a second phase, so that the commands do not count in the figures above.
  const double asked_cpu = cpu_s(supervisor);
  const auto asked = Clock::now();
  for (int i = 0; i < 50; ++i) {
    if (i % 5 == 0) each_second();
    const auto next = Clock::now() + std::chrono::milliseconds(200);
    status.ms.push_back(agents.ask({"status"}));
    agents.until([&] { return Clock::now() > next; });
  }
  // CPU time of one answer: the total less that of the first phase. CPU time, unlike the time of an
  // answer, is meaningful while other programs use the machine.
  line["status_cpu_ms"] = 1e3 *
                          (cpu_s(supervisor) - asked_cpu -
                           line["supervisor_cores"].get<double>() * seconds(Clock::now() - asked)) /
                          50;
  line["status_ms_p50"] = status.at(0.5);
  line["status_ms_p99"] = status.at(0.99);
  line["status_bytes"] = agents.answer_bytes();
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  init_logging("control-plane-bench");
  int nodes = 1024, trainers = 8;
  double for_s = 10;
  std::string work = "build/bench/control-plane", program = program_folder() + "/simplescale";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--nodes") nodes = std::atoi(argv[i + 1]);
    if (flag == "--trainers") trainers = std::atoi(argv[i + 1]);
    if (flag == "--seconds") for_s = std::atof(argv[i + 1]);
    if (flag == "--work") work = argv[i + 1];
    if (flag == "--program") program = argv[i + 1];
  }
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  must(remote::init_crypto());
  const Job job = make_job(std::filesystem::absolute(work), nodes, trainers);
  const RunLock lock = must(RunLock::take(job.run));
  const pid_t supervisor = start_supervisor(job, program);
  const TermFiles terms(job.run, job.instance);
  std::string address;
  for (int i = 0; i < 3000 && address.empty(); ++i) {
    if (auto newest = terms.newest(); newest.ok()) address = newest->address;
    usleep(10'000);
  }
  if (address.empty())
    must(Status(Code::deadline, "the supervisor did not start within 30 s; see its log"));

  const auto all = static_cast<size_t>(nodes);
  auto begin = Clock::now();
  double cpu = cpu_s(supervisor);
  Agents agents(job, address);
  agents.connect();
  const bool came = agents.until([&] { return agents.connected() > all; });
  const double connect_s = seconds(Clock::now() - begin);
  const bool joined = came && agents.until([&] { return agents.joined() >= all; });
  const double join_s = seconds(Clock::now() - begin);
  if (!joined) {
    std::fprintf(stderr, "control_plane_bench: %zu of %zu agents connected, %zu joined\n",
                 agents.connected(), all + 1, agents.joined());
    kill(supervisor, SIGKILL);
    return 1;
  }
  json start = {{"what", "all agents register and join"},
                {"connected_after_s", connect_s},
                {"joined_after_s", join_s},
                {"supervisor_cpu_s", cpu_s(supervisor) - cpu}};
  std::printf("%s\n", start.dump().c_str());
  agents.until([] { return false; }, std::chrono::seconds(3));  // the supervisor writes its records

  std::vector<json> lines;
  lines.push_back(measure("heartbeats alone", agents, supervisor, for_s, [] {}));
  lines.push_back(measure("also health and a step per second", agents, supervisor, for_s, [&] {
    agents.health();
    agents.step();
  }));
  const auto committed = json::parse(must(read_text(job.run.status())), nullptr, false);
  std::printf(
      "\n%d nodes x %d trainers, one supervisor process; heartbeats at 10 Hz each way; "
      "all joined after %.1f s (%.1f s of the supervisor's CPU); committed step %d of %d\n\n",
      nodes, trainers, join_s, start["supervisor_cpu_s"].get<double>(), committed.value("step", 0),
      static_cast<int>(agents.last_step()));
  std::printf(
      "| | cores | heartbeats/s in | messages/s out | status ms p50 | p99 | CPU ms |\n"
      "|---|--:|--:|--:|--:|--:|--:|\n");
  for (const json& line : lines)
    std::printf("| %s | %.2f | %.0f | %.0f | %.1f | %.1f | %.1f |\n",
                line["what"].get<std::string>().c_str(), line["supervisor_cores"].get<double>(),
                line["heartbeats_per_s"].get<double>(), line["received_per_s"].get<double>(),
                line["status_ms_p50"].get<double>(), line["status_ms_p99"].get<double>(),
                line["status_cpu_ms"].get<double>());
  kill(supervisor, SIGKILL);
  waitpid(supervisor, nullptr, 0);
  std::fflush(nullptr);
  _exit(0);  // without closing a thousand connections to a dead process
}
