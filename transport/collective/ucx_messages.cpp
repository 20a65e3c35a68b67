// The UCX worker's messages: sending and receiving. Runs on the worker's thread, except take_buffer
// and give_buffer, which are called under the lock.
#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "transport/collective/ucx_worker.hpp"

namespace simplescale::collective {

namespace {
constexpr size_t kIdleBuffersMax = 64;
}  // namespace

std::unique_ptr<std::byte[]> UcxWorker::take_buffer() {
  if (pool.empty()) return std::make_unique_for_overwrite<std::byte[]>(kUcxFragment);
  auto buffer = std::move(pool.back());
  pool.pop_back();
  return buffer;
}

void UcxWorker::give_buffer(std::unique_ptr<std::byte[]> buffer) {
  if (pool.size() < kIdleBuffersMax) pool.push_back(std::move(buffer));
}

// --- Sending ---

void UcxWorker::send(std::unique_ptr<Sending> sending) {
  sending->worker = this;
  const ucp_ep_h endpoint = connect(sending->channel->members[sending->header.to].address);
  if (!endpoint) return on_sent(std::move(sending), UCS_ERR_NOT_CONNECTED);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  // Flow control: a large piece stays at the sender (rendezvous) until the receiver reads it.
  param.flags = sending->large ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  param.user_data = sending.get();
  param.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    std::unique_ptr<Sending> done(static_cast<Sending*>(user_data));
    UcxWorker* worker = done->worker;
    worker->on_sent(std::move(done), status);
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint, kUcxMessageId, &sending->header, sizeof(UcxHeader),
                      sending->data.get(), sending->bytes, &param);
  if (UCS_PTR_IS_PTR(request))
    (void)sending.release();  // the callback takes it back
  else
    on_sent(std::move(sending), UCS_PTR_STATUS(request));
}

void UcxWorker::on_sent(std::unique_ptr<Sending> sending, ucs_status_t status) {
  if (sending->header.kind != UcxKind::data) return;  // hellos are repeated anyway
  {
    std::lock_guard guard(lock);
    auto& member = sending->channel->members[sending->header.to];
    if (status != UCS_OK) member.fail(lost(status));
    if (sending->large) {
      --member.queues[sending->queue].under_way;
      give_buffer(std::move(sending->data));
      commands.push_back([this, channel = sending->channel, to = sending->header.to] {
        send_waiting(channel, to);
      });
    }
  }
  ring();
}

// Sends the member's waiting fragments, up to kUcxWindow in flight per queue.
void UcxWorker::send_waiting(const UcxChannelPtr& channel, uint32_t to) {
  UcxMember& member = channel->members[to];
  for (const int queue : {1, 0}) {
    for (;;) {
      auto sending = std::make_unique<Sending>();
      UcxFragment fragment;
      {
        std::lock_guard guard(lock);
        auto& from = member.queues[queue];
        if (from.waiting.empty() || from.under_way >= kUcxWindow || !member.broken.ok()) break;
        fragment = from.waiting.front();
        from.waiting.pop_front();
        ++from.under_way;
        sending->data = take_buffer();
      }
      std::memcpy(sending->data.get(), fragment.data.data(), fragment.data.size());
      bool copied = false;
      {
        std::lock_guard guard(lock);
        const auto left = member.uncopied.find(fragment.ticket);
        copied = left != member.uncopied.end() && --left->second == 0;
        if (copied) member.uncopied.erase(left);
      }
      if (copied) ring();
      sending->header = UcxHeader::of(*channel, UcxKind::data, to, fragment.key, fragment.offset);
      sending->channel = channel;
      sending->bytes = fragment.data.size();
      sending->large = true;
      sending->queue = queue;
      send(std::move(sending));
    }
  }
}

// --- Receiving ---

ucs_status_t UcxWorker::on_message(const UcxHeader& header, void* data, size_t bytes,
                                   bool announced) {
  std::unique_lock guard(lock);
  const auto found = channels.find({header.generation, header.name_hash});
  if (found == channels.end()) return UCS_OK;  // of another generation: dropped
  const UcxChannelPtr channel = found->second;
  if (sodium_memcmp(header.secret.data(), channel->secret.data(), sizeof(Secret)) != 0)
    return UCS_OK;  // not of a member: dropped
  if (header.from >= channel->members.size() || static_cast<int>(header.to) != channel->rank)
    return UCS_OK;
  UcxMember& member = channel->members[header.from];
  if (member.address.empty()) return UCS_OK;
  switch (header.kind) {
    case UcxKind::hello: {
      const bool answer_only = member.acknowledged;
      commands.push_back([this, channel, from = header.from, answer_only] {
        send_control(UcxKind::acknowledge, channel, from);
        if (!answer_only) send_control(UcxKind::hello, channel, from);
      });
      return UCS_OK;
    }
    case UcxKind::acknowledge:
      member.acknowledged = true;
      break;
    case UcxKind::bye:
      member.fail("has left the communicator");
      break;
    case UcxKind::data: {
      if (!member.streams.contains(header.key) && member.streams.size() >= kUcxStreamsMax) {
        member.fail("has sent too many streams");
        break;
      }
      UcxStream& stream = member.streams[header.key];
      if (header.offset < stream.read) {
        member.fail("has repeated a piece");
        break;
      }
      if (announced) {
        if (bytes > kUcxFragment ||
            stream.announced.size() >= std::size(member.queues) * kUcxWindow) {
          member.fail("announced a piece that is too large, or too many");
          break;
        }
        stream.announced.push_back({header.offset, bytes, data});
        if (stream.expected)
          commands.push_back([this, channel, header] { fetch(channel, header.from, header.key); });
        return UCS_INPROGRESS;
      }
      auto piece = std::make_shared<UcxPiece>();
      piece->bytes = bytes;
      const size_t cost = piece->cost();
      if (member.early + cost > kUcxEarly) {
        member.fail("has sent too much before it was expected");
        break;
      }
      piece->data = std::make_unique_for_overwrite<std::byte[]>(bytes);
      piece->complete = true;
      std::memcpy(piece->data.get(), data, bytes);
      if (bytes > 0 && stream.pieces.emplace(header.offset, std::move(piece)).second)
        member.early += cost;
      break;
    }
    default:
      return UCS_OK;
  }
  guard.unlock();
  ring();
  return UCS_OK;
}

std::optional<UcxStream::Announced> UcxStream::take_next() {
  const auto first = std::ranges::min_element(announced, {}, &Announced::offset);
  if (!expected || first == announced.end()) return std::nullopt;
  if (pieces.size() >= kUcxHeld && first->offset != read) return std::nullopt;
  const Announced piece = *first;
  announced.erase(first);
  return piece;
}

void UcxWorker::fetch(const UcxChannelPtr& channel, uint32_t from, uint64_t key) {
  while (fetch_next(channel, from, key)) {
  }
}

/// False: there is nothing to fetch now. What end_channel() or forget() leaves, they release.
bool UcxWorker::fetch_next(const UcxChannelPtr& channel, uint32_t from, uint64_t key) {
  auto receiving = std::make_unique<Receiving>();
  UcxStream::Announced piece;
  {
    std::lock_guard guard(lock);
    auto& streams = channel->members[from].streams;
    const auto stream = streams.find(key);
    if (stream == streams.end()) return false;
    const auto next = stream->second.take_next();
    if (!next) return false;
    piece = *next;
    auto target = std::make_shared<UcxPiece>();
    target->data = take_buffer();
    target->bytes = piece.bytes;
    target->pooled = true;
    stream->second.pieces.emplace(piece.offset, target);
    *receiving = {this, channel, from, std::move(target)};
  }
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.user_data = receiving.get();
  param.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user_data) {
    std::unique_ptr<Receiving> done(static_cast<Receiving*>(user_data));
    UcxWorker* worker = done->worker;
    worker->on_received(std::move(done), status);
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(
      ucp_worker->handle(), piece.descriptor, receiving->piece->data.get(), piece.bytes, &param);
  if (UCS_PTR_IS_PTR(request))
    (void)receiving.release();
  else
    on_received(std::move(receiving), UCS_PTR_STATUS(request));
  return true;
}

void UcxWorker::on_received(std::unique_ptr<Receiving> receiving, ucs_status_t status) {
  {
    std::lock_guard guard(lock);
    auto& member = receiving->channel->members[receiving->from];
    if (status == UCS_OK)
      receiving->piece->complete = true;
    else
      member.fail(lost(status));
  }
  ring();
}

}  // namespace simplescale::collective
