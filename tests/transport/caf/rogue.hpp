// A peer that breaks the protocol, for tests: it uses a messenger and sends any frames. Also the
// process that it attacks.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <random>

#include "tests/must.hpp"
#include "tests/transport/caf/helper.hpp"
#include "transport/caf/address.hpp"
#include "transport/caf/core.hpp"
#include "transport/caf/envelope.hpp"
#include "transport/caf/message_types.hpp"
#include "transport/caf/proof.hpp"
#include "transport/stream/messenger.hpp"

namespace simplescale::testing {

/// Sends any frames to one process, and collects the answers.
class Rogue {
 public:
  explicit Rogue(const std::string& address) : Rogue() {
    auto target = must(remote::parse_address(address));
    target_ = target->worker;
    connect();
  }
  /// Waits for a caller: has no connection until its hello.
  Rogue() {
    stream::MessengerOptions options;
    if (const auto host = other_host()) options.host = *host, options.network = true;
    auto made = stream::Messenger::create(
        options, {[this](const auto& link, stream::Incoming& message) { arrived(link, message); },
                  [this](const auto& link, auto, const std::string&) { ended += link == link_; }});
    REQUIRE(made.ok());
    messenger_ = made.take();
    caf::node_id::default_data::host_id_type host{};
    std::random_device random;
    for (auto& byte : host) byte = static_cast<uint8_t>(random());
    node = remote::node_to_bytes(caf::make_node_id(uint32_t{1}, host));
  }
  /// Opens another connection, for what is sent from now on.
  void connect() { link_ = must(messenger_->connect(target_)).take(); }
  /// For other processes' lookup().
  std::string address() const {
    return remote::to_text({remote::node_from_bytes(node), messenger_->address()});
  }

  void send_raw(const void* header, size_t header_bytes, const void* data, size_t bytes) {
    start_sending_raw(header, header_bytes, data, bytes);
    messenger_->flush(60'000);
  }
  void send(const remote::FrameHeader& header, kj::ArrayPtr<const capnp::word> words) {
    send_raw(&header, sizeof header, words.begin(), words.asBytes().size());
  }
  /// Does not wait until it is sent.
  void start_sending_raw(const void* header, size_t header_bytes, const void* data, size_t bytes) {
    auto copy = std::make_shared<std::vector<uint8_t>>(static_cast<const uint8_t*>(data),
                                                       static_cast<const uint8_t*>(data) + bytes);
    messenger_->send(link_, {static_cast<const uint8_t*>(header), header_bytes}, *copy, copy);
  }
  /// Sends the next message.
  void say(kj::ArrayPtr<const capnp::word> words) { send(next(), words); }
  void say(const std::function<void(wire::Envelope::Builder)>& fill) {
    say(remote::make_envelope(fill));
  }
  remote::FrameHeader next() { return {remote::FrameHeader::kMagic, 0, token, sequence++}; }

  remote::Words hello(uint32_t version, const std::string& run, uint8_t identity = 0) {
    remote::Side side = mine();
    side.node[0] = static_cast<uint8_t>(side.node[0] + identity);
    const remote::Proof proof = remote::prove(key, "", remote::Role::hello, side, {});
    return remote::make_envelope([&](wire::Envelope::Builder out) {
      auto hello = out.initHello();
      fill(hello, side, version, run, proof);
    });
  }
  /// The answer to a hello.
  remote::Words welcome(const remote::Proof& proof, const std::string& run = "test") {
    return remote::make_envelope([&](wire::Envelope::Builder out) {
      auto welcome = out.initWelcome();
      fill(welcome, mine(), wire::PROTOCOL_VERSION, run, proof);
    });
  }
  /// Progresses until the condition is true. Fails the test after a minute.
  void progress_until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      messenger_->progress();
    }
  }
  /// Waits for the next message to this process and returns its kind. From a hello on,
  /// it answers to the sender.
  std::string answer() {
    progress_until([&] { return !answers_.empty(); });
    auto [link, words] = kj::mv(answers_.front());
    answers_.erase(answers_.begin());
    capnp::FlatArrayMessageReader reader(words);
    auto envelope = reader.getRoot<wire::Envelope>();
    if (envelope.isHello()) {
      theirs = side_of(envelope.getHello());
      token = theirs.token, sequence = 0;
      link_ = link;
      return "hello";
    }
    if (envelope.isWelcome()) {
      theirs = side_of(envelope.getWelcome());
      if (token == 0) token = theirs.token;
      other = envelope.getWelcome().getOther();
      received_proof = bytes(envelope.getWelcome().getProof());
      return "welcome";
    }
    if (envelope.isProof()) {
      received_proof = bytes(envelope.getProof());
      return "proof";
    }
    if (envelope.isLookup()) {
      lookup = envelope.getLookup().getId();
      return "lookup";
    }
    if (envelope.isRefused()) return std::string("refused: ") + envelope.getRefused().cStr();
    if (envelope.isFound()) {
      actor = envelope.getFound().getActor();
      return "found";
    }
    if (envelope.isMessage()) {
      request = {envelope.getMessage().getSender(), envelope.getMessage().getId()};
      return "message";
    }
    return "other";
  }
  /// Its hello is answered with a welcome; its proof is still to come.
  void greet() {
    send({remote::FrameHeader::kMagic, 0, 0, 0}, hello(wire::PROTOCOL_VERSION, "test"));
    REQUIRE(answer() == "welcome");
  }
  void join() {
    greet();
    say(proof());
    wait_until_handled();
  }
  remote::Side mine() const { return {node, 77, nonce, messenger_->address()}; }
  remote::Words proof(const std::string& key = "") {
    const remote::Proof proof = remote::prove(key, "test", remote::Role::proof, mine(), theirs);
    return remote::make_envelope([&](wire::Envelope::Builder out) {
      out.setProof(kj::arrayPtr(proof.data(), proof.size()));
    });
  }
  /// Sends a lookup and waits for its answer. By then all earlier messages have been handled.
  void wait_until_handled() {
    say([](auto out) { out.initLookup().setName("server"); });
    while (answer() != "found") {
    }
  }
  remote::Words message(const std::function<void(wire::Body::Builder)>& fill, uint64_t id = 0) {
    return remote::make_envelope([&](wire::Envelope::Builder out) {
      auto message = out.initMessage();
      message.setReceiver(actor);
      message.setSender(sender);
      message.setId(id);
      fill(message.initBody());
    });
  }

  std::vector<uint8_t> node;
  remote::Nonce nonce = remote::random_nonce();
  uint64_t token = 0, sequence = 0, actor = 0;
  uint64_t lookup = 0;                    // id of the last lookup
  uint64_t other = 0;                     // of the last welcome
  uint64_t sender = 4711;                 // of the messages
  std::pair<uint64_t, uint64_t> request;  // sender and id of the last message
  std::string key;                        // for the proof in its hellos
  remote::Side theirs;                    // of the last hello or welcome
  int ended = 0;                          // 1: the other process has ended the connection
  std::vector<uint8_t> received_proof;    // the last proof, alone or in a welcome

 private:
  static std::vector<uint8_t> bytes(capnp::Data::Reader data) { return {data.begin(), data.end()}; }
  static remote::Side side_of(wire::Hello::Reader in) {
    remote::Side side{bytes(in.getNode()), in.getToken(), {}, bytes(in.getAddress())};
    REQUIRE(in.getNonce().size() == remote::kNonceBytes);
    std::ranges::copy(in.getNonce(), side.nonce.begin());
    return side;
  }
  static void fill(wire::Hello::Builder out, const remote::Side& side, uint32_t version,
                   const std::string& run, const remote::Proof& proof) {
    out.setVersion(version);
    out.setRunId(run);
    out.setNode(kj::arrayPtr(side.node.data(), side.node.size()));
    out.setToken(side.token);
    out.setAddress(kj::arrayPtr(side.address.data(), side.address.size()));
    if (side.nonce != remote::Nonce{})
      out.setNonce(kj::arrayPtr(side.nonce.data(), side.nonce.size()));
    out.setProof(kj::arrayPtr(proof.data(), proof.size()));
  }
  void arrived(const stream::LinkPtr& link, const stream::Incoming& message) {
    messenger_->trust(link, 1 << 20);
    if (!message.data) return;
    auto words = kj::heapArray<capnp::word>(message.bytes / 8);
    std::memcpy(words.asBytes().begin(), message.data.get(), words.asBytes().size());
    answers_.emplace_back(link, kj::mv(words));
  }
  std::vector<std::pair<stream::LinkPtr, remote::Words>> answers_;
  std::unique_ptr<stream::Messenger> messenger_;
  std::vector<uint8_t> target_;
  stream::LinkPtr link_;
};

/// The process under attack. Its actor "server" counts the Texts that reach it.
struct Victim : Process {
  explicit Victim(TransportOptions options = quiet()) : Process(options) {
    server = system->spawn([this](caf::event_based_actor* self) -> caf::behavior {
      self->set_default_handler(caf::drop);
      return {[this](const Text&) { ++texts; }, [](const Ping& ping) { return Pong{ping.id, ""}; }};
    });
    transport->publish("server", server);
  }
  ~Victim() { caf::anon_send_exit(server, caf::exit_reason::user_shutdown); }
  static TransportOptions quiet() {
    TransportOptions options;
    options.heartbeat_ms = 0;
    options.message_bytes_max = 1 << 20;
    return options;
  }
  /// The number of texts that the server has got. Waits until it has handled all that came before.
  int texts_handled() {
    caf::scoped_actor self(*system);
    self->request(server, caf::infinite, Ping{}).receive([](Pong&) {}, [](caf::error&) {});
    return texts;
  }
  caf::actor server;
  std::atomic<int> texts{0};
};

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

}  // namespace simplescale::testing
