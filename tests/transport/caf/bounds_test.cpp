// ACTOR-4 and CONNECTION-3: what a peer can make this process keep in memory has bounds. A caller
// without a proof can send nothing but its proof; a peer's queues end at queue_bytes_max.
#include <doctest/doctest.h>

#include "tests/transport/caf/rogue.hpp"

using namespace simplescale;
using simplescale::testing::Loss;
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

remote::Words text_of(Rogue& rogue, size_t bytes) {
  return rogue.message(
      [&](wire::Body::Builder body) { body.initText().setText(std::string(bytes, 'x')); });
}

}  // namespace

TEST_CASE("bounds: CONNECTION-3, of a caller without a proof only a proof is kept or handled") {
  const Wire wire("tcp");
  Victim victim;
  Rogue caller(victim.transport->address());
  caller.greet();
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

TEST_CASE("bounds: CONNECTION-3, a caller without a proof gets no answer to a lookup") {
  const Wire wire("tcp");
  Victim victim;
  Rogue caller(victim.transport->address());
  caller.greet();
  caller.say([](auto out) { out.initLookup().setName("nobody"); });
  caller.say(caller.proof());
  caller.say([](auto out) { out.initLookup().setName("server"); });
  REQUIRE(caller.answer() == "found");
  CHECK(caller.actor == victim.server.id());  // not the answer about "nobody"
  CHECK(victim.transport->counters().malformed == 1);
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
  for (int i = 0; i < 80; ++i) rogue.say(text_of(rogue, 4000));
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
  rogue.say(text_of(rogue, 10));  // from now on it does not read
  CHECK(loss.wait() == "it does not receive, the send queue is full");
  caf::anon_send_exit(talker, caf::exit_reason::user_shutdown);
}

TEST_CASE("bounds: ACTOR-4, the bound on a peer's queue is no bound on what it gets in all") {
  const Wire wire("unix");
  Victim victim(small_queue());
  const auto talker = victim.system->spawn([](caf::event_based_actor* self) -> caf::behavior {
    return {[self](const Text&) {
      self->send(caf::actor_cast<caf::actor>(self->current_sender()),
                 Pong{1, std::string(100'000, 'x')});
    }};
  });
  victim.transport->publish("server", talker);
  Rogue rogue(victim.transport->address());
  rogue.join();
  for (int i = 0; i < 10; ++i) {
    rogue.say(text_of(rogue, 10));
    CHECK(rogue.answer() == "message");
  }
  rogue.wait_until_handled();
  caf::anon_send_exit(talker, caf::exit_reason::user_shutdown);
}

TEST_CASE("bounds: ACTOR-4, a peer that names too many actors, or a long name, is not heard") {
  const Wire wire("unix");
  TransportOptions options = Victim::quiet();
  options.actors_max = 10;
  Victim victim(options);
  Rogue rogue(victim.transport->address());
  rogue.join();
  for (rogue.sender = 1; rogue.sender <= 15; ++rogue.sender) rogue.say(text_of(rogue, 10));
  rogue.wait_until_handled();
  CHECK(victim.transport->counters().dropped == 5);
  rogue.say([](auto out) { out.initLookup().setName(std::string(257, 'x')); });
  rogue.wait_until_handled();
  CHECK(rogue.actor == victim.server.id());
  CHECK(victim.transport->counters().malformed == 1);
}
