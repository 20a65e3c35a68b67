// Data that arrives on the control plane: envelopes with every kind of message, and the encoded
// state of a supervisor.
#include <capnp/serialize.h>

#include <cstring>

#include "actors/supervisor/state_codec.hpp"
#include "tests/fuzz/driver.hpp"
#include "transport/caf/codec.hpp"
#include "transport/caf/envelope.hpp"

using namespace simplescale;

static void run(const uint8_t* data, size_t bytes) {
  (void)decode({data, bytes});
  auto words = kj::heapArray<capnp::word>(bytes / sizeof(capnp::word));
  std::memcpy(words.begin(), data, words.asBytes().size());
  try {
    capnp::FlatArrayMessageReader reader(words, remote::reader_options(words.size()));
    auto envelope = reader.getRoot<wire::Envelope>();
    caf::message content;
    if (envelope.isMessage()) remote::read_body(envelope.getMessage().getBody(), content);
    if (envelope.isDown()) remote::read_error(envelope.getDown().getReason());
  } catch (const kj::Exception&) {
  }
}

namespace {

std::string envelope(const std::function<void(wire::Envelope::Builder)>& fill) {
  auto words = remote::make_envelope(fill);
  auto bytes = words.asBytes();
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
}

}  // namespace

static std::vector<std::string> seeds() {
  std::vector<std::string> made;
  auto body = [&](const std::function<void(wire::Body::Builder)>& fill) {
    made.push_back(envelope([&](wire::Envelope::Builder out) {
      auto message = out.initMessage();
      message.setSender(1), message.setReceiver(2);
      fill(message.initBody());
    }));
  };
  body([](wire::Body::Builder out) {
    auto x = out.initStepDone();
    x.setTrainer("n1.0");
    x.initSamples(6).set(0, 7);
  });
  body([](wire::Body::Builder out) {
    auto x = out.initJoinGeneration();
    x.setSource(wire::JoinSource::MEMORY);
  });
  body([](wire::Body::Builder out) {
    auto x = out.initTrainerIdle();
    x.setFault(wire::Fault::BAD_TOKENS);
    x.initReason().setKind(wire::ReasonKind::RESTARTED);
  });
  body([](wire::Body::Builder out) {
    auto copies = out.initCopyToPeers().initCopies(3);
    for (auto copy : copies) copy.setNode("n2");
  });
  body([](wire::Body::Builder out) {
    auto gpus = out.initNodeHealth().initGpus(2);
    gpus[0].setName("gpu");
  });
  body([](wire::Body::Builder out) { out.initReplica().setState(kj::StringPtr("x").asBytes()); });
  body([](wire::Body::Builder out) { out.initCommand().initWords(2).set(0, "status"); });
  made.push_back(
      envelope([](wire::Envelope::Builder out) { out.initDown().initReason().setText("why"); }));
  SupervisorState state;
  state.job = job::make_state({2, 2, 1, 2, 1}, {"n0", "n1", "n2"});
  state.job.layout.domains = {{"n0"}, {"n1"}};
  const auto bytes = encode(state);
  made.emplace_back(bytes.begin(), bytes.end());
  return made;
}

static const FuzzTarget target("message", run, seeds);
