// What an idle trainer process has ready on the GPUs of its node (supervision.warm_context), before it
// knows which of them it will use: contexts with their libraries and, if trainers use NCCL, NCCL's
// first communicator. The compute thread makes all calls.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <set>

#include "runtime/base/status.hpp"

namespace simplescale {

struct WarmGpuOptions {
  std::set<int> devices;  // none: nothing is made beforehand
  bool nccl = false;      // trainers use NCCL
  std::chrono::milliseconds nccl_timeout = std::chrono::minutes(1);  // for each device
};

class WarmGpus {
 public:
  struct Calls {
    std::function<Status(int device)> hold_context;
    std::function<void(int device)> drop_context;
    std::function<std::shared_future<Status>(int device, int timeout_ms)> prepare_nccl;
  };
  WarmGpus(WarmGpuOptions options, Calls calls);

  /// Ends the contexts on GPUs other than `devices`, except one on which NCCL is at work. The next
  /// make() makes those that are missing.
  void change(std::set<int> devices);
  /// Makes the contexts, then NCCL's communicators. What fails costs only a message. Returns early
  /// once is_needed() is true; NCCL may then still be at work.
  void make(const std::function<bool()>& is_needed);
  /// Ends the contexts on other devices; where NCCL is at work, after it, without waiting. If it is at
  /// work on this device, waits for it for some seconds: communicators had better not be made at once.
  void keep(int device);

 private:
  void make_contexts(const std::function<bool()>& is_needed);
  void prepare_nccl(const std::function<bool()>& is_needed);
  bool nccl_works_on(int device) const;

  WarmGpuOptions options_;
  const Calls calls_;
  std::set<int> contexts_;
  std::set<int> prepared_;  // where NCCL was started
  int nccl_device_ = -1;    // where NCCL is, or was last, at work; -1: nowhere
  std::shared_future<Status> nccl_;
};

}  // namespace simplescale
