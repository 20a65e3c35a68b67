#include "tests/transport/caf/helper.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "tests/must.hpp"
#include "transport/caf/message_types.hpp"

extern char** environ;

namespace simplescale::testing {

Wire::Wire(const std::string& kind) {
  if (const char* before = std::getenv("SS_TEST_WIRE")) before_ = before;
  setenv("SS_TEST_WIRE", kind.c_str(), 1);
}

Wire::~Wire() {
  before_ ? setenv("SS_TEST_WIRE", before_->c_str(), 1) : unsetenv("SS_TEST_WIRE");
}

std::optional<stream::Id> other_host() {
  const char* wire = std::getenv("SS_TEST_WIRE");
  if (!wire || std::string(wire) != "tcp") return std::nullopt;
  std::random_device random;
  stream::Id id;
  for (auto& byte : id) byte = static_cast<uint8_t>(random());
  return id;
}

Helper::Helper(const std::string& run_id) {
  int in[2], out[2];
  REQUIRE(pipe2(in, O_CLOEXEC) == 0);
  REQUIRE(pipe2(out, O_CLOEXEC) == 0);
  setenv("SS_TEST_RUN", run_id.c_str(), 1);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 3);
  char self[] = "/proc/self/exe", which[] = "--test-case=transport helper", skip[] = "--no-skip";
  char quiet[] = "--minimal";
  char* argv[] = {self, which, skip, quiet, nullptr};
  REQUIRE(posix_spawn(&pid_, self, &actions, nullptr, argv, environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]), close(out[1]);
  to_ = in[1];
  char c;
  while (read(out[0], &c, 1) == 1 && c != '\n') address_ += c;
  close(out[0]);
  REQUIRE(!address_.empty());
}

Helper::~Helper() {
  kill();
  if (to_ >= 0) close(to_);
}

void Helper::kill(bool zombie) {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  if (zombie) return;
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Helper::signal(int number) {
  ::kill(pid_, number);
}

int Helper::end() {
  close(to_), to_ = -1;
  int status = -1;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

Process::Process(TransportOptions options) {
  if (options.run_id.empty()) options.run_id = "test";
  options.host = other_host();
  options.network = options.host.has_value();
  config.set("scheduler.max-threads", size_t{2});
  Transport::configure(config);
  system = std::make_unique<caf::actor_system>(config);
  transport = must(Transport::start(*system, options)).take();
}

Process::~Process() {
  transport.reset();
}

caf::actor Process::server(const Helper& helper) {
  return must(transport->lookup(helper.address(), "server", 30'000)).take();
}

struct ServerState {
  uint64_t expected = 0;
  bool in_order = true;
  std::vector<caf::response_promise> kept;
};

/// Answers a Ping with a Pong, a Pong with an empty answer, and a Text command:
///   keep         does not answer until a monitored actor ends, then answers "down REASON"
///   monitor      monitors the sender, then as keep
///   quit         answers "quitting" and ends with sec::runtime_error
///   fail         answers with sec::runtime_error
///   link         links to the sender, answers "link"
///   order        answers "ordered N" or "disordered N": how the N Pings so far arrived
///   burst N      sends N Pongs to the sender, then answers with the command
///   big N        answers with N letters
///   unsupported  answers with a bare string, which the wire rule forbids
///   other texts  answers with the same text
caf::behavior server(caf::event_based_actor* base) {
  auto* self = static_cast<caf::stateful_actor<ServerState>*>(base);
  self->set_down_handler([=](caf::down_msg& down) {
    for (auto& promise : self->state.kept) promise.deliver(Text{"down " + to_string(down.reason)});
    self->state.kept.clear();
  });
  return {
      [=](Ping& ping) {
        if (ping.id != self->state.expected++) self->state.in_order = false;
        return Pong{ping.id, std::move(ping.payload)};
      },
      [=](Text& command) -> caf::result<Text> {
        auto sender = caf::actor_cast<caf::actor>(self->current_sender());
        const std::string& text = command.text;
        if (text == "keep") {
          auto promise = self->make_response_promise();
          self->state.kept.push_back(promise);
          return promise;
        }
        if (text == "quit") {
          self->quit(make_error(caf::sec::runtime_error, std::string("was asked to")));
          return Text{"quitting"};
        }
        if (text == "fail") return make_error(caf::sec::runtime_error, std::string("as asked"));
        if (text == "link") self->link_to(sender);
        if (text == "monitor") {
          self->monitor(sender);
          auto promise = self->make_response_promise();
          self->state.kept.push_back(promise);
          return promise;
        }
        if (text == "order") {
          return Text{(self->state.in_order ? "ordered " : "disordered ") +
                      std::to_string(self->state.expected)};
        }
        if (text.rfind("burst ", 0) == 0) {
          auto n = std::stoull(text.substr(6));
          for (uint64_t i = 0; i < n; ++i) self->send(sender, Pong{i, "burst"});
        }
        if (text.rfind("big ", 0) == 0) return Text{std::string(std::stoull(text.substr(4)), 'x')};
        if (text == "unsupported") {
          auto promise = self->make_response_promise();
          promise.deliver(std::string("a bare string"));
          return promise;
        }
        return std::move(command);
      },
      [](const Pong&) {},
  };
}

}  // namespace simplescale::testing

TEST_CASE("transport helper" * doctest::skip()) {
  using namespace simplescale;
  TransportOptions options;
  const char* run = std::getenv("SS_TEST_RUN");
  if (!run) return;  // the test program runs with --no-skip, not as a helper
  options.run_id = run;
  testing::Process process(options);
  auto server = process.system->spawn(
      [](caf::stateful_actor<testing::ServerState>* self) { return testing::server(self); });
  process.transport->publish("server", server);
  std::string line = process.transport->address() + "\n";
  CHECK(write(3, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  close(3);
  char c;
  while (read(0, &c, 1) > 0) {
  }
  process.transport->stop();
  caf::anon_send_exit(server, caf::exit_reason::user_shutdown);
}
