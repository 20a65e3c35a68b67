// Remote actors behave as local ones: two real processes, over tcp and over shared memory.
#include <doctest/doctest.h>
#include <signal.h>

#include <future>

#include "tests/transport/helper.hpp"
#include "transport/protocol/messages.hpp"

using namespace simplescale;
using simplescale::testing::Helper;
using simplescale::testing::Process;
using simplescale::testing::set_wire;

namespace {

constexpr auto kLong = std::chrono::seconds(60);  // a deadline that is not meant to be met

/// Runs the rest of a test case once for each wire.
void each_wire(const std::function<void()>& test) {
  for (const char* tls : {"tcp", "posix,sysv,self"}) {
    CAPTURE(tls);
    set_wire(tls);
    test();
  }
}

std::string ask(caf::scoped_actor& self, const caf::actor& server, const std::string& text) {
  std::string answer;
  self->request(server, kLong, Text{text})
      .receive([&](Text& x) { answer = x.text; },
               [&](caf::error& e) { answer = "error " + to_string(e); });
  return answer;
}

}  // namespace

TEST_CASE("transport: a request is answered, errors and empty answers too") {
  each_wire([] {
    Helper helper;
    Process here;
    auto server = here.server(helper);
    CHECK(server.node() != here.system->node());
    caf::scoped_actor self(*here.system);
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
    self->request(server, kLong, FenceGeneration{1, "x"})
        .receive([&] { empty = true; }, [](caf::error& e) { FAIL(to_string(e)); });
    CHECK(empty);
  });
}
