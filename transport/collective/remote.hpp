// What connects a data plane to processes on other hosts: a worker with a thread of its own. Two
// implementations: StreamWorker (encrypted TCP) and UcxWorker (on trusted networks).
//
// A communicator has one channel in each worker that reaches at least one of its members. A member
// has joined once it has acknowledged this process's hello: the member has registered the channel,
// and the connection to it works. A message whose channel is not registered, for example of an
// older generation, is dropped, and so is one without the channel's secret: it is not of a member.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/collective/link.hpp"

namespace simplescale::collective {

/// Known to the members of one communicator, and in each of their messages.
using Secret = std::array<uint64_t, 2>;
/// A hash of the run's key, the generation, the communicator's name, and a random number of each
/// member in rank order. The members get these over the control plane. So an old process of the run,
/// which has the key, cannot make the secret of a communicator of which it is no member. key: see
/// DataPlaneOptions.
Secret make_secret(const std::string& key, uint64_t generation, uint64_t name_hash,
                   std::span<const uint64_t> members);

/// Where a worker's peers reach it.
using WorkerAddress = std::vector<uint8_t>;

struct ChannelSpec {
  uint64_t generation = 0;
  uint64_t name_hash = 0;
  Secret secret{};
  int rank = 0;
  std::vector<WorkerAddress> addresses;  ///< by rank; empty: not reached by this worker
};

/// One communicator's members. A worker defines what else it has.
struct Channel {
  explicit Channel(const ChannelSpec& spec)
      : generation(spec.generation),
        name_hash(spec.name_hash),
        secret(spec.secret),
        rank(spec.rank) {}
  virtual ~Channel() = default;
  const uint64_t generation, name_hash;
  const Secret secret;
  const int rank;
};
using ChannelPtr = std::shared_ptr<Channel>;

/// A member that has not joined yet.
struct Unjoined {
  int rank;
  std::string why;  ///< the end of a sentence that begins with the rank; or empty
};

/// Any thread may call its functions.
class RemoteWorker {
 public:
  virtual ~RemoteWorker() = default;
  virtual const WorkerAddress& address() const = 0;
  /// How long the thread polls before it sleeps.
  virtual void set_spin_us(int spin_us) = 0;

  /// Registers a channel and sends hellos to its members until each has acknowledged. Returns at
  /// once. The channel ends with detach().
  virtual ChannelPtr attach(const ChannelSpec& spec) = 0;
  /// Ends the channel; returns once the caller's memory is no longer used. Sends a bye to the
  /// members unless `graceful`.
  virtual void detach(const ChannelPtr& channel, bool graceful) = 0;
  virtual std::vector<Unjoined> unjoined(const ChannelPtr& channel) = 0;

  virtual std::unique_ptr<Link> link(const ChannelPtr& channel, int peer,
                                     std::string peer_name) = 0;
};

}  // namespace simplescale::collective
