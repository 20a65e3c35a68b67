// Collectives of GPUs through host memory, over a fake CUDA (fake_gpu.hpp), between two hosts that
// trust no network, so that all bytes go over encrypted TCP. Ranks are threads.
#include "transport/nccl/staged.hpp"

#include <doctest/doctest.h>

#include <barrier>

#include "tests/model/thread_collective.hpp"
#include "tests/transport/collective/collective_ranks.hpp"

using namespace simplescale;

namespace {

/// Device memory with values of this rank.
void* device(Collective& c, int rank, size_t count, DType dtype) {
  const auto memory = c.allocate(count * bytes_of(dtype));
  REQUIRE(memory.ok());
  testing::Buffer values(dtype, count);
  for (size_t i = 0; i < count; ++i) values.set(i, testing::input(dtype, rank, i));
  std::memcpy(*memory, values.data, values.bytes());
  return *memory;
}

}  // namespace

TEST_SUITE("staged") {
  TEST_CASE("staged: between hosts every operation has the bits of the tests' own collective") {
    constexpr int kRanks = 3;
    testing::RankPlanes planes("staged", {0, 1, 1});
    ThreadCommunicator references(kRanks, 60'000);
    std::barrier together(kRanks);  // mirrors are freed only after all ranks have read them
    const std::string errors = testing::on_ranks(kRanks, [&](int rank) -> std::string {
      auto host = planes.join(rank, kRanks, 1);
      auto stream = nccl::Stream::create(0);
      if (!host.ok() || !stream.ok()) return host.status().message() + stream.status().message();
      nccl::StagedCommunicator staged(host.take(), stream.take(), std::make_shared<nccl::Mirrors>(),
                                      20'000);
      std::string error;
      for (const size_t count : {size_t{1}, size_t{37}, size_t{50'000}})
        for (const DType dtype : {DType::f32, DType::bf16}) {
          const size_t all = count * kRanks, bytes = all * bytes_of(dtype);
          const auto both = [&](auto operation) {
            std::vector<char> results[2];
            for (Collective* c : {static_cast<Collective*>(&staged), &references.rank(rank)}) {
              void *in = device(*c, rank, all, dtype), *out = device(*c, rank + 7, all, dtype);
              const Status status = operation(*c, in, out)->wait();
              if (!status.ok()) error += status.message();
              const char* begin = static_cast<const char*>(out);
              results[c != &staged].assign(begin, begin + bytes);
            }
            if (results[0] != results[1]) error += "other bits, count " + std::to_string(count);
          };
          both([&](Collective& c, void* in, void* out) {
            return c.all_gather(in, out, count, dtype);
          });
          both([&](Collective& c, void* in, void* out) {
            return c.reduce_scatter(in, out, count, dtype);
          });
          both([&](Collective& c, void*, void* out) { return c.all_reduce(out, all, dtype); });
          both([&](Collective& c, void*, void* out) { return c.broadcast(out, all, dtype, 1); });
        }
      together.arrive_and_wait();
      return error;
    });
    CHECK(errors == "");
  }
}
