#include "transport/caf/transport.hpp"

#include <pthread.h>

#include <caf/all.hpp>
#include <future>
#include <mutex>
#include <thread>

#include "transport/caf/codec.hpp"
#include "transport/caf/core.hpp"
#include "transport/caf/middleman.hpp"

namespace simplescale {

struct Transport::Impl {
  std::shared_ptr<remote::Core> core;
  std::string address;
  std::thread thread;
  std::mutex stopping;  // held while joining, so that concurrent calls of stop() all wait
};

Transport::Transport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Transport::~Transport() {
  stop();
}

void Transport::configure(caf::actor_system_config& config) {
  config.load<caf::net::middleman>();
  // CAF's default scheduler, work stealing, wakes up many times a second even when idle.
  if (!caf::get_if<caf::atom_value>(&config, "scheduler.policy")) {
    config.set("scheduler.policy", caf::atom("sharing"));
  }
}

Result<std::unique_ptr<Transport>> Transport::start(caf::actor_system& system,
                                                    TransportOptions options) {
  if (!system.node()) {
    return Status(Code::internal, "Transport::configure was not called for this actor system");
  }
  auto impl = std::make_unique<Impl>();
  impl->core = std::make_shared<remote::Core>(system, std::move(options));
  std::promise<Result<std::string>> ready;
  impl->thread = std::thread([core = impl->core, &ready, &system]() {
    pthread_setname_np(pthread_self(), "transport");
    CAF_SET_LOGGER_SYS(&system);
    system.thread_started();
    core->run([&](Result<std::string> address) { ready.set_value(std::move(address)); });
    system.thread_terminates();
  });
  auto address = ready.get_future().get();
  if (!address.ok()) {
    impl->thread.join();
    return address.status();
  }
  impl->address = address.take();
  return std::unique_ptr<Transport>(new Transport(std::move(impl)));
}

const std::string& Transport::address() const {
  return impl_->address;
}

void Transport::publish(const std::string& name, caf::actor actor) {
  impl_->core->publish(name, std::move(actor));
}

Result<caf::actor> Transport::lookup(const std::string& address, const std::string& name,
                                     int timeout_ms) {
  // The callback runs exactly once, even if the transport stops, so this wait ends.
  auto promise = std::make_shared<std::promise<Result<caf::actor>>>();
  auto result = promise->get_future();
  impl_->core->lookup(address, name, timeout_ms, [promise](Result<caf::actor> actor) {
    promise->set_value(std::move(actor));
  });
  return result.get();
}

void Transport::lookup(const std::string& address, const std::string& name, int timeout_ms,
                       OnLookup on_done) {
  impl_->core->lookup(address, name, timeout_ms, std::move(on_done));
}

std::optional<Reason> why_lost(const caf::error& reason) {
  if (reason != caf::exit_reason::remote_link_unreachable) return {};
  const caf::message& context = reason.context();  // of Core::disconnect()
  if (!context.match_elements<std::string, uint8_t, int64_t, std::string>())
    return in_words("it does not answer any more");
  return Reason{.text = context.get_as<std::string>(0),
                .kind = static_cast<ReasonKind>(context.get_as<uint8_t>(1)),
                .ms = context.get_as<int64_t>(2),
                .detail = context.get_as<std::string>(3)};
}

void Transport::on_peer_lost(OnPeerLost callback) {
  impl_->core->on_peer_lost(std::move(callback));
}

void Transport::peer_is_dead(const caf::node_id& node, const std::string& reason) {
  impl_->core->peer_is_dead(node, reason);
}

TransportCounters Transport::counters() const {
  return impl_->core->counters();
}

void Transport::inject(TransportFault fault) {
  impl_->core->inject(std::move(fault));
}

void Transport::stop() {
  std::lock_guard lock(impl_->stopping);
  impl_->core->stop();
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace simplescale
