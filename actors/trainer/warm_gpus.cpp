#include "actors/trainer/warm_gpus.hpp"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/observe/trace.hpp"

namespace simplescale {

WarmGpus::WarmGpus(WarmGpuOptions options, Calls calls)
    : options_(std::move(options)), calls_(std::move(calls)) {}

void WarmGpus::make(const std::function<bool()>& is_needed) {
  make_contexts(is_needed);
  if (options_.nccl) prepare_nccl(is_needed);
}

void WarmGpus::make_contexts(const std::function<bool()>& is_needed) {
  for (const int device : options_.devices) {
    if (contexts_.contains(device)) continue;
    if (is_needed()) return;
    const trace::Span span("make context", device);
    if (const Status made = calls_.hold_context(device); !made.ok()) {
      log::warn("no context beforehand: {}", made.message());
      continue;
    }
    log::info("made a context beforehand on GPU {}", device);
    contexts_.insert(device);
  }
}

void WarmGpus::prepare_nccl(const std::function<bool()>& is_needed) {
  constexpr std::chrono::milliseconds kCheckInterval(5);
  const auto timeout_ms = static_cast<int>(options_.nccl_timeout.count());
  for (const int device : contexts_) {
    if (prepared_.contains(device)) continue;
    if (is_needed() || nccl_works_on(nccl_device_)) return;
    const trace::Span span("prepare NCCL", device);
    const auto begun = std::chrono::steady_clock::now();
    prepared_.insert(nccl_device_ = device);
    nccl_ = calls_.prepare_nccl(device, timeout_ms);
    while (nccl_.wait_for(kCheckInterval) != std::future_status::ready) {
      if (is_needed()) return;
      if (std::chrono::steady_clock::now() - begun < options_.nccl_timeout) continue;
      // It would not be ready on other devices either.
      return log::warn("NCCL was not ready beforehand on GPU {} after {} ms", device, timeout_ms);
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
    if (const Status& made = nccl_.get(); made.ok())
      log::info("made NCCL ready beforehand on GPU {} in {:.0f} ms", device, took.count());
    else
      log::warn("NCCL is not ready beforehand on GPU {}: {}", device, made.message());
  }
}

void WarmGpus::change(std::set<int> devices) {
  options_.devices = std::move(devices);
  for (const int device : std::set(contexts_)) {
    if (options_.devices.contains(device) || nccl_works_on(device)) continue;
    contexts_.erase(device);
    prepared_.erase(device);
    calls_.drop_context(device);
  }
}

bool WarmGpus::nccl_works_on(int device) const {
  return device == nccl_device_ && nccl_.valid() &&
         nccl_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void WarmGpus::keep(int device) {
  // Several times what a first communicator takes.
  constexpr std::chrono::milliseconds kLongestWait(5'000);
  change({device});
  for (const int other : std::exchange(contexts_, {})) {
    if (other == device) continue;
    try {
      std::thread([other, done = nccl_, drop = calls_.drop_context] {
        done.wait();
        drop(other);
      }).detach();
    } catch (const std::system_error&) {
      // No more threads are allowed: the context stays until the process ends.
    }
  }
  if (device == nccl_device_ &&
      nccl_.wait_for(std::min(kLongestWait, options_.nccl_timeout)) != std::future_status::ready)
    log::warn("NCCL is still at work on GPU {}; the trainer does not wait for it", device);
}

}  // namespace simplescale
