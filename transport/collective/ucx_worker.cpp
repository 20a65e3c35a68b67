// How the UCX worker starts and stops, a round of its thread, and its connections.
#include "transport/collective/ucx_worker.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/base/log.hpp"

namespace simplescale::collective {

namespace {
constexpr std::chrono::milliseconds kFlushTimeout{2000};
}  // namespace

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(std::function<void()> ring,
                                                     const std::vector<std::string>& interfaces) {
  SS_ASSIGN(const ucx::Devices devices, ucx::devices_of(interfaces));
  auto worker = std::make_unique<UcxWorker>();
  worker->ring = std::move(ring);
  SS_RETURN_IF_ERROR(worker->begin([&] { return worker->start(devices); }));
  return worker;
}

Status UcxWorker::start(const ucx::Devices& devices) {
  // Members on this host share memory without UCX, and over UCX's shared memory a peer's death
  // would go unnoticed.
  SS_ASSIGN(context, ucx::Context::create(UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, "^sm", &devices));
  SS_ASSIGN(ucp_worker, ucx::Worker::create(*context));
  const auto callback = [](void* self, const void* head, size_t head_bytes, void* data,
                           size_t bytes, const ucp_am_recv_param_t* param) -> ucs_status_t {
    UcxHeader header;
    if (head_bytes != sizeof(header)) return UCS_OK;
    std::memcpy(&header, head, sizeof(header));
    if (header.magic != kUcxMagic) return UCS_OK;
    const bool announced = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    return static_cast<UcxWorker*>(self)->on_message(header, data, bytes, announced);
  };
  return ucp_worker->on_message(kUcxMessageId, callback, this, UCP_AM_FLAG_WHOLE_MSG);
}

bool UcxWorker::progress() {
  bool busy = false;
  for (int i = 0; i < 32 && ucp_worker->progress(); ++i) busy = true;
  busy |= run_commands();
  busy |= close_failed();
  return busy;
}

bool UcxWorker::arm() {
  const auto armed = ucp_worker->arm();
  return !armed.ok() || *armed;
}

void UcxWorker::clear(UcxMember& member) {
  for (auto& queue : member.queues) queue.waiting.clear();
  for (auto& [key, stream] : member.streams)
    for (const auto& piece : std::exchange(stream.announced, {}))
      ucp_am_data_release(ucp_worker->handle(), piece.descriptor);
}

void UcxWorker::flush() {
  ucp_request_param_t param{};
  const ucs_status_ptr_t flush = ucp_worker_flush_nbx(ucp_worker->handle(), &param);
  if (UCS_PTR_IS_PTR(flush)) {
    const auto limit = Clock::now() + kFlushTimeout;
    while (ucp_request_check_status(flush) == UCS_INPROGRESS && Clock::now() < limit)
      if (!ucp_worker->progress()) std::this_thread::yield();
    ucp_request_free(flush);
  }
  while (!connections.empty()) {
    connections.begin()->second.endpoint.reset();
    connections.erase(connections.begin());
  }
}

// --- Connections ---

ucp_ep_h UcxWorker::connect(const WorkerAddress& address) {
  auto& connection = connections[address];
  if (connection.failed != UCS_OK) return nullptr;
  if (!connection.endpoint) {
    auto endpoint =
        ucx::Endpoint::create(*ucp_worker, address.data(),
                              [&connection](ucs_status_t status) { connection.failed = status; });
    if (!endpoint.ok()) {
      log::debug("data plane: {}", endpoint.status().message());
      connections.erase(address);
      return nullptr;
    }
    connection.endpoint = endpoint.take();
  }
  return connection.endpoint->handle();
}

void UcxWorker::fail_members(const WorkerAddress& address, const std::string& why) {
  std::lock_guard guard(lock);
  for (auto& [id, channel] : channels)
    for (auto& member : channel->members)
      if (member.acknowledged && member.address == address) member.fail(why);
}

// Closes failed connections one at a time: closing progresses UCX, whose callbacks may mark further
// connections as failed.
bool UcxWorker::close_failed() {
  bool any = false;
  for (;;) {
    const auto found = std::find_if(connections.begin(), connections.end(),
                                    [](const auto& c) { return c.second.failed != UCS_OK; });
    if (found == connections.end()) break;
    const std::string why = lost(found->second.failed);
    const WorkerAddress address = found->first;
    log::debug("data plane: a connection {}", why);
    found->second.endpoint.reset();
    connections.erase(found);
    fail_members(address, why);
    any = true;
  }
  if (any) ring();
  return any;
}

void UcxWorker::send_control(UcxKind kind, const UcxChannelPtr& channel, uint32_t to) {
  auto sending = std::make_unique<Sending>();
  sending->header = UcxHeader::of(*channel, kind, to);
  sending->channel = channel;
  send(std::move(sending));
}

}  // namespace simplescale::collective
