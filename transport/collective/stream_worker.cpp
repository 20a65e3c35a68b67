// How the stream worker starts and stops, and a round of its thread.
#include "transport/collective/stream_worker.hpp"

#include <sodium.h>

namespace simplescale::collective {

namespace {
constexpr int kFlushTimeoutMs = 2000;
}  // namespace

StreamMember::StreamMember(const WorkerAddress& at) : RemoteMember(at) {
  unjoined = "has not connected";
  if (const auto decoded = stream::decode(at)) id = decoded->id;
}

Result<std::unique_ptr<StreamWorker>> StreamWorker::create(const std::string& key,
                                                           std::function<void()> ring) {
  auto worker = std::make_unique<StreamWorker>();
  worker->ring = std::move(ring);
  SS_RETURN_IF_ERROR(worker->begin([&] { return worker->start(key); }));
  return worker;
}

Status StreamWorker::start(const std::string& key) {
  stream::MessengerOptions options;
  options.key = key;
  options.network = true;
  // No other messenger has this host: every connection is encrypted, also inside one host.
  if (sodium_init() < 0) return Status(Code::internal, "libsodium cannot be initialised");
  randombytes_buf(options.host.data(), options.host.size());
  SS_ASSIGN(messenger, stream::Messenger::create(
                           std::move(options),
                           {[this](const stream::LinkPtr& link, stream::Incoming& message) {
                              on_message(link, message);
                            },
                            [this](const stream::LinkPtr& link, stream::End,
                                   const std::string& why) { on_end(link, why); }}));
  const auto address = stream::decode(messenger->address());
  SS_ASSERT(address);
  id = address->id;
  return {};
}

bool StreamWorker::progress() {
  bool busy = woken.exchange(false);
  busy |= messenger->progress();
  busy |= run_commands();
  busy |= pump();
  return busy;
}

void StreamWorker::flush() {
  messenger->flush(kFlushTimeoutMs);
}

void StreamWorker::clear(StreamMember& member) {
  member.outgoing.clear();
  member.incoming.clear();
  member.waiting = 0;
}

}  // namespace simplescale::collective
