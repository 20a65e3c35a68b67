// Connections between the processes of a run. Between processes of one host they are Unix domain
// sockets, for this user only; between hosts TCP, encrypted (secure.hpp). So a run on one host opens
// no TCP socket. One thread owns a messenger and its links; others may only call signal().
//
//   STREAM-2  A process that has not proven that it has the key holds a bounded number of
//             descriptors and bytes here, for a bounded time. If there are too many such
//             connections, the address with most of them loses its oldest one, so that it keeps out
//             no other address. Without descriptors, this process stops accepting only until one is
//             free. What a connection without a proof sends makes no thread poll for more.
//   STREAM-3  The end of a process ends its connections at once: the kernel closes them.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/status.hpp"
#include "transport/stream/address.hpp"
#include "transport/stream/parser.hpp"
#include "transport/stream/secure.hpp"

namespace simplescale::stream {

using Clock = std::chrono::steady_clock;

/// Queued data of this many bytes is written without waiting for progress().
constexpr size_t kWriteAtOnce = 64 << 10;

/// One socket.
struct Wire {
  int fd = -1;
  uint64_t serial = 0;             // in epoll's events; a descriptor's number is used again
  std::unique_ptr<Secure> secure;  // null: a Unix socket
  bool connecting = false;
  bool waits_to_write = false;
  Buffer out;  // encrypted bytes to write, from out_at on
  size_t out_at = 0;
};

/// A connection with one other messenger.
class Link {
 public:
  /// True: the other process has connected to this one.
  bool accepted() const { return accepted_; }
  const std::string& name() const { return name_; }  // "10.0.0.7:4711", or "this host"
  bool is_open() const { return open_; }
  bool is_encrypted() const { return !wires_.empty() && wires_.front()->secure; }

 private:
  friend class Messenger;
  struct Outgoing {
    std::array<uint8_t, kPreludeBytes + kHeaderMax> head;
    size_t head_bytes;
    std::span<const uint8_t> data;
    std::shared_ptr<const void> owner;
    size_t at = 0;  // bytes already written or encrypted
  };
  std::string name_;
  std::string source_;   // accepted over TCP: whose it is when there are too many; see source_of()
  uint64_t number_ = 0;  // of an accepted one, in the order of accepting
  bool accepted_ = false, open_ = false, trusted_ = false, dirty_ = false;
  bool finishing_ = false, ended_ = false;
  Clock::time_point since_;
  Id to_{};  // the messenger of this host to which it connects
  // While it connects: one for each address of the other messenger. The first one that answers
  // stays.
  std::vector<std::unique_ptr<Wire>> wires_;
  std::deque<Outgoing> queue_;
  size_t queued_ = 0;  // bytes since the last write
  Parser parser_;
};
using LinkPtr = std::shared_ptr<Link>;

enum class End : uint8_t { lost, stranger, malformed };  // why a connection has ended

struct MessengerOptions {
  std::string key;       // the run's, 32 bytes; empty: no protection (in tests)
  bool network = false;  // listen on TCP, too
  Id host = this_host();
  int proof_ms = 5000;          // for an accepted connection, until trust()
  size_t untrusted_max = 1024;  // accepted connections before trust()
  size_t strangers_max = 256;   // of these over TCP, without a proof of the key
};

/// Called inside progress().
struct Handlers {
  std::function<void(const LinkPtr&, Incoming&)> on_message;
  /// At most once for a link, and not after close().
  std::function<void(const LinkPtr&, End, const std::string& why)> on_end;
};

class Messenger {
 public:
  static Result<std::unique_ptr<Messenger>> create(MessengerOptions options, Handlers handlers);
  ~Messenger();
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  /// For other messengers' connect(): see encode().
  const std::vector<uint8_t>& address() const { return address_; }

  /// Begins to connect. unavailable: refused at once. Later failures go to on_end.
  Result<LinkPtr> connect(std::span<const uint8_t> address);
  /// Queues a message. header: at most kHeaderMax bytes, copied. data: used until `owner` is
  /// released, which happens when the data is written or the link ends.
  void send(const LinkPtr& link, std::span<const uint8_t> header, std::span<const uint8_t> data,
            std::shared_ptr<const void> owner);
  /// The other process is a peer: its messages may have up to `limit` bytes (larger ones are
  /// skipped), and no deadline.
  void trust(const LinkPtr& link, size_t limit);
  /// False: the link is not open, or it has not written what was queued; try again after
  /// progress().
  bool takes_more(const LinkPtr& link) const;
  /// Writes what is queued. True: the next message, if it has kWriteAtOnce to Secure::kRecordMax
  /// bytes of data and the link is encrypted, is encrypted inside send(), which needs no owner.
  bool is_idle(const LinkPtr& link);
  /// Ends the link at once, without on_end.
  void close(const LinkPtr& link);
  /// Takes no more messages from the link; closes it once all is sent, or after a second.
  void finish(const LinkPtr& link);

  /// Handles what has arrived and writes what was queued. True if there was work, or may be more.
  /// Connections before trust() are no work: a caller that polls after work would poll for
  /// strangers.
  bool progress();
  /// True: nothing is queued that progress() could write, so the caller may wait for event_fd().
  bool arm() const { return dirty_.empty(); }
  int event_fd() const { return epoll_; }
  /// Makes event_fd() readable. Any thread.
  void signal();
  /// Progresses until all is written and all finished links are closed, at most timeout_ms.
  void flush(int timeout_ms);

 private:
  Messenger(MessengerOptions options, Handlers handlers)
      : options_(std::move(options)), handlers_(std::move(handlers)) {}
  Status listen_on_host();
  Status listen_on_network();
  Status listen_on(int fd, const char* what);
  bool watch(int fd, uint64_t serial, uint32_t events, int operation);
  // accepting (messenger.cpp)
  void accept_from(int listener);
  LinkPtr first_to_end(const std::function<bool(const LinkPtr&)>& counts) const;
  bool make_room();
  void add_accepted(int fd, bool network, const Endpoint& from);
  void limit_untrusted(bool strangers, size_t most);
  void tick();
  void start_ticking();
  Wire* add_wire(const LinkPtr& link, int fd, bool connecting);
  bool connect_on_host(const LinkPtr& link, std::string& why);
  void try_again();
  // reading and writing (link.cpp)
  void on_event(const LinkPtr& link, Wire& wire, uint32_t events);
  bool connected(const LinkPtr& link, Wire& wire);
  void read(const LinkPtr& link, Wire& wire);
  bool decrypt(const LinkPtr& link, Wire& wire, size_t bytes);
  bool deliver(const LinkPtr& link, std::span<const uint8_t> bytes);
  void write(const LinkPtr& link);
  bool write_plain(const LinkPtr& link, Wire& wire);
  bool write_sealed(const LinkPtr& link, Wire& wire);
  bool write_out(const LinkPtr& link, Wire& wire);
  void seal_next(Link& link, Wire& wire);
  void stop_writing(const LinkPtr& link, Wire& wire);
  void wait_to_write(Wire& wire, bool on);
  void choose(const LinkPtr& link, Wire& wire);
  void mark_dirty(const LinkPtr& link);
  void drop_wire(const LinkPtr& link, Wire& wire, End end, const std::string& why);
  void end(const LinkPtr& link, End end, const std::string& why);
  void release(const LinkPtr& link);

  const MessengerOptions options_;
  const Handlers handlers_;
  std::vector<uint8_t> address_;
  Id id_{};
  int epoll_ = -1, event_ = -1, timer_ = -1;
  std::vector<int> listeners_;  // [0]: Unix; [1]: TCP
  bool paused_ = false;         // no descriptors: the listeners wait for the next tick
  bool ticking_ = false;
  uint64_t last_serial_ = 16;  // smaller ones are listeners, event_ and timer_
  std::unordered_map<uint64_t, std::pair<LinkPtr, Wire*>> wires_;  // by serial
  std::map<uint64_t, LinkPtr> untrusted_;                          // accepted; oldest first
  std::vector<LinkPtr> finishing_;
  std::vector<LinkPtr> full_;   // to processes of this host whose backlog is full
  std::vector<LinkPtr> dirty_;  // have something to write
  Buffer input_, plain_, gathered_;
  Buffer sealed_;  // the memory of the last wire that had written all
};

}  // namespace simplescale::stream
