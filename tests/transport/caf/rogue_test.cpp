// ACTOR-4 and CONNECTION-3 against a peer that breaks the protocol. The test sends frames itself.
// Whatever it sends is counted and dropped, and the process under attack goes on.
#include <doctest/doctest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <random>
#include <sstream>

#include "runtime/base/log.hpp"
#include "runtime/observe/trace.hpp"
#include "tests/must.hpp"
#include "tests/transport/caf/rogue.hpp"

using namespace simplescale;
using simplescale::testing::Rogue;
using simplescale::testing::Victim;
using simplescale::testing::Wire;

namespace {

void fill_text(wire::Body::Builder body) {
  body.initText().setText("hello");
}

}  // namespace

TEST_CASE("rogue: another protocol version or run is refused with the reason") {
  const Wire wire("tcp");
  Victim victim;
  {
    Rogue rogue(victim.transport->address());
    rogue.send({remote::FrameHeader::kMagic, 0, 0, 0}, rogue.hello(99, "test"));
    CHECK(rogue.answer() == "refused: protocol version " + std::to_string(wire::PROTOCOL_VERSION) +
                                " here, version 99 there");
  }
  Rogue rogue(victim.transport->address());
  rogue.send({remote::FrameHeader::kMagic, 0, 0, 0}, rogue.hello(wire::PROTOCOL_VERSION, "other"));
  CHECK(rogue.answer() == "refused: run \"test\" here, run \"other\" there");
}

TEST_CASE("rogue: CONNECTION-3, a process without the key is no peer and replaces no peer") {
  const Wire wire("unix");
  TransportOptions options = Victim::quiet();
  options.key = std::string(32, 'k');
  Victim victim(options);
  const remote::FrameHeader first{remote::FrameHeader::kMagic, 0, 0, 0};
  Rogue friendly(victim.transport->address());
  friendly.key = options.key;
  friendly.greet();
  const remote::Proof welcome =
      remote::prove(options.key, "test", remote::Role::welcome, friendly.theirs, friendly.mine());
  CHECK(remote::equal(welcome, friendly.received_proof));
  const remote::Words proof = friendly.proof(options.key);
  friendly.say(proof);
  friendly.wait_until_handled();

  // A stranger with the friend's node id guesses a key, sends a message without a proof, or sends
  // back the proof from its welcome.
  for (int way = 0; way < 3; ++way) {
    Rogue stranger(victim.transport->address());
    stranger.node = friendly.node;
    stranger.key = options.key;  // as if it replayed a recorded hello
    stranger.greet();
    if (way == 0) stranger.say(stranger.proof(std::string(32, 'x')));
    if (way == 1) stranger.say(stranger.message(fill_text));
    if (way == 2)
      stranger.say([&](auto out) {
        out.setProof(kj::arrayPtr(stranger.received_proof.data(), stranger.received_proof.size()));
      });
    const auto refused = static_cast<uint64_t>(way + 1);
    stranger.progress_until([&] { return victim.transport->counters().malformed >= refused; });
  }
  // A hello without the key: the address in it is not used.
  Rogue unknown(victim.transport->address());
  unknown.send(first, unknown.hello(wire::PROTOCOL_VERSION, "test"));
  unknown.progress_until([&] { return victim.transport->counters().malformed >= 4; });
  unknown.progress_until([&] { return unknown.ended > 0; });  // it need not wait for its deadline
  // A replay of everything that the friend has sent.
  Rogue replay(victim.transport->address());
  replay.send(first, friendly.hello(wire::PROTOCOL_VERSION, "test"));
  REQUIRE(replay.answer() == "welcome");
  CHECK(replay.theirs.token != friendly.token);
  replay.send({remote::FrameHeader::kMagic, 0, replay.theirs.token, 0}, proof);
  replay.progress_until([&] { return replay.ended > 0; });
  friendly.wait_until_handled();
  CHECK(victim.transport->counters().malformed == 5);
  CHECK(victim.texts_handled() == 0);
}

TEST_CASE("rogue: CONNECTION-3, thousands of hellos without a proof do not keep a peer out") {
  const Wire wire("tcp");
  Victim victim;
  Rogue flood(victim.transport->address());
  for (int i = 0; i < 1500; ++i) {
    flood.connect();
    flood.node[0] = static_cast<uint8_t>(i), flood.node[1] = static_cast<uint8_t>(i >> 8);
    flood.greet();
  }
  Rogue guest(victim.transport->address());
  guest.join();
  CHECK(victim.transport->counters().dropped >= 1500 - 1024);
}

TEST_CASE("rogue: ACTOR-4, bad frames are counted and dropped, and later good ones arrive") {
  for (const char* kind : {"tcp", "unix"}) {
    const Wire wire(kind);
    Victim victim;
    Rogue rogue(victim.transport->address());
    rogue.join();
    auto text = rogue.message(fill_text);
    char rubbish[64] = "rubbish";

    // Nothing but its magic number is wrong: malformed 1.
    rogue.send({remote::FrameHeader::kMagic + 1, 0, rogue.token, rogue.sequence}, text);
    rogue.send_raw(rubbish, 8, rubbish, 64);                             // malformed 2
    rogue.send_raw(nullptr, 0, rubbish, 64);                             // malformed 3
    rogue.send({remote::FrameHeader::kMagic, 0, 0, 0}, text);            // malformed 4: no hello
    rogue.send({remote::FrameHeader::kMagic, 0, rogue.token, 0}, text);  // malformed 5: seen
    auto header = rogue.next();
    rogue.send_raw(&header, sizeof header, rubbish, 63);  // malformed 6: not whole words
    header = rogue.next();
    rogue.send_raw(&header, sizeof header, rubbish, 64);  // malformed 7
    header = rogue.next();
    rogue.send_raw(&header, sizeof header, rubbish, 0);       // malformed 8
    rogue.say(text.slice(0, text.size() - 1));                // malformed 9: truncated
    rogue.say(rogue.message(fill_text, 0x3000000000000000));  // malformed 10
    rogue.say(rogue.message(fill_text, 0x8000000000000005));  // dropped 1: no such request
    std::vector<char> large(2 << 20);
    header = rogue.next();
    rogue.send_raw(&header, sizeof header, large.data(), large.size());  // oversized 1
    for (int i = 0; i < 3; ++i) rogue.say(text);
    rogue.wait_until_handled();
    auto counters = victim.transport->counters();
    CHECK(counters.malformed == 10);
    CHECK(counters.dropped == 1);
    CHECK(counters.oversized == 1);
    CHECK(victim.texts_handled() == 3);
  }
}

TEST_CASE("rogue: CONNECTION-3, a message with an unknown token ends its connection") {
  const Wire wire("tcp");
  for (const bool peer : {false, true}) {
    Victim victim;
    Rogue rogue(victim.transport->address());
    if (peer) rogue.join();
    const remote::FrameHeader guess{remote::FrameHeader::kMagic, 0, rogue.token + 1,
                                    rogue.sequence};
    for (int i = 0; i < 100; ++i) rogue.send(guess, rogue.message(fill_text));
    rogue.progress_until([&] { return rogue.ended > 0; });
    CHECK(victim.transport->counters().malformed == 1);  // only the first was looked at
    CHECK(victim.texts_handled() == 0);
  }
}

TEST_CASE("rogue: CONNECTION-3, neither a token nor the key stands in a trace or a log") {
  const Wire wire("unix");
  std::ostringstream log;
  const auto logger = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  spdlog::set_level(spdlog::level::trace);
  REQUIRE(trace::start(1024).ok());
  TransportOptions options = Victim::quiet();
  options.key = "the key of this run: 32 bytes ..";
  uint64_t token = 0, guess = 0;
  {
    Victim victim(options);
    Rogue rogue(victim.transport->address());
    rogue.key = options.key;
    rogue.greet();
    rogue.say(rogue.proof(options.key));
    rogue.wait_until_handled();
    rogue.say(rogue.message(fill_text));
    rogue.wait_until_handled();
    CHECK(victim.texts_handled() == 1);
    token = rogue.theirs.token, guess = remote::random_token();
    rogue.send({remote::FrameHeader::kMagic, 0, guess, rogue.sequence}, rogue.message(fill_text));
    rogue.progress_until([&] { return rogue.ended > 0; });
  }
  spdlog::set_default_logger(logger);
  auto reader = must(trace::Reader::own());
  const std::vector<trace::Event> events = (*reader)->read().events;
  REQUIRE(trace::start(0).ok());
  std::string written = log.str();
  written.append(reinterpret_cast<const char*>(events.data()),
                 events.size() * sizeof(trace::Event));
  CHECK(written.find("unknown token") != std::string::npos);          // the log was kept,
  CHECK(std::ranges::any_of(events, [&](const trace::Event& event) {  // and so was the trace
    return event.kind == trace::Kind::received &&
           event.a == remote::name_of_token(options.key, token);
  }));
  for (const uint64_t secret : {token, guess}) {
    const std::string raw(reinterpret_cast<const char*>(&secret), sizeof secret);
    for (const std::string& text : {raw, raw.substr(0, 4), raw.substr(4), std::to_string(secret),
                                    fmt::format("{:x}", secret)})
      CHECK(written.find(text) == std::string::npos);
  }
  CHECK(written.find(options.key.substr(0, 8)) == std::string::npos);
}

TEST_CASE("rogue: a kind of message that only a newer program has is counted as unknown") {
  const Wire wire("tcp");
  Victim victim;
  Rogue rogue(victim.transport->address());
  rogue.join();
  auto body = rogue.message(fill_text);
  auto envelope = kj::heapArray<capnp::word>(body.begin(), body.size());
  // Finds the discriminant's byte: the one that, set to 200, makes Body read as kind 200.
  auto other = rogue.message([](wire::Body::Builder out) { out.initPing().setPayload("hello"); });
  REQUIRE(other.size() >= body.size());
  bool found = false;
  for (size_t i = 0; i + 1 < body.asBytes().size() && !found; ++i) {
    auto* at = reinterpret_cast<uint8_t*>(body.begin()) + i;
    if (*at != static_cast<uint8_t>(wire::Body::TEXT)) continue;
    uint8_t before = *at;
    *at = 200;
    capnp::FlatArrayMessageReader reader(body);
    try {
      auto root = reader.getRoot<wire::Envelope>();
      found = root.isMessage() && static_cast<int>(root.getMessage().getBody().which()) == 200;
    } catch (const kj::Exception&) {
    }
    if (!found) *at = before;
  }
  REQUIRE(found);
  rogue.say(body);
  rogue.wait_until_handled();
  CHECK(victim.transport->counters().unknown == 1);
  CHECK(victim.texts_handled() == 0);
}

TEST_CASE("rogue: CONNECTION-4, of two calls of one process the earlier cannot replace the later") {
  const Wire wire("unix");
  Victim victim;
  Rogue earlier(victim.transport->address()), later(victim.transport->address());
  later.node = earlier.node;
  earlier.greet();
  later.join();
  earlier.say(earlier.proof());  // a good one, but it comes too late
  earlier.progress_until([&] { return earlier.ended > 0 || later.ended > 0; });
  later.wait_until_handled();
}

TEST_CASE("rogue: CONNECTION-4, a welcome names the connection that is established") {
  const Wire wire("unix");
  Victim victim;
  Rogue first(victim.transport->address()), again(victim.transport->address());
  first.join();
  CHECK(first.other == 0);
  again.node = first.node;
  again.greet();
  CHECK(again.other == first.mine().token);
}

TEST_CASE("rogue: CONNECTION-4, a lookup goes on over the connection that replaces its own") {
  const Wire wire("unix");
  Victim victim;
  Rogue called;
  std::fill_n(called.node.begin(), 4, uint8_t{0});  // of the two calls that of the lower id stays
  std::promise<Result<caf::actor>> found;
  victim.transport->lookup(called.address(), "server", 60'000,
                           [&](Result<caf::actor> actor) { found.set_value(std::move(actor)); });
  REQUIRE(called.answer() == "hello");
  Rogue caller(victim.transport->address());
  caller.node = called.node;
  caller.join();
  while (caller.lookup == 0) caller.answer();
  caller.say([&](auto out) {
    auto answer = out.initFound();
    answer.setId(caller.lookup);
    answer.setActor(5);
  });
  CHECK(found.get_future().get().ok());
}

TEST_CASE("rogue: a process that does not answer is disconnected when no lookup waits for it") {
  const Wire wire("unix");
  Victim victim;
  Rogue silent;
  std::promise<Status> ended;
  victim.transport->lookup(silent.address(), "server", 300,
                           [&](Result<caf::actor> actor) { ended.set_value(actor.status()); });
  REQUIRE(silent.answer() == "hello");
  CHECK(ended.get_future().get().code() == Code::deadline);
  silent.progress_until([&] { return silent.ended > 0; });
}

TEST_CASE("rogue: a hello with this process's id, or without a nonce, is refused") {
  const Wire wire("unix");
  for (const bool own_id : {true, false}) {
    Victim victim;
    Rogue rogue(victim.transport->address());
    if (own_id)
      rogue.node = remote::node_to_bytes(victim.system->node());
    else
      rogue.nonce = {};
    rogue.send({remote::FrameHeader::kMagic, 0, 0, 0}, rogue.hello(wire::PROTOCOL_VERSION, "test"));
    rogue.progress_until([&] { return rogue.ended > 0; });
    CHECK(victim.transport->counters().malformed == 1);
  }
}

TEST_CASE("rogue: a lookup is answered only by the peer that it was sent to") {
  const Wire wire("unix");
  Victim victim;
  Rogue asked, other(victim.transport->address());
  other.join();
  std::promise<Result<caf::actor>> found;
  victim.transport->lookup(asked.address(), "server", 60'000,
                           [&](Result<caf::actor> actor) { found.set_value(std::move(actor)); });
  REQUIRE(asked.answer() == "hello");
  for (uint64_t id = 0; id < 10; ++id) other.say([&](auto out) { out.initFound().setId(id); });
  other.wait_until_handled();
  asked.say(
      asked.welcome(remote::prove("", "test", remote::Role::welcome, asked.mine(), asked.theirs)));
  REQUIRE(asked.answer() == "proof");
  REQUIRE(asked.answer() == "lookup");
  asked.say([&](auto out) {
    auto answer = out.initFound();
    answer.setId(asked.lookup);
    answer.setActor(5);
  });
  const Result<caf::actor> actor = must(found.get_future().get());
  CHECK(actor->node() == remote::node_from_bytes(asked.node));
}

TEST_CASE("rogue: ACTOR-3, an answer that follows the end of its actor is dropped") {
  const Wire wire("unix");
  Victim victim;
  std::promise<caf::error> failed;
  const auto asker = victim.system->spawn([&](caf::event_based_actor* self) -> caf::behavior {
    return {[self, &failed](const Text&) {
      self->request(caf::actor_cast<caf::actor>(self->current_sender()), caf::infinite, Ping{})
          .then([](Pong&) {}, [&failed](caf::error& error) { failed.set_value(error); });
    }};
  });
  victim.transport->publish("server", asker);
  Rogue rogue(victim.transport->address());
  rogue.join();
  rogue.say(rogue.message(fill_text));
  REQUIRE(rogue.answer() == "message");
  const auto [asked_by, id] = rogue.request;
  rogue.say([](auto out) { out.initDown().setActor(4711); });
  CHECK(failed.get_future().get() == caf::sec::request_receiver_down);
  const uint64_t dropped = victim.transport->counters().dropped;
  rogue.actor = asked_by;
  rogue.say(rogue.message([](wire::Body::Builder body) { body.initPong(); },
                          caf::make_message_id(id).response_id().integer_value()));
  rogue.wait_until_handled();
  CHECK(victim.transport->counters().dropped == dropped + 1);
  caf::anon_send_exit(asker, caf::exit_reason::user_shutdown);
}

namespace {

/// A peer that is silent for a second is lost.
TransportOptions impatient() {
  TransportOptions options = Victim::quiet();
  options.heartbeat_ms = 20;
  options.silence_ms = 1000;
  return options;
}

}  // namespace

TEST_CASE("rogue: a peer that sends messages, but no heartbeats, is not silent") {
  const Wire wire("unix");
  Victim victim(impatient());
  Rogue rogue(victim.transport->address());
  rogue.join();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (rogue.ended == 0 && std::chrono::steady_clock::now() < end) rogue.wait_until_handled();
  // Then it is silent, but not for a second.
  const uint64_t sent = victim.transport->counters().sent;
  rogue.progress_until(
      [&] { return rogue.ended > 0 || victim.transport->counters().sent > sent + 2; });
  CHECK(rogue.ended == 0);
}

TEST_CASE("rogue: a process that was paused does not count the pause as its peer's silence") {
  const Wire wire("unix");
  Victim victim(impatient());
  Rogue rogue(victim.transport->address());
  rogue.join();
  std::promise<void> paused;
  victim.transport->lookup(victim.transport->address(), "server", 1000, [&](Result<caf::actor>) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // on the transport thread
    paused.set_value();
  });
  paused.get_future().get();
  // Its heartbeats show that it has looked at the silence of its peers. A goodbye would be one.
  const uint64_t sent = victim.transport->counters().sent;
  rogue.progress_until(
      [&] { return rogue.ended > 0 || victim.transport->counters().sent > sent + 1; });
  CHECK(rogue.ended == 0);
}

TEST_CASE(
    "rogue: a peer whose process has ended is lost for that reason, also if it cannot be "
    "watched") {
  const Wire wire("unix");
  Victim victim(impatient());
  simplescale::testing::Helper helper;
  const auto pid = static_cast<uint32_t>(helper.pid());
  helper.kill();
  Rogue rogue(victim.transport->address());  // as a child that has the socket of that process
  rogue.node = remote::node_to_bytes(victim.system->node());
  for (size_t i = 0; i < 4; ++i) rogue.node[i] = static_cast<uint8_t>(pid >> (8 * i));
  rogue.join();
  simplescale::testing::Loss loss(victim);
  CHECK(loss.wait() == "its process has ended");
}

TEST_CASE("rogue: ACTOR-4, thousands of damaged messages do no harm") {
  const char* given = std::getenv("SS_TEST_SEED");
  uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  CAPTURE(seed);
  // ACTOR-4: nothing that a peer sends crashes this process.
  std::mt19937_64 random(seed);
  const Wire wire("tcp");
  Victim victim;
  auto rogue = std::make_unique<Rogue>(victim.transport->address());
  rogue->join();
  for (int i = 0; i < 10'000; ++i) {
    remote::Words whole;
    switch (random() % 6) {
      case 0:
        // Of another node, so that it does not replace the rogue's own connection.
        whole = rogue->hello(wire::PROTOCOL_VERSION, "test", 1);
        break;
      case 1:
        whole = rogue->message([](wire::Body::Builder out) {
          auto x = out.initStepDone();
          x.initSamples(20);
          x.setTrainer("n1.0");
        });
        break;
      case 2:
        whole = remote::make_envelope([&](auto out) {
          auto x = out.initExit();
          x.setSource(5);
          x.setReceiver(rogue->actor + 1000);
          x.initReason().setCode(3);
        });
        break;
      case 3:
        whole = remote::make_envelope([&](auto out) {
          auto x = out.initDown();
          x.setActor(random() % 10);
          x.initReason().setText("why");
        });
        break;
      case 4:
        whole = remote::make_envelope([&](auto out) {
          auto x = out.initFound();
          x.setId(random() % 3);
          x.setActor(9);
        });
        break;
      default:
        whole = rogue->message(fill_text, random() % 2 ? 0 : 5);
    }
    auto bytes = whole.asBytes();
    for (uint64_t flips = random() % 5; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    }
    // Skip goodbyes and exits: one that reaches the server would end the test early.
    try {
      capnp::FlatArrayMessageReader reader(whole);
      auto root = reader.getRoot<wire::Envelope>();
      if (root.isGoodbye() || root.isRefused() || root.isExit()) continue;
    } catch (const kj::Exception&) {
    }
    size_t keep = random() % 4 ? whole.size() : random() % (whole.size() + 1);
    bool hello = random() % 10 == 0;
    rogue->send(hello ? remote::FrameHeader{remote::FrameHeader::kMagic, 0, 0, 0} : rogue->next(),
                whole.slice(0, keep));
  }
  rogue->wait_until_handled();
  CHECK(victim.transport->counters().malformed > 0);
  rogue.reset();
  Rogue again(victim.transport->address());
  again.join();
}
