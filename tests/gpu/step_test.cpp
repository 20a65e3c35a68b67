// What one step asks of a GPU: kernels, products, copies, waits and messages, with their sizes and in
// their order, against step.txt (2 x 2 trainers), step_1x1.txt and step_fp8.txt (with products in
// fp8). A stall that comes back is a line more. SIMPLESCALE_WRITE_STEP=1 rewrites these files; read
// the difference before you keep it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <regex>
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

struct Layout {
  int groups, shards, micro_batches;  // micro-batches of each trainer
  bool native_sums = false, fp8 = false;
};
constexpr int kNotedTrainer = 0;
const std::string kMicroBatch = "-- micro-batch ";

EngineOptions options(const Layout& layout) {
  EngineOptions options;
  options.shape = {.dim = 32,
                   .hidden = 64,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .vocab = 96,
                   .block_size = 8};
  if (layout.fp8) options.shape.block_size = 16;
  options.precision = DType::bf16;
  options.fp8 = layout.fp8;
  options.rows = layout.groups * layout.micro_batches;
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

std::unique_ptr<NcclCommunicator> communicator(const std::string& name, Collective& host,
                                               bool native_sums) {
  auto stream = nccl::Stream::create(host.rank());
  REQUIRE(stream.ok());
  auto made = std::make_unique<NcclCommunicator>(
      NcclCommunicator::Spec{
          .name = name, .generation = 1, .timeout_ms = 60'000, .native_sums = native_sums},
      std::make_unique<NotingCollective>(host), stream.take(), [](NcclCommunicator*) {});
  const Status connected = made->connect();
  INFO(connected.message());
  REQUIRE(connected.ok());
  return made;
}

/// Pins the state and waits until this thread itself asks for the copies to it, as in all steps but
/// the first ones.
void pin(Backend& backend, TrainState& state) {
  const TrainState::Side first = state.side(0);
  backend.pin_host(first.params.data(), 2 * first.values() * sizeof(float));
  const auto memory = backend.allocate(1);
  REQUIRE(memory.ok());
  for (std::vector<std::string> calls; !std::ranges::count(calls, "copy 1 bytes to the host");) {
    calls.clear();
    fake_gpu::record(&calls);
    backend.start_copy(first.params.data(), *memory, 1);
    backend.finish_copies();
    fake_gpu::record(nullptr);
  }
}

/// Runs two steps of one trainer and returns what the second one asks for, and the copies that it
/// leaves to the third.
std::vector<std::string> calls_of_a_step(const Layout& layout, int trainer, Collective& shard_host,
                                         Collective& replicate_host) {
  const EngineOptions o = options(layout);
  auto shard = communicator("shard", shard_host, layout.native_sums),
       replicate = communicator("replicate", replicate_host, layout.native_sums);
  const std::string name =
      "ss-test-step-" + std::to_string(getpid()) + "-" + std::to_string(trainer);
  Result<TrainState> state = TrainState::create(
      name, 1, shard_layout(units_of(o.shape), static_cast<size_t>(layout.shards)).total);
  REQUIRE(state.ok());
  auto backend = cuda::make_backend({.shape = o.shape,
                                     .micro_batch_size = o.micro_batch_size,
                                     .precision = o.precision,
                                     .fp8 = o.fp8});
  REQUIRE(backend.ok());
  pin(**backend, *state);
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
      fake_gpu::note(kMicroBatch + std::to_string(leaf));
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

/// One line for each run of equal calls, and for a micro-batch whose calls are those of the one
/// before.
std::string text_of(const std::vector<std::string>& calls) {
  std::string text, head, part, before;
  const auto end_part = [&] {
    text += head + (!head.empty() && part == before ? ": as the one before\n"
                                                    : (head.empty() ? "" : "\n") + part);
    before = part;
    part.clear();
  };
  for (size_t i = 0, n; i < calls.size(); i += n) {
    for (n = 1; i + n < calls.size() && calls[i + n] == calls[i];) ++n;
    if (calls[i].starts_with(kMicroBatch)) {
      end_part();
      head = calls[i];
    } else {
      part += calls[i] + (n > 1 ? " (" + std::to_string(n) + " times)" : "") + "\n";
    }
  }
  end_part();
  return text;
}

/// text_of() what the trainer kNotedTrainer asks for.
std::string step_of(const Layout& layout) {
  const int groups = layout.groups, shards = layout.shards;
  std::vector<std::unique_ptr<ThreadCommunicator>> shard_wise, replicate_wise;
  for (int i = 0; i < groups; ++i)
    shard_wise.push_back(std::make_unique<ThreadCommunicator>(shards, 60'000));
  for (int i = 0; i < shards; ++i)
    replicate_wise.push_back(std::make_unique<ThreadCommunicator>(groups, 60'000));
  std::string noted;
  std::vector<std::thread> trainers;
  for (int t = 0; t < groups * shards; ++t)
    trainers.emplace_back([&, t] {
      const int group = t / shards, shard = t % shards;
      const auto calls =
          calls_of_a_step(layout, t, shard_wise[static_cast<size_t>(group)]->rank(shard),
                          replicate_wise[static_cast<size_t>(shard)]->rank(group));
      if (t == kNotedTrainer) noted = text_of(calls);
    });
  for (std::thread& trainer : trainers) trainer.join();
  return noted;
}

void check_golden(const std::string& file, const std::string& now) {
  const std::string path = source_dir() + "/tests/gpu/" + file;
  if (std::getenv("SIMPLESCALE_WRITE_STEP")) std::ofstream(path) << now;
  std::stringstream golden;
  golden << std::ifstream(path).rdbuf();
  CHECK_MESSAGE(golden.str() == now, "SIMPLESCALE_WRITE_STEP=1 rewrites ", file);
}

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("gpu: a step asks for the calls of step.txt, in their order") {
    check_golden("step.txt", step_of({.groups = 2, .shards = 2, .micro_batches = 2}));
  }

  TEST_CASE("gpu: a step with NCCL's own sums asks for them instead of messages and our sums") {
    std::string now = step_of({.groups = 2, .shards = 2, .micro_batches = 2, .native_sums = true});
    for (const auto& [native, ours] :
         {std::pair{"nccl: reduce_scatter of (\\d+) bytes each\n", "nccl: send $1 bytes\n"},
          {"nccl: all_reduce (\\d+) bytes\n",
           "nccl: send $1 bytes\nkernel run_tree_program, at high priority\n"}}) {
      const std::regex line(native);
      CHECK(std::regex_search(now, line));
      now = std::regex_replace(now, line, ours);
    }
    check_golden("step.txt", now);
  }

  TEST_CASE("gpu: a step of one trainer asks for the calls of step_1x1.txt, in their order") {
    std::string now;
    for (const int micro_batches : {1, 8})
      now += "== micro-batches: " + std::to_string(micro_batches) + "\n" +
             step_of({.groups = 1, .shards = 1, .micro_batches = micro_batches});
    check_golden("step_1x1.txt", now);
  }

  TEST_CASE("gpu: a step with products in fp8 asks for the calls of step_fp8.txt, in their order") {
    check_golden("step_fp8.txt",
                 step_of({.groups = 1, .shards = 1, .micro_batches = 1, .fp8 = true}));
  }
}
