// Remote actors behave like local ones (ACTOR-1..3, CONNECTION-1, CONNECTION-2). Each test runs two
// processes, once over TCP and once over Unix sockets.
#include <doctest/doctest.h>
#include <signal.h>

#include <future>

#include "tests/must.hpp"
#include "tests/transport/caf/helper.hpp"
#include "transport/caf/message_types.hpp"

using namespace simplescale;
using simplescale::testing::Helper;
using simplescale::testing::Process;
using simplescale::testing::Wire;

namespace {

constexpr auto kLong = std::chrono::seconds(60);  // a deadline that does not pass

/// This process and another one, whose server it has looked up.
struct Peers {
  explicit Peers(const TransportOptions& options) : here(options) {}
  Helper helper;
  Process here;
  caf::actor server = here.server(helper);
  caf::scoped_actor self{*here.system};
};

/// Runs the test once over TCP and once over Unix sockets.
void each_wire(const std::function<void()>& test) {
  for (const char* kind : {"tcp", "unix"}) {
    CAPTURE(kind);
    const Wire wire(kind);
    test();
  }
}
void each_wire(const TransportOptions& options, const std::function<void(Peers&)>& test) {
  each_wire([&] {
    Peers peers(options);
    test(peers);
  });
}

std::string ask(caf::scoped_actor& self, const caf::actor& server, const std::string& text) {
  std::string answer;
  self->request(server, kLong, Text{text})
      .receive([&](Text& x) { answer = x.text; },
               [&](caf::error& e) { answer = "error " + to_string(e); });
  return answer;
}

/// A peer that is silent for 200 ms is lost.
TransportOptions impatient() {
  TransportOptions options;
  options.heartbeat_ms = 20;
  options.silence_ms = 200;
  return options;
}

/// Waits until the actor that `self` monitors is down because its process is lost.
void wait_until_lost(caf::scoped_actor& self) {
  self->receive(
      [](caf::down_msg& x) {
        CHECK(x.reason == caf::exit_reason::remote_link_unreachable);
        CHECK(why_lost(x.reason).has_value());
      },
      caf::after(std::chrono::seconds(30)) >> [] { FAIL("no down message"); });
}

}  // namespace

TEST_CASE("transport: a request gets its answer, also an error or an empty one") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    CHECK(server.node() != here.system->node());
    self->request(server, kLong, Ping{7, "hello"})
        .receive(
            [](Pong& pong) {
              CHECK(pong == Pong{7, "hello"});
            },
            [](caf::error& e) { FAIL(to_string(e)); });
    CHECK(ask(self, server, "echo") == "echo");
    bool failed = false;
    self->request(server, kLong, Text{"fail"})
        .receive([](Text&) { FAIL("answered"); },
                 [&](caf::error& e) {
                   failed = true;
                   CHECK(e == caf::sec::runtime_error);
                   CHECK(e.context().get_as<std::string>(0) == "as asked");
                 });
    CHECK(failed);
    bool empty = false;
    self->request(server, kLong, Pong{})
        .receive([&] { empty = true; }, [](caf::error& e) { FAIL(to_string(e)); });
    CHECK(empty);
  });
}

TEST_CASE("transport: a request without an answer fails at its deadline") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    bool late = false;
    self->request(server, std::chrono::milliseconds(50), Text{"keep"})
        .receive([](Text&) { FAIL("answered"); },
                 [&](caf::error& e) { late = e == caf::sec::request_timeout; });
    CHECK(late);
    CHECK(ask(self, server, "still there") == "still there");
  });
}

TEST_CASE("transport: ACTOR-1, large and small messages arrive in order in both directions") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    // ACTOR-1: in the order sent, each once.
    for (uint64_t i = 0; i < 1000; ++i) {
      // Every 50th message is large (1 MiB); the small ones after it must not overtake it.
      caf::anon_send(server, Ping{i, std::string(i % 50 == 7 ? 1 << 20 : 10, 'x')});
    }
    CHECK(ask(self, server, "order") == "ordered 1000");
    self->send(server, Text{"burst 1000"});
    uint64_t next = 0;
    bool ordered = true;
    self->receive_for(next,
                      uint64_t{1000})([&](Pong& pong) { ordered = ordered && pong.id == next; });
    CHECK(ordered);
    self->receive([](Text& text) { CHECK(text.text == "burst 1000"); });
  });
}

TEST_CASE("transport: a large message to several receivers reaches each, with the right sender") {
  each_wire([] {
    Helper first, second;
    Process here;
    const std::vector<caf::actor> servers{here.server(first), here.server(second)};
    caf::scoped_actor self(*here.system), another(*here.system);
    uint64_t id = 0;
    for (const size_t bytes : {1 << 20, 100, 40'000}) {
      const Ping ping{id++, std::string(bytes, static_cast<char>('a' + id))};
      const caf::message content = caf::make_message(ping);
      for (caf::scoped_actor* sender : {&self, &another}) {
        for (const caf::actor& server : servers) (*sender)->send(server, content);
        for (size_t i = 0; i < servers.size(); ++i)
          (*sender)->receive(
              [&](Pong& pong) {
                CHECK(pong == Pong{ping.id, ping.payload});
              },
              caf::after(kLong) >> [] { FAIL("no answer"); });
      }
    }
  });
}

TEST_CASE("transport: many requesters get their own answers") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    constexpr int kActors = 20, kRequests = 200;
    std::promise<void> done;
    std::atomic<int> left{kActors}, wrong{0};
    for (int a = 0; a < kActors; ++a) {
      here.system->spawn([&, a](caf::event_based_actor* self) {
        auto count = std::make_shared<int>(0);
        for (int r = 0; r < kRequests; ++r) {
          std::string text = std::to_string(a * kRequests + r);
          self->request(server, kLong, Text{text})
              .then(
                  [&, text, count](Text& answer) {
                    if (answer.text != text) ++wrong;
                    if (++*count == kRequests && --left == 0) done.set_value();
                  },
                  [&](caf::error&) { ++wrong; });
        }
      });
    }
    done.get_future().wait();
    CHECK(wrong == 0);
  });
}

TEST_CASE(
    "transport: ACTOR-2 and ACTOR-3, an actor that quits is down with its reason, and requests to "
    "it fail at once") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    // ACTOR-2 and CONNECTION-1: each process that knows the actor learns why it ended.
    self->monitor(server);
    auto kept = self->request(server, caf::infinite, Text{"keep"});
    self->send(server, Text{"quit"});
    bool failed = false;
    kept.receive([](Text&) { FAIL("answered"); },
                 [&](caf::error& e) { failed = e == caf::sec::request_receiver_down; });
    CHECK(failed);
    bool down = false;
    self->receive_while([&] { return !down; })(
        [&](caf::down_msg& x) {
          down = true;
          CHECK(x.source == server.address());
          CHECK(x.reason == caf::sec::runtime_error);
          CHECK(x.reason.context().get_as<std::string>(0) == "was asked to");
        },
        [](Text& answer) { CHECK(answer.text == "quitting"); });
    CHECK(ask(self, server, "anyone?").find("request_receiver_down") != std::string::npos);
    // A monitor that is attached only now gets the same reason.
    self->monitor(server);
    self->receive([](caf::down_msg& x) { CHECK(x.reason == caf::sec::runtime_error); });
    // The actor is still published; a lookup returns a handle that is down.
    auto again = must(here.transport->lookup(helper.address(), "server", 30'000));
    self->monitor(*again);
    self->receive([](caf::down_msg& x) { CHECK(x.reason == caf::sec::runtime_error); });
  });
}

TEST_CASE("transport: after kill -9 of a peer, monitors get down and requests fail at once") {
  each_wire([] {
    for (bool known : {false, true}) {
      TransportOptions options;
      options.heartbeat_ms = 20;
      options.silence_ms = known ? 0 : 400;  // 0: only peer_is_dead() reports the loss
      Helper helper;
      Process here(options);
      auto server = here.server(helper);
      // ACTOR-2: monitors get `down`. ACTOR-3: open and later requests fail at once.
      caf::scoped_actor self(*here.system);
      self->monitor(server);
      std::promise<std::string> lost;
      here.transport->on_peer_lost([&](const caf::node_id& node, const std::string& reason) {
        if (node == server.node()) lost.set_value(reason);
      });
      auto kept = self->request(server, caf::infinite, Text{"keep"});
      CHECK(ask(self, server, "x") == "x");
      helper.kill(!known);  // a zombie keeps its shared memory
      if (known) here.transport->peer_is_dead(server.node(), "killed by signal 9");
      bool failed = false;
      kept.receive([](Text&) { FAIL("answered"); },
                   [&](caf::error& e) { failed = e == caf::sec::request_receiver_down; });
      CHECK(failed);
      wait_until_lost(self);
      CHECK(!lost.get_future().get().empty());
      CHECK(ask(self, server, "anyone?").find("request_receiver_down") != std::string::npos);
    }
  });
}

TEST_CASE("transport: CONNECTION-2, a stopped peer is lost, and can be connected again later") {
  each_wire(impatient(), [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    // CONNECTION-2: the lost peer is forgotten; when it comes back it gets a new connection.
    self->monitor(server);
    CHECK(ask(self, server, "x") == "x");
    helper.signal(SIGSTOP);
    wait_until_lost(self);
    helper.signal(SIGCONT);
    // The new connection needs a new handle.
    auto again = here.server(helper);
    CHECK(ask(self, again, "back") == "back");
    CHECK(ask(self, server, "old").find("request_receiver_down") != std::string::npos);
  });
}

TEST_CASE("transport: an injected partition loses the peer, an injected delay does not") {
  each_wire(impatient(), [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    here.transport->inject({.delay_ms = 50, .for_ms = 100});
    for (const char* word : {"a", "b", "c"}) CHECK(ask(self, server, word) == word);
    self->monitor(server);
    here.transport->inject({.lose = 1, .for_ms = 600'000, .spared = {1}});
    wait_until_lost(self);
    here.transport->inject({});
    CHECK(ask(self, here.server(helper), "back") == "back");
  });
}

TEST_CASE("transport: ACTOR-1, a connection that lost a message ends") {
  each_wire(impatient(), [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    self->monitor(server);
    here.transport->inject({.lose = 0.3, .for_ms = 600'000, .spared = {1}});
    wait_until_lost(self);
    here.transport->inject({});
    CHECK(ask(self, here.server(helper), "back") == "back");
  });
}

namespace {

/// A local actor that is linked to the server and handles "quit" and "unlink".
caf::actor make_linked(Process& here, const caf::actor& server, std::promise<caf::error>* ended) {
  auto local = here.system->spawn([=](caf::event_based_actor* self) -> caf::behavior {
    self->link_to(server);
    return {[=](const Text& text) {
      if (text.text == "quit") self->quit(make_error(caf::sec::runtime_error));
      if (text.text == "unlink") self->unlink_from(server);
    }};
  });
  local->attach_functor([ended](const caf::error& reason) { ended->set_value(reason); });
  return local;
}

}  // namespace

TEST_CASE("transport: a local actor ends with the remote one that it linked to") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    std::promise<caf::error> ended;
    make_linked(here, server, &ended);
    caf::anon_send(server, Text{"quit"});
    CHECK(ended.get_future().get() == caf::sec::runtime_error);
  });
}

TEST_CASE("transport: a remote actor ends with the local one that linked to it") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    self->monitor(server);
    std::promise<caf::error> ended;
    auto local = make_linked(here, server, &ended);
    self->send(local, Text{"quit"});
    self->receive([](caf::down_msg& x) { CHECK(x.reason == caf::sec::runtime_error); });
  });
}

TEST_CASE("transport: a local actor ends with the remote one that linked to it") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    std::promise<caf::error> ended;
    auto local = here.system->spawn([=](caf::event_based_actor* self) -> caf::behavior {
      self->send(server, Text{"link"});
      return {[=](const Text&) { self->send(server, Text{"quit"}); }};
    });
    local->attach_functor([&](const caf::error& reason) { ended.set_value(reason); });
    CHECK(ended.get_future().get() == caf::sec::runtime_error);
  });
}

TEST_CASE("transport: send_exit reaches a remote actor") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    self->monitor(server);
    self->send_exit(server, caf::exit_reason::user_shutdown);
    self->receive([](caf::down_msg& x) { CHECK(x.reason == caf::exit_reason::user_shutdown); });
  });
}

TEST_CASE("transport: an actor that traps exits gets one exit message, also if linked both ways") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    std::promise<int> seen;
    here.system->spawn([&](caf::event_based_actor* self) -> caf::behavior {
      auto exits = std::make_shared<int>(0);
      self->set_exit_handler([=](caf::exit_msg& exit) {
        CHECK(exit.source == server.address());
        ++*exits;
      });
      // The proxy sends the exits first, then this down message.
      self->set_down_handler([=](caf::down_msg&) { self->send(self, Text{"count"}); });
      self->link_to(server);
      self->monitor(server);
      self->send(server, Text{"link"});
      return {[=, &seen](const Text& text) {
        if (text.text == "link") self->send(server, Text{"quit"});
        if (text.text != "count") return;
        seen.set_value(*exits);
        self->quit();
      }};
    });
    CHECK(seen.get_future().get() == 1);
  });
}

TEST_CASE("transport: ACTOR-2, a linked actor ends when the peer's process is lost") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    std::promise<caf::error> ended;
    make_linked(here, server, &ended);
    helper.kill();
    here.transport->peer_is_dead(server.node(), "killed");
    CHECK(ended.get_future().get() == caf::exit_reason::remote_link_unreachable);
  });
}

TEST_CASE("transport: unlinked actors do not end together") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    std::promise<caf::error> ended;
    auto local = make_linked(here, server, &ended);
    self->send(local, Text{"unlink"});
    self->send(local, Text{"quit"});
    CHECK(ended.get_future().get() == caf::sec::runtime_error);
    CHECK(ask(self, server, "alive") == "alive");
  });
}

TEST_CASE("transport: a remote actor monitors a local one") {
  each_wire({}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    auto local = here.system->spawn([=](caf::event_based_actor* self) -> caf::behavior {
      self->send(server, Text{"monitor"});
      return {[=](const Text&) { self->quit(make_error(caf::sec::runtime_error)); }};
    });
    auto answer = self->request(server, kLong, Text{"keep"});  // the down handler answers it
    self->send(server, Text{"burst 0"});
    self->receive([](Text&) {});
    self->send(local, Text{"quit"});
    answer.receive([](Text& text) { CHECK(text.text.find("runtime_error") != std::string::npos); },
                   [](caf::error& e) { FAIL(to_string(e)); });
  });
}

TEST_CASE("transport: a peer that stops its transport sends a goodbye") {
  each_wire({.heartbeat_ms = 0}, [](Peers& peers) {  // only the goodbye reports the end
    auto& [helper, here, server, self] = peers;
    self->monitor(server);
    CHECK(ask(self, server, "x") == "x");
    CHECK(helper.end() == 0);
    wait_until_lost(self);
  });
}

TEST_CASE("transport: stop() fails open requests and lookups, and does not wait for dead peers") {
  each_wire([] {
    Helper helper, dead;
    Process here;
    auto server = here.server(helper), gone = here.server(dead);
    caf::scoped_actor self(*here.system);
    self->monitor(server);
    auto kept = self->request(server, caf::infinite, Text{"keep"});
    CHECK(ask(self, server, "x") == "x");
    dead.kill(true);
    here.transport->stop();
    bool failed = false;
    kept.receive([](Text&) { FAIL("answered"); },
                 [&](caf::error& e) { failed = e == caf::sec::request_receiver_down; });
    CHECK(failed);
    wait_until_lost(self);
    CHECK(ask(self, server, "anyone?").find("request_receiver_down") != std::string::npos);
    CHECK(here.transport->lookup(helper.address(), "server", 1000).status().code() ==
          Code::aborted);
  });
}

TEST_CASE("transport: a lookup that fails returns the reason") {
  each_wire([] {
    Helper helper;
    TransportOptions options;
    options.run_id = "another run";
    Process stranger(options);
    auto refused = stranger.transport->lookup(helper.address(), "server", 30'000);
    CHECK(refused.status().code() == Code::unavailable);
    CHECK(refused.status().message().find("refused: run \"test\" here") == 0);

    Process here;
    CHECK(here.transport->lookup(helper.address(), "nobody", 30'000).status().code() ==
          Code::not_found);
    CHECK(here.transport->lookup("rubbish", "server", 1000).status().code() == Code::bad_data);
    auto damaged = helper.address();
    damaged[100] = damaged[100] == 'a' ? 'b' : 'a';
    CHECK(here.transport->lookup(damaged, "server", 1000).status().code() == Code::bad_data);

    Process fresh;  // not connected to the helper yet
    helper.kill();
    auto nobody = fresh.transport->lookup(helper.address(), "server", 300).status().code();
    CHECK((nobody == Code::unavailable || nobody == Code::deadline));
  });
}

TEST_CASE("transport: a lookup at this process's own address returns the local actor") {
  const Wire wire("tcp");
  Process here;
  auto actor =
      here.system->spawn([](caf::event_based_actor*) { return caf::behavior{[](const Text&) {}}; });
  here.transport->publish("me", actor);
  auto found = must(here.transport->lookup(here.transport->address(), "me", 1000));
  CHECK(*found == actor);
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
}

TEST_CASE("transport: a message that the wire rule forbids is refused, and its request fails") {
  each_wire({.message_bytes_max = 1 << 20}, [](Peers& peers) {
    auto& [helper, here, server, self] = peers;
    auto fails = [&](caf::sec code, auto... content) {
      bool failed = false;
      self->request(server, kLong, content...)
          .receive([](Text&) { FAIL("answered"); }, [&](caf::error& e) { failed = e == code; });
      CHECK(failed);
    };
    fails(caf::sec::unknown_type, std::string("a bare string"));
    fails(caf::sec::unknown_type, Text{"two"}, Text{"structs"});
    fails(caf::sec::invalid_argument, Text{std::string(2 << 20, 'x')});
    CHECK(ask(self, server, "unsupported").find("unknown_type") != std::string::npos);
    CHECK(ask(self, server, "big 100000") == std::string(100000, 'x'));
    CHECK(ask(self, server, "x") == "x");
    auto counters = here.transport->counters();
    CHECK(counters.unsupported == 2);
    CHECK(counters.oversized == 1);
  });
}

TEST_CASE("transport: ACTOR-4, an oversized message is dropped and the connection stays") {
  each_wire(
      {.message_bytes_max = 1 << 20},
      [](Peers& peers) {  // has the default limit, so it sends messages that are too large here
        auto& [helper, here, server, self] = peers;
        bool late = false;
        self->request(server, std::chrono::milliseconds(200), Text{"big 3000000"})
            .receive([](Text&) { FAIL("answered"); },
                     [&](caf::error& e) { late = e == caf::sec::request_timeout; });
        CHECK(late);
        CHECK(ask(self, server, "x") == "x");
        CHECK(here.transport->counters().oversized == 1);
      });
}
