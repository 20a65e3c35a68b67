// The table of messages: every message round-trips with any values; damaged messages are refused
// and never crash the reader (ACTOR-4).
#include <capnp/serialize.h>
#include <doctest/doctest.h>

#include <caf/all.hpp>
#include <cstdlib>
#include <limits>
#include <random>

#include "transport/caf/address.hpp"
#include "transport/caf/codec.hpp"
#include "transport/caf/envelope.hpp"
#include "transport/protocol/convert.hpp"

using namespace simplescale;

namespace {

uint64_t test_seed() {
  const char* given = std::getenv("SS_TEST_SEED");
  return given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

/// Fills the fields of a message with random values, including extreme ones.
struct Randomizer {
  using result_type = void;
  std::mt19937_64& random;

  template <class... Ts>
  void operator()(Ts&... xs) {
    (fill(xs), ...);
  }
  void fill(bool& x) { x = random() % 2; }
  void fill(std::string& x) {
    x.resize(random() % 50);
    for (char& c : x) c = static_cast<char>(random());
  }
  template <class T>
  void fill(T& x) {
    if constexpr (std::is_floating_point_v<T>) {
      T extremes[] = {0, std::numeric_limits<T>::max(), std::numeric_limits<T>::denorm_min(),
                      -std::numeric_limits<T>::infinity()};
      x = random() % 2 ? extremes[random() % 4] : static_cast<T>(random()) / 3;
    } else if constexpr (std::is_integral_v<T>) {
      T extremes[] = {std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
      x = random() % 4 ? static_cast<T>(random()) : extremes[random() % 2];
    } else {
      inspect(*this, x);
    }
  }
  template <class T>
  void fill(std::vector<T>& xs) {
    xs.resize(random() % 20);
    for (T& x : xs) fill(x);
  }
};

template <class T>
T random_message(std::mt19937_64& random) {
  T x{};
  Randomizer randomizer{random};
  inspect(randomizer, x);
  return x;
}

remote::Words envelope_of(const caf::message& content) {
  return remote::make_envelope([&](wire::Envelope::Builder envelope) {
    auto message = envelope.initMessage();
    message.setSender(1);
    message.setReceiver(2);
    message.setId(3);
    REQUIRE(remote::write_body(content.content(), message.initBody()));
  });
}

template <class T>
void round_trip(std::mt19937_64& random) {
  CAPTURE(message_name(static_cast<const T*>(nullptr)));
  for (int i = 0; i < 200; ++i) {
    T sent = random_message<T>(random);
    auto words = envelope_of(caf::make_message(sent));
    capnp::FlatArrayMessageReader reader(words, remote::reader_options(words.size()));
    caf::message received;
    REQUIRE(remote::read_body(reader.getRoot<wire::Envelope>().getMessage().getBody(), received) ==
            remote::BodyKind::message);
    REQUIRE(received.match_elements<T>());
    REQUIRE(received.get_as<T>(0) == sent);
  }
}

template <class... Ts>
void round_trip_all(std::mt19937_64& random, MessageList<Ts...>) {
  (round_trip<Ts>(random), ...);
}

template <class... Ts>
std::vector<remote::Words> envelopes_of_all(std::mt19937_64& random, MessageList<Ts...>) {
  std::vector<remote::Words> all;
  (all.push_back(envelope_of(caf::make_message(random_message<Ts>(random)))), ...);
  return all;
}

/// Reads the envelope and its message, as the transport does.
void open(kj::ArrayPtr<const capnp::word> words) {
  capnp::FlatArrayMessageReader reader(words, remote::reader_options(words.size()));
  auto envelope = reader.getRoot<wire::Envelope>();
  if (envelope.isMessage()) {
    caf::message content;
    remote::read_body(envelope.getMessage().getBody(), content);
  } else {
    capnp::DynamicStruct::Reader(envelope).which();
  }
}

}  // namespace

// Structs that differ from the schema of Ping or NodeHello.
struct Misnamed {
  uint64_t id = 0;
  std::string pay_load;
};
SS_FIELDS(Misnamed, x.id, x.pay_load);
struct Mistyped {
  uint32_t id = 0;
  std::string payload;
};
SS_FIELDS(Mistyped, x.id, x.payload);
struct Short {
  uint64_t id = 0;
};
SS_FIELDS(Short, x.id);
struct Swapped {
  std::string payload;
  uint64_t id = 0;
};
SS_FIELDS(Swapped, x.payload, x.id);

TEST_CASE("protocol: every C++ message matches its schema, and every schema has a C++ message") {
  Status status = remote::check_messages();
  INFO(status.message());
  CHECK(status.ok());
}

TEST_CASE("protocol: check_struct finds a struct that differs from its schema") {
  auto schema = capnp::Schema::from<wire::Ping>();
  CHECK(wire::check_struct<Ping>(schema).ok());
  CHECK(!wire::check_struct<Misnamed>(schema).ok());
  CHECK(!wire::check_struct<Mistyped>(schema).ok());
  CHECK(!wire::check_struct<Short>(schema).ok());
  CHECK(!wire::check_struct<Swapped>(schema).ok());
  CHECK(!wire::check_struct<Ping>(capnp::Schema::from<wire::NodeHello>()).ok());
}

TEST_CASE("protocol: every message round-trips with random values") {
  uint64_t seed = test_seed();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  round_trip_all(random, Messages{});
}

TEST_CASE("protocol: errors and empty answers round-trip") {
  auto carry = [](const caf::message& content) {
    auto words = envelope_of(content);
    capnp::FlatArrayMessageReader reader(words);
    caf::message received;
    CHECK(remote::read_body(reader.getRoot<wire::Envelope>().getMessage().getBody(), received) ==
          remote::BodyKind::message);
    return received;
  };
  auto error = caf::make_error(caf::sec::runtime_error, std::string("why"));
  auto received = carry(caf::make_message(error));
  REQUIRE(received.match_elements<caf::error>());
  CHECK(received.get_as<caf::error>(0) == error);
  CHECK(received.get_as<caf::error>(0).context().get_as<std::string>(0) == "why");
  CHECK(carry(caf::make_message(caf::unit)).empty());
}

TEST_CASE(
    "protocol: ACTOR-4, a damaged envelope throws kj::Exception or reads as another message") {
  uint64_t seed = test_seed();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    for (auto& whole : envelopes_of_all(random, Messages{})) {
      size_t keep = random() % 3 ? whole.size() : random() % (whole.size() + 1);
      auto words = kj::heapArray<capnp::word>(whole.begin(), keep);
      auto bytes = words.asBytes();
      for (uint64_t flips = random() % 8; bytes.size() != 0 && flips > 0; --flips) {
        size_t at = random() % std::min<size_t>(bytes.size(), random() % 2 ? 64 : bytes.size());
        bytes[at] = static_cast<uint8_t>(random());
      }
      try {
        open(words);
      } catch (const kj::Exception&) {
        ++refused;
      }
    }
  }
  CHECK(refused > 0);
}

TEST_CASE("protocol: readdressed() equals the message built for the other receiver") {
  auto made = [](uint64_t receiver, const std::string& payload, size_t guess) {
    return remote::make_envelope(
        [&](wire::Envelope::Builder envelope) {
          auto message = envelope.initMessage();
          message.setSender(3);
          message.setReceiver(receiver);
          message.setId(5);
          auto ping = message.initBody().initPing();
          ping.setId(UINT64_MAX);
          ping.setPayload(payload);
        },
        guess);
  };
  for (const size_t bytes : {0, 10, 100'000})
    for (const size_t guess : {0, 200'000})  // too small for the large payload, or enough
      for (const uint64_t receiver : {uint64_t{0}, uint64_t{9}, UINT64_MAX}) {
        const std::string payload(bytes, 'x');
        const auto words = remote::readdressed(made(7, payload, guess), receiver);
        CHECK(words.asBytes() == made(receiver, payload, guess).asBytes());
      }
}

TEST_CASE("protocol: ACTOR-4, a small message cannot expand into a large one") {
  // Reads the same 8,000 bytes 1,000 times, as if 1,000 list elements pointed to them.
  capnp::MallocMessageBuilder builder;
  auto list = builder.initRoot<wire::Envelope>().initMessage().initBody().initStepDone();
  list.setTrainer(kj::heapString(8000));
  auto words = capnp::messageToFlatArray(builder);
  capnp::FlatArrayMessageReader reader(words, remote::reader_options(words.size()));
  auto root = reader.getRoot<wire::Envelope>();
  auto read = [&] {
    for (int i = 0; i < 1000; ++i) (void)root.getMessage().getBody().getStepDone().getTrainer();
  };
  CHECK_THROWS_AS(read(), kj::Exception);
}

TEST_CASE("protocol: an address round-trips as text, and a damaged one is refused") {
  caf::node_id::default_data::host_id_type host{};
  host[3] = 7;
  remote::Address address{caf::make_node_id(uint32_t{4711}, host), {1, 2, 3, 250}};
  std::string text = remote::to_text(address);
  auto parsed = remote::parse_address(text);
  REQUIRE(parsed.ok());
  CHECK(parsed->node == address.node);
  CHECK(parsed->worker == address.worker);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = damaged[i] == '0' ? '1' : '0';
    if (damaged != text) CHECK(!remote::parse_address(damaged).ok());
    CHECK(!remote::parse_address(text.substr(0, i)).ok());
  }
}
