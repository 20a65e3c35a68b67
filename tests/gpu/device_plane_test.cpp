// The device plane over a fake CUDA and NCCL, through the functions that its library exports: the
// choice of a GPU, communicators of both transports, and aborts. Ranks are threads.
#include "transport/nccl/device_plane.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

#include "tests/gpu/fake_gpu.hpp"
#include "tests/must.hpp"

using namespace simplescale;

extern "C" const NcclLibrary* simplescale_nccl_library();

namespace {

const NcclLibrary& library = *simplescale_nccl_library();
using Planes = std::array<std::unique_ptr<DataPlane>, 2>;
using Joined = std::array<Result<std::unique_ptr<Collective>>, 2>;

/// The GPUs of this machine while it lives.
struct Gpus {
  explicit Gpus(std::vector<int> majors) { fake_gpu::set_gpus(std::move(majors)); }
  ~Gpus() { fake_gpu::set_gpus({9}); }
};

/// Two trainers' planes on one host.
Planes planes(DeviceTransport first, DeviceTransport second, bool native_sums = false) {
  static int count = 0;
  Planes made;
  for (int i = 0; i < 2; ++i) {
    auto host = must(DataPlane::create(
        {.shm_prefix = "ss-test-plane-" + std::to_string(getpid()) + "-" + std::to_string(count++),
         .arena_bytes = size_t{8} << 20,
         .network = false}));
    made[static_cast<size_t>(i)] =
        must(library.make_device_plane(host.take(), {.device_index = i,
                                                     .transport = i == 0 ? first : second,
                                                     .native_sums = native_sums}))
            .take();
  }
  return made;
}

/// Both ranks join.
Joined join(Planes& planes, uint64_t generation, bool host_memory = false,
            bool separate_gathers = false, int timeout_ms = 60'000) {
  Joined joined{Status(Code::internal, ""), Status(Code::internal, "")};
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const auto at = static_cast<size_t>(rank);
      joined[at] = planes[at]->join({.generation = generation,
                                     .name = "shard",
                                     .rank = rank,
                                     .members = {planes[0]->address(), planes[1]->address()},
                                     .timeout_ms = timeout_ms,
                                     .host_memory = host_memory,
                                     .separate_gathers = separate_gathers});
    });
  threads.clear();
  return joined;
}

/// The sum of ranks 0 and 1, which contribute 1 and 2. native: it is NCCL's own.
void check_sum(Joined& joined, bool native = false) {
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    INFO(joined[rank].status().message());
    REQUIRE(joined[rank].ok());
  }
  for (size_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      Collective& each = **joined[rank];
      const auto memory = each.allocate(64 * sizeof(float));
      CHECK(memory.ok());
      if (!memory.ok()) return;
      auto* values = static_cast<float*>(*memory);
      std::fill_n(values, 64, static_cast<float>(rank + 1));
      std::vector<std::string> calls;
      fake_gpu::record(&calls);
      CHECK(each.all_reduce(values, 64, DType::f32)->wait().ok());
      fake_gpu::record(nullptr);
      CHECK(values[63] == 3);
      CHECK(std::ranges::count(calls, "nccl: all_reduce 256 bytes") == (native ? 1 : 0));
    });
}

}  // namespace

TEST_SUITE("device plane") {
  TEST_CASE("device plane: trainers get a GPU each, or share the GPUs evenly through host memory") {
    const Gpus gpus({9, 8});
    for (int i = 0; i < 2; ++i) {
      const auto own = must(library.choose_device(i, 2));
      CHECK(own->device_index == i);
      CHECK(own->transport == DeviceTransport::nccl);
      CHECK_FALSE(own->shared);
      CHECK(own->memory_bytes == uint64_t{80} << 30);
      REQUIRE(own->uuids.size() == 2);
      CHECK(own->uuids[0] == "GPU-01000000-0000-0000-0000-000000000000");
      CHECK(own->uuids[1] != own->uuids[0]);
      CHECK(own->addresses == std::vector<std::string>{"0000:1a:00.0", "0000:2a:00.0"});
    }
    for (int i = 0; i < 3; ++i) {
      const auto own = must(library.choose_device(i, 3));
      CHECK(own->device_index == i % 2);
      CHECK(own->transport == DeviceTransport::staged);
      CHECK(own->shared);
      CHECK(own->memory_bytes == uint64_t{40} << 30);
    }
    setenv(kNcclOnSharedGpu, "1", 1);
    const auto apart = library.choose_device(2, 3);
    unsetenv(kNcclOnSharedGpu);
    REQUIRE(apart.ok());
    CHECK(apart->transport == DeviceTransport::nccl);
    CHECK(apart->shared);
  }

  TEST_CASE("device plane: trainers on slices of GPUs use host memory, as NCCL needs whole ones") {
    const Gpus gpus({9, 9});
    fake_gpu::make_slices(true);
    const auto own = library.choose_device(1, 2);
    setenv(kNcclOnSharedGpu, "1", 1);
    const auto apart = library.choose_device(1, 2);
    unsetenv(kNcclOnSharedGpu);
    fake_gpu::make_slices(false);
    REQUIRE(own.ok());
    CHECK(own->device_index == 1);
    CHECK(own->transport == DeviceTransport::staged);
    CHECK_FALSE(own->shared);
    CHECK(own->uuids[1] == "MIG-02000000-0000-0000-0000-000000000000");
    CHECK(own->addresses == std::vector<std::string>{"0000:1a:00.0", "0000:1a:00.0"});
    REQUIRE(apart.ok());
    CHECK(apart->transport == DeviceTransport::nccl);
  }

  TEST_CASE("device plane: an old GPU, or none, is refused with a sentence") {
    {
      const Gpus gpus({9, 7});
      CHECK(library.choose_device(0, 2)->uuids[1].empty());
      const Status old = library.choose_device(1, 2).status();
      CHECK(says(old, Code::unavailable, "older than Ampere"));
      CHECK(old.message().find("CUDA_VISIBLE_DEVICES") != std::string::npos);
    }
    const Gpus none({});
    const Status status = library.choose_device(0, 1).status();
    CHECK(status.code() == Code::unavailable);
    CHECK(status.message().starts_with("no GPU can be used: "));
    fake_gpu::set_driver(0);
    CHECK(library.choose_device(0, 1).status().message() ==
          "no GPU can be used: this host has no NVIDIA driver");
    fake_gpu::set_driver(12040);
    const Status outdated = library.choose_device(0, 1).status();
    fake_gpu::set_driver(CUDART_VERSION);
    CHECK(has(outdated, "knows CUDA 12.4, and the program needs 13."));
  }

  TEST_CASE("device plane: both transports give sums, and host memory joins across them") {
    for (const DeviceTransport transport : {DeviceTransport::nccl, DeviceTransport::staged}) {
      Planes both = planes(transport, transport);
      Joined joined = join(both, 1);
      check_sum(joined);
    }
    Planes native = planes(DeviceTransport::nccl, DeviceTransport::nccl, true);
    Joined with_native_sums = join(native, 1);
    check_sum(with_native_sums, true);
    Planes mixed = planes(DeviceTransport::nccl, DeviceTransport::staged);
    Joined joined = join(mixed, 1, true);
    check_sum(joined);
  }

  TEST_CASE(
      "device plane: separate gathers and sums begin in one order and may be waited for in "
      "another") {
    Planes both = planes(DeviceTransport::nccl, DeviceTransport::nccl, true);
    Joined joined = join(both, 1, false, true);
    for (const auto& each : joined) REQUIRE(each.ok());
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        Collective& each = **joined[rank];
        const auto memory = each.allocate(3 * sizeof(float));
        CHECK(memory.ok());
        if (!memory.ok()) return;
        auto* values = static_cast<float*>(*memory);
        values[rank] = values[2] = static_cast<float>(rank + 1);
        const WorkPtr sum = each.all_reduce(values + 2, 1, DType::f32);
        CHECK(each.all_gather(values + rank, values, 1, DType::f32)->wait().ok());
        CHECK(sum->wait().ok());
        CHECK(values[0] == 1);
        CHECK(values[1] == 2);
        CHECK(values[2] == 3);
      });
  }

  TEST_CASE("device plane: with native sums NCCL knows all buffers, and trains without, too") {
    Planes native = planes(DeviceTransport::nccl, DeviceTransport::nccl, true),
           ordered = planes(DeviceTransport::nccl, DeviceTransport::nccl);
    REQUIRE(fake_gpu::registered_buffers() == 0);
    {
      Joined joined = join(native, 1, false, true);
      const size_t connected = fake_gpu::registered_buffers();
      CHECK(connected >= 4);  // those of connecting: two communicators of two ranks
      check_sum(joined, true);
      CHECK(fake_gpu::registered_buffers() == connected + 4);
      CHECK(fake_gpu::shared_memory_blocks() >= 4);
    }
    CHECK(fake_gpu::registered_buffers() == 0);
    CHECK(fake_gpu::shared_memory_blocks() == 0);
    fake_gpu::refuse_buffers(true);
    {
      Joined joined = join(native, 2, false, true);
      check_sum(joined, true);
      CHECK(fake_gpu::registered_buffers() == 0);
    }
    fake_gpu::refuse_buffers(false);
    Joined joined = join(ordered, 1);
    check_sum(joined);
    CHECK(fake_gpu::registered_buffers() == 0);
    CHECK(fake_gpu::shared_memory_blocks() == 0);
  }

  TEST_CASE("device plane: a gather that fails ends the sums, and an abort ends both") {
    Planes both = planes(DeviceTransport::nccl, DeviceTransport::nccl);
    Joined joined = join(both, 1, false, true, 500);
    for (const auto& each : joined) REQUIRE(each.ok());
    Collective& first = **joined[0];
    const auto memory = must(first.allocate(2 * sizeof(float)));
    auto* values = static_cast<float*>(*memory);
    const Status missing = first.all_gather(values, values, 1, DType::f32)->wait();
    CHECK(says(missing, Code::deadline, "shard.gathers@1: all_gather"));
    const Status after = first.all_reduce(values, 1, DType::f32)->wait();
    CHECK(says(after, Code::aborted, "shard.gathers@1: all_gather"));
    both[1]->abort(1, "a test");
    Collective& second = **joined[1];
    for (const Status& status : {second.all_reduce(values, 1, DType::f32)->wait(),
                                 second.broadcast(values, 1, DType::f32, 1)->wait()})
      CHECK(status.message().find("a test") != std::string::npos);
  }

  TEST_CASE("device plane: ranks of different transports are refused") {
    Planes mixed = planes(DeviceTransport::nccl, DeviceTransport::staged);
    for (const auto& each : join(mixed, 1)) {
      CHECK(says(each.status(), Code::bad_data, "uses another transport"));
    }
  }

  TEST_CASE("device plane: an abort ends its generation, joined or not, and no later one") {
    for (const DeviceTransport transport : {DeviceTransport::nccl, DeviceTransport::staged}) {
      Planes both = planes(transport, transport);
      Joined first = join(both, 1);
      check_sum(first);
      for (auto& plane : both) plane->abort(2, "a test");
      for (auto& each : first) {
        const auto memory = (*each)->allocate(64);
        const Status status =
            memory.ok() ? (*each)->all_reduce(*memory, 16, DType::f32)->wait() : memory.status();
        CHECK(says(status, Code::aborted, "a test"));
      }
      for (const auto& each : join(both, 2)) CHECK(each.status().code() == Code::aborted);
      Joined third = join(both, 3);
      check_sum(third);
    }
  }

  TEST_CASE("device plane: no rank makes a first communicator after NCCL was prepared") {
    const auto first_ones = [](const std::vector<std::string>& calls) {
      return std::ranges::count_if(
          calls, [](const auto& call) { return call.find("first") != call.npos; });
    };
    fake_gpu::forget_communicators();
    (void)fake_gpu::take_nccl_calls();
    {
      Planes both = planes(DeviceTransport::nccl, DeviceTransport::nccl);
      Joined unprepared = join(both, 1);
      check_sum(unprepared);
    }
    CHECK(first_ones(fake_gpu::take_nccl_calls()) == 2);
    fake_gpu::forget_communicators();
    for (const int device : {0, 1}) {
      const Status prepared = library.prepare(device, 60'000).get();
      INFO(prepared.message());
      CHECK(prepared.ok());
      const std::string gpu = "GPU " + std::to_string(device);
      CHECK(fake_gpu::take_nccl_calls() == std::vector{gpu + ": first communicator, 1 rank",
                                                       gpu + ": finalized", gpu + ": destroyed"});
    }
    Planes both = planes(DeviceTransport::nccl, DeviceTransport::nccl);
    Joined joined = join(both, 1);
    check_sum(joined);
    const auto calls = fake_gpu::take_nccl_calls();
    CHECK(first_ones(calls) == 0);
    for (const char* call : {"GPU 0: communicator, 2 ranks", "GPU 1: communicator, 2 ranks"})
      CHECK(std::ranges::count(calls, call) == 1);
    CHECK(fake_gpu::calls_too_early() == 0);
  }

  TEST_CASE(
      "device plane: preparing NCCL may fail or hang, and communicators are made after that") {
    fake_gpu::set_inits(fake_gpu::Inits::fail);
    const Status failed = library.prepare(0, 60'000).get();
    CHECK(failed.code() == Code::unavailable);
    CHECK(failed.message().starts_with("NCCL: init: "));
    fake_gpu::set_inits(fake_gpu::Inits::work);
    (void)fake_gpu::take_nccl_calls();
    const Status late = library.prepare(0, 0).get();  // has no time
    CHECK(late.code() == Code::unavailable);
    CHECK(late.message() == "NCCL: init did not end within 0 ms");
    CHECK(fake_gpu::take_nccl_calls().back() == "GPU 0: aborted");
    fake_gpu::set_inits(fake_gpu::Inits::hang);
    const auto hangs = library.prepare(0, 60'000);
    while (fake_gpu::take_nccl_calls().empty()) std::this_thread::yield();
    CHECK(hangs.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
    fake_gpu::set_inits(fake_gpu::Inits::work);
    CHECK(hangs.get().ok());
    Planes both = planes(DeviceTransport::nccl, DeviceTransport::nccl);
    Joined joined = join(both, 1);
    check_sum(joined);
  }
}
