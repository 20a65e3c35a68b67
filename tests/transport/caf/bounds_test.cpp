// ACTOR-4 and CONNECTION-3: what a peer can make this process keep in memory has bounds. A caller
// without a proof can send nothing but its proof; a peer's queues end at queue_bytes_max.
#include <doctest/doctest.h>

#include <future>

#include "tests/transport/caf/rogue.hpp"

using namespace simplescale;
using simplescale::testing::Rogue;
using simplescale::testing::Victim;
using simplescale::testing::Wire;

namespace {

TransportOptions small_queue() {
  TransportOptions options = Victim::quiet();
  options.message_bytes_max = 4 << 20;
  options.queue_bytes_max = 256 << 10;
  return options;
}

/// Why the victim's next peer is lost.
struct Loss {
  explicit Loss(Victim& victim) {
    victim.transport->on_peer_lost(
        [this](const caf::node_id&, const std::string& why) { reason.set_value(why); });
  }
  std::string wait() {
    std::future<std::string> future = reason.get_future();
    REQUIRE(future.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
    return future.get();
  }
  std::promise<std::string> reason;
};

remote::Words text_of(Rogue& rogue, size_t bytes) {
  return rogue.message(
      [&](wire::Body::Builder body) { body.initText().setText(std::string(bytes, 'x')); });
}

}  // namespace

TEST_CASE("bounds: CONNECTION-3, of a caller without a proof only a proof is kept or handled") {
  const Wire wire("tcp");
  Victim victim;
  Rogue caller(victim.transport->address());
  caller.send({remote::FrameHeader::kMagic, 0, 0, 0}, caller.hello(wire::PROTOCOL_VERSION, "test"));
  REQUIRE(caller.answer() == "welcome");
  const remote::FrameHeader first = caller.next(),
                            later{remote::FrameHeader::kMagic, 0, caller.token, 1};
  const remote::Words large = text_of(caller, 2000), rendezvous = text_of(caller, 900'000);
  const remote::Words early = text_of(caller, 10);
  caller.send(first, large);       // malformed 1
  caller.send(first, rendezvous);  // malformed 2
  caller.send(later, early);       // malformed 3: not kept until the proof has come
  // None of them was counted as message 0, so the proof is.
  caller.send(first, caller.proof());
  caller.wait_until_handled();
  CHECK(victim.transport->counters().malformed == 3);
  CHECK(victim.texts == 0);
}

TEST_CASE("bounds: ACTOR-4, a peer that sends too much out of order is lost") {
  const Wire wire("tcp");
  Victim victim(small_queue());
  Rogue rogue(victim.transport->address());
  rogue.join();
  Loss loss(victim);
  (void)rogue.next();  // this message never comes
  const remote::Words text = text_of(rogue, 4000);
  for (int i = 0; i < 80; ++i) rogue.send(rogue.next(), text);
  CHECK(loss.wait() == "too many messages out of order");
  CHECK(victim.texts == 0);
}

TEST_CASE("bounds: ACTOR-4, a peer whose large messages exceed the queue is lost") {
  const Wire wire("tcp");
  Victim victim(small_queue());
  Rogue rogue(victim.transport->address());
  rogue.join();
  Loss loss(victim);
  const remote::Words text = text_of(rogue, 2 << 20);
  rogue.start_sending(rogue.next(), text);
  CHECK(loss.wait() == "the receive queue is full");
}

TEST_CASE("bounds: ACTOR-4, a peer that does not receive what is sent to it is lost") {
  const Wire wire("tcp");
  Victim victim(small_queue());
  const auto talker = victim.system->spawn([](caf::event_based_actor* self) -> caf::behavior {
    return {[self](const Text&) {
      for (uint64_t i = 0; i < 8; ++i)
        self->send(caf::actor_cast<caf::actor>(self->current_sender()),
                   Pong{i, std::string(100'000, 'x')});
    }};
  });
  victim.transport->publish("server", talker);
  Rogue rogue(victim.transport->address());
  rogue.join();
  Loss loss(victim);
  rogue.send(rogue.next(), text_of(rogue, 10));  // from now on it does not progress UCX
  CHECK(loss.wait() == "it does not receive, the send queue is full");
  caf::anon_send_exit(talker, caf::exit_reason::user_shutdown);
}
