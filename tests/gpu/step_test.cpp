// What one step asks of a GPU: kernels, products, copies, waits and messages, with their sizes and in
// their order, against step.txt. A stall that comes back is a line more. SIMPLESCALE_WRITE_STEP=1
// rewrites that file; read the difference before you keep it.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "model/cuda/cuda_backend.hpp"
#include "model/engine/engine.hpp"
#include "tests/gpu/fake_gpu.hpp"
#include "tests/model/thread_collective.hpp"
#include "tests/paths.hpp"
#include "transport/nccl/communicator.hpp"

using namespace simplescale;
using nccl::NcclCommunicator;

namespace {

constexpr int kGroups = 2, kShards = 2, kMicroBatches = 2;  // of each trainer
constexpr int kNotedTrainer = 0;

EngineOptions options() {
  EngineOptions options;
  options.shape = {.dim = 32,
                   .hidden = 64,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .vocab = 96,
                   .block_size = 8};
  options.precision = DType::bf16;
  options.rows = kGroups * kMicroBatches;
  return options;
}

/// Notes what the engine asks of it on the host.
class NotingCollective final : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;
  WorkPtr all_gather_bytes(const void* mine, void* all, size_t bytes) override {
    fake_gpu::note("host: all_gather of " + std::to_string(bytes) + " bytes each");
    return ForwardingCollective::all_gather_bytes(mine, all, bytes);
  }
};

std::unique_ptr<NcclCommunicator> communicator(const std::string& name, Collective& host) {
  auto stream = nccl::Stream::create(host.rank());
  REQUIRE(stream.ok());
  auto made = std::make_unique<NcclCommunicator>(NcclCommunicator::Spec{name, 1, 60'000},
                                                 std::make_unique<NotingCollective>(host),
                                                 stream.take(), [](NcclCommunicator*) {});
  const Status connected = made->connect();
  INFO(connected.message());
  REQUIRE(connected.ok());
  return made;
}

/// Runs two steps of one trainer and returns what the second one asks for, and the copies that it
/// leaves to the third.
std::vector<std::string> calls_of_a_step(int trainer, Collective& shard_host,
                                         Collective& replicate_host) {
  const EngineOptions o = options();
  auto shard = communicator("shard", shard_host),
       replicate = communicator("replicate", replicate_host);
  const std::string name =
      "ss-test-step-" + std::to_string(getpid()) + "-" + std::to_string(trainer);
  Result<TrainState> state =
      TrainState::create(name, 1, shard_layout(units_of(o.shape), kShards).total);
  REQUIRE(state.ok());
  auto backend = cuda::make_backend(
      {.shape = o.shape, .micro_batch_size = o.micro_batch_size, .precision = o.precision});
  REQUIRE(backend.ok());
  auto engine = Engine::create(o, **backend, *shard, *replicate, *state);
  INFO(engine.status().message());
  REQUIRE(engine.ok());
  REQUIRE((*engine)->initialize().ok());
  std::vector<int32_t> tokens(static_cast<size_t>(o.shape.block_size + 1));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 96);
  std::vector<std::string> calls;
  for (uint64_t step : {1, 2}) {
    if (step == 2) fake_gpu::record(&calls);
    const auto result = (*engine)->step(step, 1e-3f, {}, [&](int leaf) -> Result<const int32_t*> {
      fake_gpu::note("-- micro-batch " + std::to_string(leaf));
      return tokens.data();
    });
    INFO(result.status().message());
    CHECK(result.ok());
  }
  fake_gpu::note("-- the next step begins to write the state");
  CHECK((*engine)->wait_for_commit().ok());
  fake_gpu::record(nullptr);
  return calls;
}

/// One line for each run of equal calls.
std::string text_of(const std::vector<std::string>& calls) {
  std::string text;
  for (size_t i = 0, n; i < calls.size(); i += n) {
    for (n = 1; i + n < calls.size() && calls[i + n] == calls[i];) ++n;
    text += calls[i] + (n > 1 ? " (" + std::to_string(n) + " times)" : "") + "\n";
  }
  return text;
}

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("gpu: a step asks for the calls of step.txt, in their order") {
    std::string now;
    {
      std::vector<std::unique_ptr<ThreadCommunicator>> shard_wise, replicate_wise;
      for (int i = 0; i < kGroups; ++i)
        shard_wise.push_back(std::make_unique<ThreadCommunicator>(kShards, 60'000));
      for (int i = 0; i < kShards; ++i)
        replicate_wise.push_back(std::make_unique<ThreadCommunicator>(kGroups, 60'000));
      std::vector<std::thread> trainers;
      for (int t = 0; t < kGroups * kShards; ++t)
        trainers.emplace_back([&, t] {
          const int group = t / kShards, shard = t % kShards;
          const auto calls =
              calls_of_a_step(t, shard_wise[static_cast<size_t>(group)]->rank(shard),
                              replicate_wise[static_cast<size_t>(shard)]->rank(group));
          if (t == kNotedTrainer) now = text_of(calls);
        });
      for (std::thread& trainer : trainers) trainer.join();
    }
    const std::string path = source_dir() + "/tests/gpu/step.txt";
    if (std::getenv("SIMPLESCALE_WRITE_STEP")) std::ofstream(path) << now;
    std::stringstream golden;
    golden << std::ifstream(path).rdbuf();
    CHECK_MESSAGE(golden.str() == now, "SIMPLESCALE_WRITE_STEP=1 rewrites step.txt");
  }
}
