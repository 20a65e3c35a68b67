#include "actors/node/health.hpp"

#include <pthread.h>

#include <caf/all.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "runtime/observe/health.hpp"
#include "transport/caf/message_types.hpp"

namespace simplescale {

struct HealthReporter::Shared {
  std::mutex mutex;
  std::condition_variable wake;
  caf::actor node;  // null: the thread ends
};

HealthReporter::HealthReporter(caf::actor node, std::string name, std::string folder,
                               int64_t interval_ms)
    : shared_(std::make_shared<Shared>()) {
  shared_->node = std::move(node);
  std::thread([shared = shared_, name = std::move(name), folder = std::move(folder), interval_ms] {
    pthread_setname_np(pthread_self(), "health");
    HealthProbe probe(folder);
    std::unique_lock lock(shared->mutex);
    while (!shared->wake.wait_for(lock, std::chrono::milliseconds(interval_ms),
                                  [&] { return !shared->node; })) {
      lock.unlock();
      HostHealth h = probe.sample();
      NodeHealth report{
          name, h.cpu, h.memory, h.disk, h.received_mb_per_s, h.sent_mb_per_s, std::move(h.gpus)};
      lock.lock();
      if (shared->node) caf::anon_send(shared->node, std::move(report));
    }
  }).detach();
}

HealthReporter::~HealthReporter() {
  std::lock_guard lock(shared_->mutex);
  shared_->node = nullptr;
  shared_->wake.notify_all();
}

}  // namespace simplescale
