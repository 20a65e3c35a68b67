// The worker of a data plane over encrypted TCP (transport/stream): one messenger and one thread,
// which connects, encrypts, decrypts and sends. It has connections of its own, so that collectives
// never delay the control plane.
//
// * Of two processes the one with the smaller id connects. The connection serves all channels of
//   the two; it proves that both have the run's key, and its server that it is the process with
//   this address. The end of a connection is the loss of its members, and a later generation
//   connects again.
// * The caller's memory is encrypted in place, one chunk at a time and all of it at once. So an
//   abort waits for at most one chunk, and what is left is not sent.
// * The chunks of the oldest operation are sent first, so that a later operation never blocks an
//   earlier one (COLLECTIVE-2 in operation.hpp).
//
//   COLLECTIVE-3  The bytes held for a member are bounded. A sender announces a stream, and sends
//                 as much of it as the receiver, which expects the stream, has granted. Small
//                 pieces may come early, up to a limit for each member. A piece that is not the
//                 next one of its stream, or that nobody granted, ends the member: it never stands
//                 for another piece.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/collective/remote.hpp"

namespace simplescale::collective {

class StreamWorker final : public RemoteWorker {
 public:
  /// key: of the run; see MessengerOptions. ring: called on the worker's thread when data arrived,
  /// was sent, or a member was lost.
  static Result<std::unique_ptr<StreamWorker>> create(const std::string& key,
                                                      std::function<void()> ring);
  ~StreamWorker() override;

  const WorkerAddress& address() const override;
  void set_spin_us(int spin_us) override;
  ChannelPtr attach(const ChannelSpec& spec) override;
  void detach(const ChannelPtr& channel, bool graceful) override;
  std::vector<Unjoined> unjoined(const ChannelPtr& channel) override;
  std::unique_ptr<Link> link(const ChannelPtr& channel, int peer, std::string peer_name) override;

  struct Impl;

 private:
  explicit StreamWorker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace simplescale::collective
