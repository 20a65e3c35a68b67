// Reading, writing and ending connections.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/stream/messenger.hpp"

namespace simplescale::stream {
namespace {

constexpr size_t kInputBytes = 256 << 10;
constexpr int kReadsMax = 4;  // of one connection in a round, so that no one starves the others
constexpr size_t kSealInPlace = 16 << 10;  // data that is encrypted without a copy
constexpr size_t kKept = 4 << 10;          // bytes that an idle connection keeps
constexpr size_t kPartsMax = 64;           // of one sendmsg()

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

// ---- sending ----------------------------------------------------------------------------------

void Messenger::send(const LinkPtr& link, std::span<const uint8_t> header,
                     std::span<const uint8_t> data, std::shared_ptr<const void> owner) {
  SS_ASSERT(header.size() <= kHeaderMax);
  if (link->ended_ || link->finishing_) return;
  Link::Outgoing& out = link->queue_.emplace_back();
  const uint32_t sizes[2] = {static_cast<uint32_t>(header.size()),
                             static_cast<uint32_t>(data.size())};
  std::memcpy(out.head.data(), sizes, kPreludeBytes);
  std::ranges::copy(header, out.head.begin() + kPreludeBytes);
  out.head_bytes = kPreludeBytes + header.size();
  out.data = data;
  out.owner = std::move(owner);
  link->queued_ += out.data.size();
  if (!link->open_ || link->wires_.front()->waits_to_write) return;
  // Small messages are written together at the end of the round, large ones at once.
  if (link->queued_ >= kWriteAtOnce) return write(link);
  mark_dirty(link);
}

void Messenger::mark_dirty(const LinkPtr& link) {
  if (!std::exchange(link->dirty_, true)) dirty_.push_back(link);
}

/// Writes as much as the socket takes. Does not call handlers.
void Messenger::write(const LinkPtr& link) {
  if (!link->open_) return;
  Wire& wire = *link->wires_.front();
  link->queued_ = 0;
  const bool all = wire.secure ? write_sealed(link, wire) : write_plain(link, wire);
  wait_to_write(wire, !all);
  if (all && link->finishing_) shutdown(wire.fd, SHUT_WR);  // the other process then closes
}

/// True if nothing is left to write, or the socket has failed.
bool Messenger::write_plain(const LinkPtr& link, Wire& wire) {
  auto& queue = link->queue_;
  while (!queue.empty()) {
    iovec parts[kPartsMax];
    size_t count = 0;
    for (auto at = queue.begin(); at != queue.end() && count + 2 <= kPartsMax; ++at) {
      const size_t of_head = std::min(at->at, at->head_bytes), of_data = at->at - of_head;
      if (of_head < at->head_bytes)
        parts[count++] = {at->head.data() + of_head, at->head_bytes - of_head};
      if (of_data < at->data.size())
        parts[count++] = {const_cast<uint8_t*>(at->data.data()) + of_data,
                          at->data.size() - of_data};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(wire.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (would_block(errno)) return false;
      stop_writing(link, wire);
      return true;
    }
    for (auto left = static_cast<size_t>(sent); !queue.empty();) {
      Link::Outgoing& first = queue.front();
      const size_t taken = std::min(left, first.head_bytes + first.data.size() - first.at);
      first.at += taken, left -= taken;
      if (first.at < first.head_bytes + first.data.size()) break;
      queue.pop_front();
    }
  }
  return true;
}

bool Messenger::write_sealed(const LinkPtr& link, Wire& wire) {
  if (wire.out.empty() && wire.out.capacity() < sealed_.capacity()) wire.out.swap(sealed_);
  for (;;) {
    if (!write_out(link, wire)) return false;
    if (link->queue_.empty() || link->ended_) break;
    seal_next(*link, wire);
  }
  if (wire.out.capacity() > kKept) sealed_ = std::exchange(wire.out, {});
  return true;
}

/// Encrypts small messages into one record, then the next large data, where it lies. So a message
/// of at most kRecordMax bytes of data that is the only one in the queue is encrypted as a whole.
void Messenger::seal_next(Link& link, Wire& wire) {
  auto& queue = link.queue_;
  const auto left_of_data = [](const Link::Outgoing& message) {
    return std::span(message.data).subspan(message.at - message.head_bytes);
  };
  bool large = false;
  gathered_.clear();
  while (!queue.empty() && gathered_.size() < Secure::kRecordMax) {
    Link::Outgoing& first = queue.front();
    const auto take = [&](std::span<const uint8_t> from) {
      from = from.first(std::min(from.size(), Secure::kRecordMax - gathered_.size()));
      append(gathered_, from);
      first.at += from.size();
    };
    if (first.at < first.head_bytes)
      take(std::span(first.head).first(first.head_bytes).subspan(first.at));
    if (first.at < first.head_bytes) break;
    large = left_of_data(first).size() >= kSealInPlace;
    if (large) break;
    take(left_of_data(first));
    if (first.at == first.head_bytes + first.data.size()) queue.pop_front();
  }
  if (!gathered_.empty()) wire.secure->seal(gathered_, wire.out);
  if (!large) return;
  Link::Outgoing& first = queue.front();
  const auto data = left_of_data(first);
  const size_t bytes = std::min(data.size(), Secure::kRecordMax);
  wire.secure->seal(data.first(bytes), wire.out);
  first.at += bytes;
  if (bytes == data.size()) queue.pop_front();
}

bool Messenger::takes_more(const LinkPtr& link) const {
  return link->open_ && !link->ended_ && !link->finishing_ && link->queued_ < kWriteAtOnce &&
         !link->wires_.front()->waits_to_write;
}

bool Messenger::is_idle(const LinkPtr& link) {
  if (!takes_more(link)) return false;
  if (!link->queue_.empty()) write(link);
  return link->queue_.empty() && takes_more(link);
}

/// Writes the wire's encrypted bytes. False: some are left.
bool Messenger::write_out(const LinkPtr& link, Wire& wire) {
  while (wire.out_at < wire.out.size()) {
    const ssize_t sent = ::send(wire.fd, wire.out.data() + wire.out_at,
                                wire.out.size() - wire.out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (would_block(errno)) return false;
      stop_writing(link, wire);
      break;
    }
    wire.out_at += static_cast<size_t>(sent);
  }
  wire.out.clear();
  wire.out_at = 0;
  return true;
}

/// The socket has failed. What the other process sent before is still read; then read() ends the
/// link.
void Messenger::stop_writing(const LinkPtr& link, Wire& wire) {
  if (link->open_) link->queue_.clear();  // else another wire may still carry it
  shutdown(wire.fd, SHUT_RDWR);
}

void Messenger::wait_to_write(Wire& wire, bool on) {
  if (wire.waits_to_write == on) return;
  wire.waits_to_write = on;
  watch(wire.fd, wire.serial, on ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
}

// ---- receiving --------------------------------------------------------------------------------

void Messenger::on_event(const LinkPtr& kept, Wire& wire, uint32_t events) {
  const LinkPtr link = kept;
  const uint64_t serial = wire.serial;
  if (wire.connecting && !connected(link, wire)) return;
  if (events & EPOLLOUT) {
    if (link->open_) {
      write(link);
    } else {
      wait_to_write(wire, !write_out(link, wire));
    }
  }
  if ((events & ~EPOLLOUT) && wires_.contains(serial)) read(link, wire);
}

/// The end of an attempt to connect. False: it failed, and the wire is gone.
bool Messenger::connected(const LinkPtr& link, Wire& wire) {
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(wire.fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error == EINPROGRESS) return false;
  wire.connecting = false;
  if (error == 0) return true;
  drop_wire(link, wire, End::lost, std::strerror(error));
  return false;
}

void Messenger::read(const LinkPtr& link, Wire& wire) {
  const uint64_t serial = wire.serial;
  if (input_.empty()) input_.resize(kInputBytes);
  for (int i = 0; i < kReadsMax; ++i) {
    const ssize_t got = recv(wire.fd, input_.data(), input_.size(), MSG_DONTWAIT);
    if (got < 0 && would_block(errno)) return;
    if (got <= 0)
      return drop_wire(link, wire, End::lost,
                       got < 0       ? std::strerror(errno)
                       : link->open_ ? "closed by the other process"
                                     : "closed before a proof of the run's key: it is of another "
                                       "run, or it has ended");
    const auto bytes = static_cast<size_t>(got);
    if (link->finishing_) continue;
    const bool good =
        wire.secure ? decrypt(link, wire, bytes) : deliver(link, std::span(input_).first(bytes));
    if (!wires_.contains(serial)) return;  // a handler has closed it
    if (!good) return;
    if (bytes < input_.size()) return;  // nothing more for now
  }
}

/// STREAM-1: what the other process sends is parsed only after it has proven that it has the key.
bool Messenger::decrypt(const LinkPtr& link, Wire& wire, size_t bytes) {
  plain_.clear();
  const bool was_proven = wire.secure->proven(),
             good = wire.secure->receive(std::span(input_).first(bytes), plain_, wire.out);
  if (!good) {
    drop_wire(link, wire, End::stranger,
              was_proven ? "bytes were changed on the way" : "it does not have this run's key");
    return false;
  }
  if (!link->open_ && wire.secure->proven()) choose(link, wire);
  if (wire.out_at < wire.out.size()) {
    if (link->open_) {
      mark_dirty(link);
    } else {
      wait_to_write(wire, !write_out(link, wire));
    }
  }
  return deliver(link, plain_);
}

/// The first wire with a proof stays. What it decrypted is delivered through it alone.
void Messenger::choose(const LinkPtr& link, Wire& wire) {
  link->open_ = true;
  for (auto& other : link->wires_) {
    if (other.get() == &wire) continue;
    wires_.erase(other->serial);
    ::close(other->fd);
  }
  auto mine = std::ranges::find_if(link->wires_, [&](auto& w) { return w.get() == &wire; });
  std::swap(*link->wires_.begin(), *mine);
  link->wires_.resize(1);
  mark_dirty(link);
}

bool Messenger::deliver(const LinkPtr& link, std::span<const uint8_t> bytes) {
  if (bytes.empty()) return true;
  const bool good = link->parser_.feed(bytes, [&](Incoming& message) {
    handlers_.on_message(link, message);
    return !link->ended_ && !link->finishing_;
  });
  if (good) return true;
  if (!link->ended_) end(link, End::malformed, "it sends no messages, or too large ones");
  return false;
}

// ---- ending -----------------------------------------------------------------------------------

void Messenger::trust(const LinkPtr& link, size_t limit) {
  link->parser_.limit = limit;
  link->parser_.skips = true;
  link->trusted_ = true;
  untrusted_.erase(link->number_);
}

/// Ends the link if this was its last wire.
void Messenger::drop_wire(const LinkPtr& link, Wire& wire, End why, const std::string& text) {
  if (link->wires_.size() == 1) return end(link, why, text);
  wires_.erase(wire.serial);
  ::close(wire.fd);
  std::erase_if(link->wires_, [&](auto& each) { return each.get() == &wire; });
}

void Messenger::end(const LinkPtr& kept, End why, const std::string& text) {
  const LinkPtr link = kept;
  if (link->ended_) return;
  const bool told = !link->finishing_;
  release(link);
  if (told) handlers_.on_end(link, why, text);
}

void Messenger::close(const LinkPtr& link) {
  release(LinkPtr(link));
}

void Messenger::finish(const LinkPtr& link) {
  if (link->ended_ || std::exchange(link->finishing_, true)) return;
  if (!link->open_) return close(link);
  link->since_ = Clock::now();
  untrusted_.erase(link->number_);
  finishing_.push_back(link);
  mark_dirty(link);
  start_ticking();
}

/// Frees everything that belongs to the link.
void Messenger::release(const LinkPtr& kept) {
  const LinkPtr link = kept;
  if (std::exchange(link->ended_, true)) return;
  for (auto& wire : link->wires_) {
    wires_.erase(wire->serial);
    ::close(wire->fd);
  }
  link->wires_.clear();
  std::erase(full_, link);
  link->queue_.clear();
  untrusted_.erase(link->number_);
  std::erase(finishing_, link);
}

}  // namespace simplescale::stream
