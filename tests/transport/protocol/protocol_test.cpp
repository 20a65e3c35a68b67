// The table of messages: every message round-trips with any values; damaged messages are refused
// and never crash the reader (ACTOR-4).
#include <capnp/any.h>
#include <capnp/dynamic.h>
#include <capnp/serialize.h>
#include <doctest/doctest.h>

#include <caf/all.hpp>
#include <cstdlib>
#include <limits>
#include <random>

#include "transport/caf/address.hpp"
#include "transport/caf/codec.hpp"
#include "transport/caf/envelope.hpp"
#include "transport/caf/message_types.hpp"
#include "transport/protocol/protocol.capnp.h"

using namespace simplescale;

namespace {

uint64_t test_seed() {
  const char* given = std::getenv("SS_TEST_SEED");
  return given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

/// Fills the fields of a message with random values, including extreme ones.
void fill(capnp::DynamicStruct::Builder message, std::mt19937_64& random);

std::string random_bytes(std::mt19937_64& random) {
  std::string bytes(random() % 50, 0);
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

template <class T>
T random_number(std::mt19937_64& random) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_floating_point_v<T>) {
    const T extremes[] = {0, Limits::max(), Limits::denorm_min(), -Limits::infinity()};
    return random() % 2 ? extremes[random() % 4] : static_cast<T>(random()) / 3;
  } else {
    const T extremes[] = {Limits::min(), Limits::max()};
    return random() % 4 ? static_cast<T>(random()) : extremes[random() % 2];
  }
}

capnp::DynamicValue::Reader random_scalar(capnp::Type type, std::string& bytes,
                                          std::mt19937_64& random) {
  using capnp::schema::Type;
  switch (type.which()) {
    case Type::BOOL:
      return random() % 2 == 0;
    case Type::INT32:
      return random_number<int32_t>(random);
    case Type::INT64:
      return random_number<int64_t>(random);
    case Type::UINT32:
      return random_number<uint32_t>(random);
    case Type::UINT64:
      return random_number<uint64_t>(random);
    case Type::FLOAT64:
      return random_number<double>(random);
    case Type::ENUM: {
      const auto values = type.asEnum().getEnumerants();
      return capnp::DynamicEnum(values[random() % values.size()]);
    }
    case Type::TEXT:
      bytes = random_bytes(random);
      return capnp::Text::Reader(bytes.data(), bytes.size());
    case Type::DATA:
      bytes = random_bytes(random);
      return capnp::Data::Reader(reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size());
    default:
      FAIL("random_scalar() lacks a type that a message has");
      return {};
  }
}

void fill(capnp::DynamicStruct::Builder message, std::mt19937_64& random) {
  std::string bytes;
  for (const auto field : message.getSchema().getFields()) {
    const auto type = field.getType();
    if (type.isStruct()) {
      fill(message.init(field).as<capnp::DynamicStruct>(), random);
    } else if (type.isList()) {
      auto list =
          message.init(field, static_cast<unsigned>(random() % 20)).as<capnp::DynamicList>();
      const auto element = type.asList().getElementType();
      for (unsigned i = 0; i < list.size(); ++i)
        if (element.isStruct())
          fill(list[i].as<capnp::DynamicStruct>(), random);
        else
          list.set(i, random_scalar(element, bytes, random));
    } else {
      message.set(field, random_scalar(type, bytes, random));
    }
  }
}

/// A random message for each member of Body.
std::vector<remote::Words> random_messages(std::mt19937_64& random) {
  std::vector<remote::Words> all;
  for (const auto member : capnp::Schema::from<wire::Body>().getUnionFields())
    if (member.getType().isStruct() && member.getProto().getName() != "error")
      all.push_back(remote::make_envelope([&](wire::Envelope::Builder envelope) {
        capnp::DynamicStruct::Builder body(envelope.initMessage().initBody());
        fill(body.init(member).as<capnp::DynamicStruct>(), random);
      }));
  return all;
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

// Of an envelope with a message, without its members: segment table, root, Envelope, Message, Body.
constexpr size_t kEnvelopeBytes = 80;

TEST_CASE("protocol: every message round-trips with random values, in one segment") {
  uint64_t seed = test_seed();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i)
    for (const auto& sent : random_messages(random)) {
      capnp::FlatArrayMessageReader reader(sent);
      const auto envelope = reader.getRoot<wire::Envelope>();
      CAPTURE(remote::name_of(envelope));
      capnp::FlatArrayMessageReader limited(sent, remote::reader_options(sent.size()));
      caf::message content;
      REQUIRE(remote::read_body(limited.getRoot<wire::Envelope>().getMessage().getBody(),
                                content) == remote::BodyKind::message);
      const size_t bytes = remote::body_bytes(content.content());
      const auto again = remote::make_envelope(
          [&](wire::Envelope::Builder out) {
            REQUIRE(remote::write_body(content.content(), out.initMessage().initBody()));
          },
          bytes);
      capnp::FlatArrayMessageReader reread(again);
      REQUIRE(capnp::AnyStruct::Reader(reread.getRoot<wire::Envelope>()) ==
              capnp::AnyStruct::Reader(envelope));
      CHECK(again.asBytes().size() == bytes + kEnvelopeBytes);
    }
}

TEST_CASE("protocol: a message has the fields, defaults and words of the schema") {
  TrainerIdle sent{.trainer = "n0.1",
                   .held = {{0, 7, 3}, {0, 8, 3}},
                   .fault = Fault::bad_copy,
                   .step = 8,
                   .reason = {.text = "why", .kind = ReasonKind::silent, .ms = -4}};
  auto words = envelope_of(caf::make_message(sent));
  capnp::FlatArrayMessageReader reader(words);
  auto body = reader.getRoot<wire::Envelope>().getMessage().getBody();
  const auto idle = body.getTrainerIdle();
  CHECK(idle.getTrainer() == "n0.1");
  CHECK(idle.getHeld()[1].getStep() == 8);
  CHECK(idle.getFault() == wire::Fault::BAD_COPY);
  CHECK(idle.getReason().getMs() == -4);
  CHECK(idle.getSuspectRank() == -1);
  caf::message received;
  REQUIRE(remote::read_body(body, received) == remote::BodyKind::message);
  CHECK(received.get_as<TrainerIdle>(0) == sent);
  CHECK(TrainerDown().restarting);
  CHECK(JoinTrainer().shards == 1);
  CHECK(TrainerProgress().gpu == -1);
  CHECK(std::string(to_string(Fault::failed)) == "step_failed");
  CHECK(std::string(to_string(Fault::bad_tokens)) == "bad_tokens");
}

TEST_CASE("protocol: ACTOR-4, an unknown value of an enum is refused") {
  auto words = remote::make_envelope([](wire::Envelope::Builder out) {
    out.initMessage().initBody().initTrainerIdle().setFault(static_cast<wire::Fault>(9));
  });
  capnp::FlatArrayMessageReader reader(words);
  caf::message content;
  CHECK_THROWS_AS(
      remote::read_body(reader.getRoot<wire::Envelope>().getMessage().getBody(), content),
      kj::Exception);
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
    for (auto& whole : random_messages(random)) {
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
