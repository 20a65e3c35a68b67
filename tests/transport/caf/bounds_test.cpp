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
  caller.send(first, text_of(caller, 2000));  // malformed 1
  caller.send(later, text_of(caller, 10));    // not kept until the proof has come: malformed 2
  // None of them was counted as message 0, so the proof is.
  caller.send(first, caller.proof());
  caller.wait_until_handled();
  CHECK(victim.transport->counters().malformed == 2);
  CHECK(victim.texts_handled() == 0);
}

TEST_CASE("bounds: STREAM-2, a caller without a proof that announces a large message is closed") {
  const Wire wire("tcp");
  Victim victim;
  Rogue caller(victim.transport->address());
  const remote::Words large = text_of(caller, 900'000);
  caller.start_sending_raw(nullptr, 0, large.begin(), large.asBytes().size());
  caller.progress_until([&] { return caller.ended > 0; });
  CHECK(victim.transport->counters().malformed == 1);
}

TEST_CASE("bounds: ACTOR-4, of messages after a lost one nothing is kept or handled") {
  const Wire wire("tcp");
  Victim victim;
  Rogue rogue(victim.transport->address());
  rogue.join();
  const remote::FrameHeader lost = rogue.next();
  for (int i = 0; i < 80; ++i) rogue.send(rogue.next(), text_of(rogue, 4000));
  // The lost one comes after all: the others are not there any more.
  rogue.send(lost, text_of(rogue, 10));
  rogue.sequence = lost.sequence + 1;
  rogue.wait_until_handled();
  CHECK(victim.texts_handled() == 1);
}

TEST_CASE("bounds: ACTOR-4, a peer that does not receive what is sent to it is lost") {
  const Wire wire("unix");
  Victim victim(small_queue());
  const auto talker = victim.system->spawn([](caf::event_based_actor* self) -> caf::behavior {
    return {[self](const Text&) {
      for (uint64_t i = 0; i < 64; ++i)
        self->send(caf::actor_cast<caf::actor>(self->current_sender()),
                   Pong{i, std::string(100'000, 'x')});
    }};
  });
  victim.transport->publish("server", talker);
  Rogue rogue(victim.transport->address());
  rogue.join();
  Loss loss(victim);
  rogue.send(rogue.next(), text_of(rogue, 10));  // from now on it does not read
  CHECK(loss.wait() == "it does not receive, the send queue is full");
  caf::anon_send_exit(talker, caf::exit_reason::user_shutdown);
}
