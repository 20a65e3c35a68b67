// STREAM-1: without the run's key nobody gets past the handshake, and nobody on the way reads,
// changes, reorders or repeats what is sent.
#include "transport/stream/secure.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

using namespace simplescale::stream;

namespace {

using Bytes = Buffer;
const std::string kKey(32, 'k');
const Id kServer{1, 2, 3};

/// The two ends of a connection, and what is on its way between them.
struct Pair {
  explicit Pair(const std::string& client_key = kKey, const Id& id = kServer)
      : client(Secure::Side::client, client_key, id) {
    client.begin(to_server);
  }
  bool to_the_server() { return server.receive(std::exchange(to_server, {}), got, to_client); }
  bool to_the_client() { return client.receive(std::exchange(to_client, {}), answer, to_server); }
  bool shake() { return to_the_server() && to_the_client() && to_the_server(); }

  Secure client, server{Secure::Side::server, kKey, kServer};
  Bytes to_server, to_client, got, answer;
};

Bytes text(const std::string& letters) {
  return {letters.begin(), letters.end()};
}

}  // namespace

TEST_CASE("stream: both ends with the key exchange records, also byte by byte") {
  Pair pair;
  REQUIRE(pair.shake());
  CHECK(pair.client.proven());
  CHECK(pair.server.proven());
  pair.client.seal(text("hello"), pair.to_server);
  pair.client.seal(Bytes(Secure::kRecordMax, 7), pair.to_server);
  const Bytes wire = pair.to_server;
  CHECK(std::ranges::search(wire, text("hello")).empty());
  for (const uint8_t byte : wire)
    REQUIRE(pair.server.receive({&byte, 1}, pair.got, pair.to_client));
  Bytes want = text("hello");
  want.resize(5 + Secure::kRecordMax, 7);
  CHECK(pair.got == want);
  pair.server.seal(text("yes"), pair.to_client);
  REQUIRE(pair.to_the_client());
  CHECK(pair.answer == text("yes"));
}

TEST_CASE("stream: STREAM-1, without the key no end accepts the other") {
  Pair stranger(std::string(32, 'x'));
  CHECK_FALSE(stranger.to_the_server());
  CHECK(stranger.to_client.empty());  // the server has answered nothing
  Pair other_server(kKey, Id{9});     // a hello for another process of the run
  CHECK_FALSE(other_server.to_the_server());
  // A server without the key: it cannot make the welcome.
  Pair pair;
  REQUIRE(pair.to_the_server());
  Bytes welcome = pair.to_client, plain, out;
  for (const size_t at : {size_t{0}, size_t{31}, size_t{32}, size_t{63}}) {
    Pair fresh;
    REQUIRE(fresh.to_the_server());
    fresh.to_client[at] ^= 1;
    CHECK_FALSE(fresh.to_the_client());
  }
  Pair other;
  CHECK_FALSE(other.client.receive(welcome, plain, out));  // of another handshake
}

TEST_CASE("stream: STREAM-1, a recorded connection cannot be repeated") {
  Pair pair;
  Bytes recorded = pair.to_server;
  REQUIRE(pair.to_the_server());
  REQUIRE(pair.to_the_client());
  pair.client.seal(text("stop the run"), pair.to_server);
  recorded.insert(recorded.end(), pair.to_server.begin(), pair.to_server.end());
  Secure again(Secure::Side::server, kKey, kServer);
  Bytes plain, out;
  CHECK_FALSE(again.receive(recorded, plain, out));
  CHECK_FALSE(again.proven());
  CHECK(plain.empty());
}

TEST_CASE(
    "stream: STREAM-1, a changed, repeated, missing or exchanged record ends the connection") {
  const auto records = [](Pair& pair) {
    REQUIRE(pair.shake());
    pair.got.clear();
    std::vector<Bytes> made(3);
    for (size_t i = 0; i < made.size(); ++i) pair.client.seal(text("record"), made[i]);
    return made;
  };
  const auto receive = [](Pair& pair, const Bytes& record) {
    return pair.server.receive(record, pair.got, pair.to_client);
  };
  {
    Pair pair;
    const auto made = records(pair);
    REQUIRE(receive(pair, made[0]));
    CHECK_FALSE(receive(pair, made[0]));
  }
  {
    Pair pair;
    const auto made = records(pair);
    CHECK_FALSE(receive(pair, made[1]));
    CHECK(pair.got.empty());
  }
  {
    Pair pair;  // what one end sent does not come back to it
    auto made = records(pair);
    CHECK_FALSE(pair.client.receive(made[0], pair.answer, pair.to_server));
  }
  for (size_t at = 4; at < 4 + 6 + 16; ++at) {
    Pair pair;
    auto made = records(pair);
    made[0][at] ^= 0x10;
    CHECK_FALSE(receive(pair, made[0]));
    CHECK(pair.got.empty());
  }
}

TEST_CASE("stream: STREAM-1, of a stranger at most one message of the handshake is kept") {
  Secure server(Secure::Side::server, kKey, kServer);
  Bytes plain, out;
  CHECK(server.receive(Bytes(71, 'x'), plain, out));  // not complete
  CHECK_FALSE(server.receive(Bytes(1, 'x'), plain, out));
  // After a replayed hello: a first record longer than the empty one.
  Pair pair;
  REQUIRE(pair.to_the_server());
  const Bytes length{255, 255, 0, 0};
  CHECK_FALSE(pair.server.receive(length, plain, out));
  // A record that is shorter than what encryption adds to an empty one.
  Pair other;
  REQUIRE(other.to_the_server());
  CHECK_FALSE(other.server.receive(Bytes{15, 0, 0, 0}, plain, out));
}
