// bench messaging: actor messages between two processes; ours beside BASP, the protocol of CAF.
//
//   ./simplescale bench messaging [--quick] [--json]     --json: JSON lines, no table
//
// With MESSAGING_BENCH_SERVER="NAMESPACE ADDRESS" in the environment the server is in another network
// namespace, where it has this IPv4 address, and `unix` is left out.
//
// Measures the time of a round trip, the message rate, the time from kill -9 to `down`, and the CPU
// use when idle. Each measurement uses two fresh processes, a client and a server. With --quick all
// are shorter and made fewer times.
//
// cores      split       client on core 0, server on core 1
//            same        both on core 0
// system     tcp         our transport between hosts: TCP, encrypted
//            unix        our transport on one host: Unix sockets
//            basp        BASP with CAF's default settings
//            basp-best   BASP, fastest settings: sharing scheduler, no deserialisation workers
//
// With `unix` the client, which is the server's parent, reaps the server and reports its death to
// the transport, as a node agent does.
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "runtime/base/log.hpp"
#include "tests/bench/network_namespace.hpp"
#include "transport/caf/codec.hpp"
#include "transport/caf/message_types.hpp"
#include "transport/caf/transport.hpp"

extern char** environ;

namespace {

using namespace simplescale;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double cpu_s() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  auto s = [](timeval t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return s(usage.ru_utime) + s(usage.ru_stime);
}

double percentile(std::vector<double> values, double q) {
  if (values.empty()) return -1;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(q * static_cast<double>(values.size())))];
}

void pin(const std::string& placement, bool server) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(server && placement == "split" ? 1 : 0, &set);
  sched_setaffinity(0, sizeof set, &set);
}

// ---- actors, the same for both systems -------------------------------------------------------

caf::behavior echo(caf::event_based_actor*) {
  auto seen = std::make_shared<uint64_t>(0);
  return {[=](Ping& ping) {
            uint64_t answer = ping.payload.empty() ? *seen : ping.id;
            return Pong{answer, std::move(ping.payload)};
          },
          [=](const Text&) { ++*seen; }};
}

caf::behavior pinger(caf::event_based_actor* self, caf::actor peer, size_t trips,
                     std::vector<double>* out, std::promise<void>* done) {
  auto sent = std::make_shared<Clock::time_point>(Clock::now());
  self->send(peer, Ping{0, std::string(64, 'x')});
  return {[=](Pong& pong) {
    out->push_back(us_since(*sent));
    if (out->size() == trips) {
      done->set_value();
      return self->quit();
    }
    *sent = Clock::now();
    self->send(peer, Ping{out->size(), std::move(pong.payload)});
  }};
}

/// Sends `batches` batches of `batch` messages; at most two batches are unanswered at a time.
caf::behavior blaster(caf::event_based_actor* self, caf::actor peer, size_t bytes, uint64_t batch,
                      uint64_t batches, std::promise<void>* done) {
  auto left = std::make_shared<uint64_t>(batches), open = std::make_shared<uint64_t>(0);
  Text message{std::string(bytes, 'x')};
  auto send_batch = [=] {
    for (uint64_t i = 0; i < batch; ++i) self->send(peer, message);
    self->send(peer, Ping{});
    --*left, ++*open;
  };
  send_batch();
  send_batch();
  return {[=](const Pong&) {
    --*open;
    if (*left) return send_batch();
    if (*open) return;
    done->set_value();
    self->quit();
  }};
}

/// Where the server is; no namespace: beside the client.
struct Place {
  std::string space, address = "127.0.0.1";
};
Place server_place() {
  Place place;
  const char* text = std::getenv("MESSAGING_BENCH_SERVER");
  if (text) std::istringstream(text) >> place.space >> place.address;
  return place;
}

// ---- systems ---------------------------------------------------------------------------------

/// An actor system over our transport or BASP. Publishes an actor, or connects to one.
class Side {
 public:
  explicit Side(const std::string& kind) : basp_(kind.rfind("basp", 0) == 0) {
    if (basp_) {
      config_.add_message_type<Ping>("simplescale::Ping");
      config_.add_message_type<Pong>("simplescale::Pong");
      config_.load<caf::io::middleman>();
      if (kind == "basp-best") {
        config_.set("scheduler.policy", caf::atom("sharing"));
        config_.set("middleman.workers", size_t{0});
      }
    } else {
      Transport::configure(config_);
    }
    system_ = std::make_unique<caf::actor_system>(config_);
    if (!basp_) {
      TransportOptions options{.run_id = "bench", .key = std::string(32, 'k')};
      if (kind == "tcp") {  // as if each process were on a host of its own
        options.network = true;
        options.host.emplace();
        const pid_t pid = getpid();
        std::memcpy(options.host->data(), &pid, sizeof pid);
      }
      auto started = Transport::start(*system_, options);
      if (!started.ok()) fail(started.status().message());
      transport_ = started.take();
    }
  }
  std::string publish(const caf::actor& actor) {
    if (basp_) {
      auto port = system_->middleman().publish(actor, 0, server_place().address.c_str());
      if (!port) fail("BASP cannot publish an actor");
      return std::to_string(*port);
    }
    transport_->publish("bench", actor);
    return transport_->address();
  }
  caf::actor connect(const std::string& address) {
    if (basp_) {
      auto actor = system_->middleman().remote_actor(server_place().address,
                                                     static_cast<uint16_t>(std::stoi(address)));
      if (!actor) fail("BASP cannot connect to the server");
      return *actor;
    }
    auto actor = transport_->lookup(address, "bench", 10'000);
    if (!actor.ok()) fail(actor.status().message());
    return actor.take();
  }
  void report_death(const caf::actor& actor) {
    if (transport_) transport_->peer_is_dead(actor.node(), "killed");
  }
  caf::actor_system& system() { return *system_; }

 private:
  [[noreturn]] static void fail(const std::string& why) {
    std::fprintf(stderr, "messaging_bench: %s\n", why.c_str());
    std::_Exit(1);
  }
  bool basp_;
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::unique_ptr<Transport> transport_;
};

// ---- processes -------------------------------------------------------------------------------

struct Child {
  pid_t pid = -1;
  int out = -1;
  std::string line() const {
    std::string text;
    for (char c; read(out, &c, 1) == 1 && c != '\n';) text += c;
    return text;
  }
};

Child start(std::vector<std::string> arguments) {
  int out[2];
  if (pipe(out) != 0) std::_Exit(1);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_addclose(&actions, out[0]);
  arguments.insert(arguments.begin(), "/proc/self/exe");
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  Child child;
  if (posix_spawn(&child.pid, argv[0], &actions, nullptr, argv.data(), environ) != 0) std::_Exit(1);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  child.out = out[0];
  return child;
}

int serve(const std::string& kind, const std::string& placement) {
  pin(placement, true);
  if (const std::string space = server_place().space; !space.empty())
    enter_network_namespace(space);
  Side side(kind);
  std::printf("%s\n", side.publish(side.system().spawn(echo)).c_str());
  std::fflush(stdout);
  for (;;) pause();
}

/// The client process: starts a server, measures `what` ("rates" or "down") and prints one JSON
/// line.
int measure(const std::string& kind, const std::string& placement, const std::string& what,
            bool quick) {
  pin(placement, false);
  Child server = start({"serve", kind, placement});
  json result;
  {
    Side side(kind);
    auto peer = side.connect(server.line());
    if (what == "down") {
      caf::scoped_actor self(side.system());
      self->monitor(peer);
      self->request(peer, caf::infinite, Ping{}).receive([](Pong&) {}, [](caf::error&) {});
      auto start = Clock::now();
      kill(server.pid, SIGKILL);
      std::thread parent([&] {
        if (kind != "unix") return;
        waitpid(server.pid, nullptr, 0);
        side.report_death(peer);
      });
      self->receive([&](caf::down_msg&) { result["down_us"] = us_since(start); });
      parent.join();
    } else {
      auto ping = [&](size_t trips) {
        std::vector<double> times;
        std::promise<void> done;
        side.system().spawn(pinger, peer, trips, &times, &done);
        done.get_future().wait();
        return times;
      };
      auto blast = [&](size_t bytes, uint64_t batch, uint64_t batches) {
        std::promise<void> done;
        auto start = Clock::now();
        side.system().spawn(blaster, peer, bytes, batch, batches, &done);
        done.get_future().wait();
        return static_cast<double>(batch * batches) / us_since(start) * 1e6;
      };
      ping(500);
      auto times = ping(quick ? 2000 : 10000);
      result["rtt_p50_us"] = percentile(times, 0.5);
      result["rtt_p99_us"] = percentile(times, 0.99);
      result["small_per_s"] = blast(64, 2000, quick ? 25 : 150);
      result["large_per_s"] = blast(65536, 100, quick ? 10 : 50);
      auto start = Clock::now();
      double before = cpu_s();
      std::this_thread::sleep_for(std::chrono::seconds(quick ? 1 : 2));
      result["idle_cpu_percent"] = (cpu_s() - before) / us_since(start) * 1e8;
    }
    kill(server.pid, SIGKILL);
    waitpid(server.pid, nullptr, 0);
    std::printf("%s\n", result.dump().c_str());
    std::fflush(stdout);
    std::_Exit(0);  // BASP stops slowly when its peer has died
  }
}

json run(const std::string& kind, const std::string& placement, const std::string& what,
         bool quick) {
  Child child = start({"measure", kind, placement, what, quick ? "quick" : "full"});
  std::string line = child.line();
  waitpid(child.pid, nullptr, 0);
  close(child.out);
  return json::parse(line, nullptr, false);
}

int table(bool quick, bool only_json) {
  std::map<std::string, json> all;
  if (!only_json) {
    std::printf("%-6s %-10s %9s %9s %9s %10s %10s %9s %9s %8s\n", "cores", "system", "rtt p50",
                "rtt p99", "x basp", "64 B", "64 KiB", "x basp", "down", "idle");
    std::printf("%-6s %-10s %9s %9s %9s %10s %10s %9s %9s %8s\n", "", "", "us", "us", "best",
                "msg/s", "MB/s", "64 B", "ms", "cpu %");
  }
  for (const std::string placement : {"split", "same"}) {
    for (const std::string kind : {"basp", "basp-best", "tcp", "unix"}) {
      if (kind == "unix" && !server_place().space.empty()) continue;
      // The best of three, because other programs may use the machine.
      json best;
      for (int i = 0; i < (quick ? 1 : 3); ++i) {
        json one = run(kind, placement, "rates", quick);
        if (one.is_discarded()) return 1;
        if (best.is_null()) best = one;
        for (const char* key : {"rtt_p50_us", "rtt_p99_us", "idle_cpu_percent"}) {
          best[key] = std::min(best[key].get<double>(), one[key].get<double>());
        }
        for (const char* key : {"small_per_s", "large_per_s"}) {
          best[key] = std::max(best[key].get<double>(), one[key].get<double>());
        }
      }
      std::vector<double> downs;
      for (int i = 0; i < (quick ? 3 : 10); ++i) {
        json one = run(kind, placement, "down", quick);
        if (one.is_discarded()) return 1;
        downs.push_back(one["down_us"]);
      }
      best["down_p50_ms"] = percentile(downs, 0.5) / 1e3;
      best["placement"] = placement;
      best["system"] = kind;
      all[placement + kind] = best;
      // Compare with the BASP settings that are faster for this figure.
      auto peer = [&](const char* key, auto better) {
        double a = all[placement + "basp"][key];
        return all.count(placement + "basp-best")
                   ? better(a, all[placement + "basp-best"][key].get<double>())
                   : a;
      };
      double rtt = peer("rtt_p50_us", [](double a, double b) { return std::min(a, b); });
      double rate = peer("small_per_s", [](double a, double b) { return std::max(a, b); });
      best["rtt_ratio"] = best["rtt_p50_us"].get<double>() / rtt;
      best["small_ratio"] = best["small_per_s"].get<double>() / rate;
      if (only_json) {
        std::printf("%s\n", best.dump().c_str());
      } else {
        std::printf(
            "%-6s %-10s %9.1f %9.1f %9.2f %10.0f %10.0f %9.2f %9.2f %8.2f\n", placement.c_str(),
            kind.c_str(), best["rtt_p50_us"].get<double>(), best["rtt_p99_us"].get<double>(),
            best["rtt_ratio"].get<double>(), best["small_per_s"].get<double>(),
            best["large_per_s"].get<double>() * 65536 / 1e6, best["small_ratio"].get<double>(),
            best["down_p50_ms"].get<double>(), best["idle_cpu_percent"].get<double>());
      }
      all[placement + kind] = best;
      std::fflush(stdout);
    }
  }
  if (!only_json) {
    for (auto& [key, line] : all) std::printf("%s\n", line.dump().c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  init_logging("bench");  // to stderr; stdout is for the results
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 3 && arguments[0] == "serve") return serve(arguments[1], arguments[2]);
  if (arguments.size() == 5 && arguments[0] == "measure") {
    return measure(arguments[1], arguments[2], arguments[3], arguments[4] == "quick");
  }
  auto given = [&](const char* flag) {
    return std::find(arguments.begin(), arguments.end(), flag) != arguments.end();
  };
  return table(given("--quick"), given("--json"));
}
