// What an idle trainer process makes on GPUs beforehand, and what it ends: the calls and their order.
#include "actors/trainer/warm_gpus.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace simplescale;

namespace {

using Calls = std::vector<std::string>;

/// Notes the calls. A GPU's NCCL is ready at once, unless it is named in `slow`.
struct Machine {
  std::set<int> broken;  // no context can be made
  std::set<int> refusing;
  std::map<int, std::promise<Status>> slow;
  std::shared_ptr<std::promise<void>> dropped_slow = std::make_shared<std::promise<void>>();
  std::mutex mutex;
  Calls calls;

  void note(const std::string& call, int device) {
    const std::lock_guard lock(mutex);
    calls.push_back(call + " " + std::to_string(device));
  }
  /// The calls since the last one.
  Calls take() {
    const std::lock_guard lock(mutex);
    return std::exchange(calls, {});
  }
  WarmGpus::Calls functions() {
    return {[this](int device) {
              note("context", device);
              return broken.contains(device) ? Status(Code::unavailable, "no memory") : Status();
            },
            [this, dropped = dropped_slow](int device) {
              const bool late = slow.contains(device);
              note("drop", device);
              if (late) dropped->set_value();
            },
            [this](int device, int) -> std::shared_future<Status> {
              note("nccl", device);
              if (slow.contains(device)) return slow.at(device).get_future();
              std::promise<Status> now;
              now.set_value(refusing.contains(device) ? Status(Code::unavailable, "no network")
                                                      : Status());
              return now.get_future();
            }};
  }
};

const std::function<bool()> kIdle = [] { return false; };

}  // namespace

TEST_SUITE("warm gpus") {
  TEST_CASE("warm gpus: contexts first, then NCCL's; all but the chosen GPU's context end") {
    Machine machine;
    WarmGpus gpus({.devices = {0, 1}, .nccl = true}, machine.functions());
    gpus.make(kIdle);
    CHECK(machine.take() == Calls{"context 0", "context 1", "nccl 0", "nccl 1"});
    gpus.keep(1);
    gpus.keep(0);  // has no effect any more
    CHECK(machine.take() == Calls{"drop 0"});
  }

  TEST_CASE("warm gpus: other GPUs than the first ones are made ready, and what is ready stays") {
    Machine machine;
    WarmGpus gpus({.devices = {0, 1}, .nccl = true}, machine.functions());
    gpus.make(kIdle);
    machine.take();
    gpus.change({0, 1});
    gpus.make(kIdle);
    CHECK(machine.take().empty());
    gpus.change({1, 2});  // another run holds GPU 0
    CHECK(machine.take() == Calls{"drop 0"});
    gpus.make(kIdle);
    CHECK(machine.take() == Calls{"context 2", "nccl 2"});
    gpus.change({0, 2});
    gpus.make(kIdle);
    CHECK(machine.take() == Calls{"drop 1", "context 0", "nccl 0"});
    gpus.keep(2);
    CHECK(machine.take() == Calls{"drop 0"});
  }

  TEST_CASE("warm gpus: without NCCL, or without GPUs, it is not touched") {
    Machine machine;
    WarmGpus staged({.devices = {0}, .nccl = false}, machine.functions());
    staged.make(kIdle);
    CHECK(machine.take() == Calls{"context 0"});
    WarmGpus none({.devices = {}, .nccl = true}, machine.functions());
    none.make(kIdle);
    CHECK(machine.take().empty());
  }

  TEST_CASE("warm gpus: a failure costs a message, and the other GPUs are made ready") {
    Machine machine;
    machine.broken = {0};
    machine.refusing = {1};
    WarmGpus gpus({.devices = {0, 1, 2}, .nccl = true}, machine.functions());
    gpus.make(kIdle);
    CHECK(machine.take() == Calls{"context 0", "context 1", "context 2", "nccl 1", "nccl 2"});
    gpus.keep(2);
    CHECK(machine.take() == Calls{"drop 1"});
  }

  TEST_CASE("warm gpus: a process that is needed begins nothing more") {
    for (const size_t done : {0, 1, 2, 3}) {
      Machine machine;
      WarmGpus gpus({.devices = {0, 1}, .nccl = true}, machine.functions());
      gpus.make([&] { return machine.calls.size() == done; });
      CHECK(machine.calls.size() == done);
    }
  }

  TEST_CASE("warm gpus: an NCCL that hangs is given up after the timeout, on all GPUs") {
    Machine machine;
    machine.slow[0];
    WarmGpus gpus({.devices = {0, 1}, .nccl = true, .nccl_timeout = std::chrono::milliseconds(1)},
                  machine.functions());
    gpus.make(kIdle);
    CHECK(machine.take() == Calls{"context 0", "context 1", "nccl 0"});
    machine.slow.at(0).set_value(Status());
  }

  TEST_CASE("warm gpus: a context under NCCL that hangs stays until the process is needed") {
    Machine machine;
    machine.slow[0];
    WarmGpus gpus({.devices = {0}, .nccl = true, .nccl_timeout = std::chrono::milliseconds(1)},
                  machine.functions());
    gpus.make(kIdle);
    gpus.change({1});
    gpus.make(kIdle);  // NCCL is not asked of another GPU meanwhile
    CHECK(machine.take() == Calls{"context 0", "nccl 0", "context 1"});
    machine.slow.at(0).set_value(Status());
    gpus.change({1});
    CHECK(machine.take() == Calls{"drop 0"});
    gpus.make(kIdle);
    CHECK(machine.take() == Calls{"nccl 1"});
  }

  TEST_CASE(
      "warm gpus: a needed process leaves NCCL at work, and its GPU's context ends after it") {
    for (const int chosen : {0, 1}) {
      CAPTURE(chosen);
      Machine machine;
      machine.slow[0];
      WarmGpus gpus({.devices = {0, 1}, .nccl = true, .nccl_timeout = std::chrono::milliseconds(1)},
                    machine.functions());
      gpus.make([&] { return machine.calls.size() == 3; });  // while NCCL is at work on GPU 0
      CHECK(machine.take() == Calls{"context 0", "context 1", "nccl 0"});
      gpus.keep(chosen);
      CHECK(machine.take() == (chosen == 0 ? Calls{"drop 1"} : Calls{}));
      machine.slow.at(0).set_value(Status());
      if (chosen == 0) continue;
      machine.dropped_slow->get_future().wait();
      CHECK(machine.take() == Calls{"drop 0"});
    }
  }

  TEST_CASE("warm gpus: NCCL that is at work on the chosen GPU is waited for") {
    Machine machine;
    machine.slow[0];
    machine.slow[1];  // its promise is not used: that says when the other context ends
    WarmGpus gpus({.devices = {0, 1}, .nccl = true}, machine.functions());
    gpus.make([&] { return machine.calls.size() == 3; });
    std::atomic<bool> done = false;
    std::thread nccl([&] {
      machine.dropped_slow->get_future().wait();
      done = true;
      machine.slow.at(0).set_value(Status());
    });
    gpus.keep(0);
    CHECK(done);
    nccl.join();
  }
}
