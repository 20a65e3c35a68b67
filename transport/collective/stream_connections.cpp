// The stream worker's connections: which process connects, hellos, and the end of members. Runs on
// the worker's thread.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/base/log.hpp"
#include "transport/collective/stream_worker.hpp"

namespace simplescale::collective {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatienceMax{8000};

}  // namespace

/// Null if the member's address is malformed.
StreamWorker::Connection* StreamWorker::connection_of(const StreamMember& member) {
  if (member.id == stream::Id{}) return nullptr;
  Connection& connection = connections[member.id];
  connection.opens = id < member.id;
  connection.address = member.address;
  return &connection;
}

Status StreamWorker::open(const stream::Id& to, Connection& connection) {
  SS_ASSIGN(connection.link, messenger->connect(connection.address));
  connection.asked.reset();
  by_link[connection.link.get()] = to;
  messenger->trust(connection.link, kStreamChunk);
  greet(connection.link);
  return {};
}

/// Tells the other process which one this is, or that this one is alive.
void StreamWorker::greet(const stream::LinkPtr& link) {
  StreamHeader header{};
  header.kind = StreamKind::greeting;
  messenger->send(link, {reinterpret_cast<const uint8_t*>(&header), sizeof header}, id, nullptr);
}

/// The first message of a process that has connected to this one.
void StreamWorker::on_greeting(const stream::LinkPtr& link, const stream::Incoming& message) {
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

void StreamWorker::send_hello(const StreamChannelPtr& channel, uint16_t to, Clock::time_point now) {
  StreamMember& member = channel->members[to];
  Connection* connection = connection_of(member);
  if (!connection) return;
  const bool opened = !connection->link || reopen_silent(member.id, *connection);
  if (!connection->link && connection->opens && now >= connection->retry) {
    connection->retry = now + kHelloInterval;
    if (const Status status = open(member.id, *connection); !status.ok())
      fail_members(member.id, "cannot be reached (" + status.message() + ")");
  }
  if (!connection->link || (!opened && !connection->link->is_open())) return;
  if (!connection->asked) connection->asked = now;
  send_control(StreamKind::hello, channel, to);
  if (!connection->link->is_open()) return;
  std::lock_guard guard(lock);
  member.unjoined = "is connected, but has not joined this generation";
}

/// Closes a connection over which nothing comes any more, though the other process answers each
/// hello: the network may have forgotten it. Not while a joined member depends on it.
bool StreamWorker::reopen_silent(const stream::Id& to, Connection& connection) {
  if (!connection.opens || !connection.asked ||
      Clock::now() - *connection.asked < connection.patience)
    return false;
  const auto joined = [&](const StreamMember& m) { return m.id == to && m.is_joined(); };
  if (!members_that(joined).empty()) return false;
  connection.patience = std::min(connection.patience * 2, kPatienceMax);
  by_link.erase(connection.link.get());
  messenger->close(connection.link);
  connection.link.reset();
  return true;
}

// --- Ending ---

void StreamWorker::on_end(const stream::LinkPtr& link, const std::string& why) {
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

void StreamWorker::fail_members(const stream::Id& of, const std::string& why) {
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

}  // namespace simplescale::collective
