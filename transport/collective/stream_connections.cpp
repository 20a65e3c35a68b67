// The stream worker's connections: which process connects, hellos, and the end of members. Runs on
// the worker's thread.
#include <algorithm>
#include <cstring>

#include "runtime/base/log.hpp"
#include "transport/collective/stream_impl.hpp"

namespace simplescale::collective {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHelloInterval{50};
constexpr milliseconds kPatienceMax{8000};

}  // namespace

/// Null if the member's address is malformed.
StreamWorker::Impl::Connection* StreamWorker::Impl::connection_of(const StreamMember& member) {
  if (member.id == stream::Id{}) return nullptr;
  Connection& connection = connections[member.id];
  connection.opens = id < member.id;
  connection.address = member.address;
  return &connection;
}

Status StreamWorker::Impl::open(const stream::Id& to, Connection& connection) {
  SS_ASSIGN(connection.link, messenger->connect(connection.address));
  connection.asked.reset();
  by_link[connection.link.get()] = to;
  messenger->trust(connection.link, kStreamChunk);
  greet(connection.link);
  return {};
}

/// Tells the other process which one this is, or that this one is alive.
void StreamWorker::Impl::greet(const stream::LinkPtr& link) {
  StreamHeader header{};
  header.kind = StreamKind::greeting;
  messenger->send(link, {reinterpret_cast<const uint8_t*>(&header), sizeof header}, id, nullptr);
}

/// The first message of a process that has connected to this one.
void StreamWorker::Impl::on_greeting(const stream::LinkPtr& link, const stream::Incoming& message) {
  stream::Id from;
  // A connection inside this host proves no key.
  if (!link->accepted() || !link->is_encrypted() || message.bytes != from.size())
    return messenger->close(link);
  std::memcpy(from.data(), message.data.get(), from.size());
  if (!(from < id)) return messenger->close(link);  // this process connects to that one
  Connection& connection = connections[from];
  if (connection.link) {
    by_link.erase(connection.link.get());
    messenger->close(connection.link);
    fail_members(from, "has connected again");
  }
  connection.link = link;
  connection.asked.reset();
  by_link[link.get()] = from;
  messenger->trust(link, kStreamChunk);
  next_hello = Clock::now();
}

// --- Joining ---

void StreamWorker::Impl::send_hellos() {
  const auto now = Clock::now();
  if (now < next_hello) return;
  next_hello = now + kHelloInterval;
  std::vector<Target> unjoined;
  {
    std::lock_guard guard(lock);
    for (auto& [name, channel] : channels)
      for (size_t i = 0; i < channel->members.size(); ++i)
        if (const auto& m = channel->members[i];
            !m.address.empty() && !m.acknowledged && m.broken.ok())
          unjoined.emplace_back(channel, static_cast<uint16_t>(i));
  }
  if (unjoined.empty()) next_hello = Clock::time_point::max();
  for (const auto& [channel, to] : unjoined) {
    const StreamMember& member = channel->members[to];  // its address and id never change
    Connection* connection = connection_of(member);
    if (!connection) continue;
    const bool opened = !connection->link || reopen_silent(member.id, *connection);
    if (!connection->link && connection->opens && now >= connection->retry) {
      connection->retry = now + kHelloInterval;
      if (const Status status = open(member.id, *connection); !status.ok())
        fail_members(member.id, "cannot be reached (" + status.message() + ")");
    }
    if (!connection->link || (!opened && !connection->link->is_open())) continue;
    if (!connection->asked) connection->asked = now;
    send_control(StreamKind::hello, channel, to);
    if (!connection->link->is_open()) continue;
    std::lock_guard guard(lock);
    channel->members[to].unjoined = "is connected, but has not joined this generation";
  }
}

/// Closes a connection over which nothing comes any more, though the other process answers each
/// hello: the network may have forgotten it. Not while a joined member depends on it.
bool StreamWorker::Impl::reopen_silent(const stream::Id& to, Connection& connection) {
  if (!connection.opens || !connection.asked ||
      Clock::now() - *connection.asked < connection.patience || has_acknowledged(to))
    return false;
  connection.patience = std::min(connection.patience * 2, kPatienceMax);
  by_link.erase(connection.link.get());
  messenger->close(connection.link);
  connection.link.reset();
  return true;
}

bool StreamWorker::Impl::has_acknowledged(const stream::Id& of) {
  std::lock_guard guard(lock);
  return std::ranges::any_of(channels, [&](const auto& entry) {
    return std::ranges::any_of(entry.second->members, [&](const StreamMember& m) {
      return m.acknowledged && m.broken.ok() && m.id == of;
    });
  });
}

// --- Ending ---

void StreamWorker::Impl::on_end(const stream::LinkPtr& link, const std::string& why) {
  const auto found = by_link.find(link.get());
  if (found == by_link.end()) return;  // it has sent no greeting
  const stream::Id of = found->second;
  by_link.erase(found);
  log::debug("data plane: the connection with {} has ended: {}", link->name(), why);
  Connection& connection = connections[of];
  connection.link.reset();
  connection.retry = Clock::now() + kHelloInterval;
  fail_members(of, "is lost (" + why + ")");
}

void StreamWorker::Impl::fail_members(const stream::Id& of, const std::string& why) {
  {
    std::lock_guard guard(lock);
    for (auto& [name, channel] : channels)
      for (auto& member : channel->members) {
        if (member.id != of) continue;
        member.unjoined = why;
        if (member.acknowledged) member.fail(why);
      }
  }
  ring();
}

void StreamWorker::Impl::end_channel(const StreamChannelPtr& channel, bool graceful) {
  std::vector<uint16_t> joined;
  {
    std::lock_guard guard(lock);
    const auto found = channels.find({channel->generation, channel->name_hash});
    if (found != channels.end() && found->second == channel) channels.erase(found);
    for (size_t i = 0; i < channel->members.size(); ++i) {
      StreamMember& member = channel->members[i];
      member.outgoing.clear();  // it names the caller's memory
      member.incoming.clear();
      member.waiting = 0;
      if (member.acknowledged && member.broken.ok()) joined.push_back(static_cast<uint16_t>(i));
    }
  }
  if (graceful) return;
  for (const uint16_t to : joined) send_control(StreamKind::bye, channel, to);
}

}  // namespace simplescale::collective
