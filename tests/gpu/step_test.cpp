// What one step asks of a GPU: kernels, products, copies, waits and messages, with their sizes and in
// their order, against step.txt (2 x 2 trainers). Other layouts are compared with this one. A stall
// that comes back is a line more. SIMPLESCALE_WRITE_STEP=1 rewrites step.txt; read the difference
// before you keep it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <thread>

#include "model/cuda/cuda_backend.hpp"
#include "model/engine/engine.hpp"
#include "tests/gpu/fake_gpu.hpp"
#include "tests/model/thread_collective.hpp"
#include "tests/must.hpp"
#include "tests/paths.hpp"
#include "tests/temp_folder.hpp"
#include "transport/nccl/communicator.hpp"

using namespace simplescale;
using nccl::NcclCommunicator;

namespace {

struct Layout {
  int groups, shards, micro_batches;  // micro-batches of each trainer
  bool native_sums = false, fp8 = false;
  int block_size = 8;
};
using Calls = std::vector<std::string>;
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
                   .block_size = layout.block_size};
  options.precision = DType::bf16;
  options.fp8 = layout.fp8;
  options.leaves = layout.groups * layout.shards * layout.micro_batches;
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
  auto stream = must(nccl::Stream::create(host.rank()));
  auto made = std::make_unique<NcclCommunicator>(
      NcclCommunicator::Spec{
          .name = name, .generation = 1, .timeout_ms = 60'000, .native_sums = native_sums},
      std::make_unique<NotingCollective>(host), stream.take(), [](NcclCommunicator*) {});
  must(made->connect());
  return made;
}

/// Pins the state and waits until this thread itself asks for the copies to it, as in all steps but
/// the first ones.
void pin(Backend& backend, TrainState& state) {
  const TrainState::Side first = state.side(0);
  backend.pin_host(first.params.data(), 2 * first.values() * sizeof(float));
  const auto memory = must(backend.allocate(1));
  for (Calls calls; !std::ranges::count(calls, "copy 1 bytes to the host");) {
    calls.clear();
    fake_gpu::record(&calls);
    backend.start_copy(first.params.data(), *memory, 1);
    backend.finish_copies();
    fake_gpu::record(nullptr);
  }
}

/// Runs two steps of one trainer and returns what the second one asks for, and the copies that it
/// leaves to the third.
Calls calls_of_a_step(const Layout& layout, int trainer, Collective& shard_host,
                      Collective& replicate_host) {
  const EngineOptions o = options(layout);
  auto shard = communicator("shard", shard_host, layout.native_sums),
       replicate = communicator("replicate", replicate_host, layout.native_sums);
  const std::string name =
      "ss-test-step-" + std::to_string(getpid()) + "-" + std::to_string(trainer);
  Result<TrainState> state = must(TrainState::create(
      name, 1, shard_layout(units_of(o.shape), static_cast<size_t>(layout.shards)).total));
  auto backend = must(cuda::make_backend({.shape = o.shape,
                                          .micro_batch_size = o.micro_batch_size,
                                          .precision = o.precision,
                                          .fp8 = o.fp8}));
  pin(**backend, *state);
  auto engine = must(Engine::create(o, **backend, axes_of(*shard, *replicate), *state));
  REQUIRE((*engine)->initialize().ok());
  std::vector<int32_t> tokens(static_cast<size_t>(o.shape.block_size + 1));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 96);
  Calls calls;
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
std::string text_of(const Calls& calls) {
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

/// What the trainer kNotedTrainer asks for.
Calls step_of(const Layout& layout) {
  const int groups = layout.groups, shards = layout.shards;
  std::vector<std::unique_ptr<ThreadCommunicator>> shard_wise, replicate_wise;
  for (int i = 0; i < groups; ++i)
    shard_wise.push_back(std::make_unique<ThreadCommunicator>(shards, 60'000));
  for (int i = 0; i < shards; ++i)
    replicate_wise.push_back(std::make_unique<ThreadCommunicator>(groups, 60'000));
  Calls noted;
  std::vector<std::thread> trainers;
  for (int t = 0; t < groups * shards; ++t)
    trainers.emplace_back([&, t] {
      const int group = t / shards, shard = t % shards;
      Calls calls = calls_of_a_step(layout, t, shard_wise[static_cast<size_t>(group)]->rank(shard),
                                    replicate_wise[static_cast<size_t>(shard)]->rank(group));
      if (t == kNotedTrainer) noted = std::move(calls);
    });
  for (std::thread& trainer : trainers) trainer.join();
  return noted;
}

/// What the micro-batch of this number asks for, and after the last one all the rest.
Calls micro_batch(const Calls& calls, int number) {
  const auto is_marker = [](const std::string& call) { return call.starts_with(kMicroBatch); };
  auto begin = calls.begin();
  for (int i = -1; i < number; ++i) begin = std::find_if(begin, calls.end(), is_marker) + 1;
  return {begin, std::find_if(begin, calls.end(), is_marker)};
}

ptrdiff_t count(const Calls& calls, const std::string& begin) {
  return std::ranges::count_if(calls, [&](const auto& call) { return call.starts_with(begin); });
}

/// The calls that compute a micro-batch, without those for other trainers and for the state.
Calls computing(Calls calls) {
  std::erase_if(calls, [](const std::string& call) {
    return !std::regex_search(call, std::regex("^(kernel|cublasLt|libtorch|allocate)")) ||
           std::regex_search(call, std::regex("to_bf16|tree|hash|sums|adamw"));
  });
  return calls;
}

void check_golden(const std::string& now) {
  const std::string path = source_dir() + "/tests/gpu/step.txt";
  if (std::getenv("SIMPLESCALE_WRITE_STEP")) std::ofstream(path) << now;
  CHECK_MESSAGE(test::contents(path) == now, "SIMPLESCALE_WRITE_STEP=1 rewrites step.txt");
}

constexpr Layout kFour{.groups = 2, .shards = 2, .micro_batches = 2};

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("gpu: a step asks for the calls of step.txt, in their order") {
    check_golden(text_of(step_of(kFour)));
  }

  TEST_CASE("gpu: a step with NCCL's own sums asks for them instead of messages and our sums") {
    Layout native = kFour;
    native.native_sums = true;
    std::string now = text_of(step_of(native));
    for (const auto& [native, ours] :
         {std::pair{"nccl: reduce_scatter of (\\d+) bytes each\n", "nccl: send $1 bytes\n"},
          {"nccl: all_reduce (\\d+) bytes\n",
           "nccl: send $1 bytes\nkernel run_tree_program, at high priority\n"}}) {
      const std::regex line(native);
      CHECK(std::regex_search(now, line));
      now = std::regex_replace(now, line, ours);
    }
    check_golden(now);
  }

  TEST_CASE("gpu: a step of one trainer computes the same, sends nothing, and never waits more") {
    const Calls expected = computing(micro_batch(step_of(kFour), 0));
    CHECK(expected.size() > 40);
    for (const int n : {1, 8}) {
      CAPTURE(n);
      const Calls calls = step_of({.groups = 1, .shards = 1, .micro_batches = n});
      for (int i = 0; i < n; ++i) CHECK(computing(micro_batch(calls, i)) == expected);
      for (int i = 2; i < n - 1; ++i) CHECK(micro_batch(calls, i) == micro_batch(calls, 1));
      CHECK(count(calls, "nccl:") + count(calls, "kernel to_bf16") + count(calls, "set") == 0);
      CHECK(count(calls, "the host waits for an event") == 6 * n);
      CHECK(count(calls, "the host waits for a stream") == 6);
      CHECK(count(calls, "a stream waits") == 4 * n + 5);
      CHECK(count(calls, "kernel run_tree_program, at high priority") == 4 * n);
      CHECK(count(calls, "kernel hash_blocks, at low priority") == 6);
      CHECK(count(calls, "kernel adamw") == 12);
      CHECK(count(calls, "copy 1668 bytes to the device") == n);
      CHECK(count(calls, "copy 110592 bytes to the host") == 3);
      CHECK(count(calls, "copy") == n + 3);
      CHECK(count(calls, "host: all_gather") == 2);
    }
  }

  TEST_CASE("gpu: a step with products in fp8 differs only in what makes their operands") {
    Layout layout{.groups = 1, .shards = 1, .micro_batches = 1, .block_size = 16};
    const Calls bf16 = step_of(layout);
    layout.fp8 = true;
    Calls calls = step_of(layout);
    // Both operands are new to a product but for a weight's gradient, of which one is known.
    CHECK(count(calls, "kernel to_fp8") == 2 * (4 * 2 + 4 * 3));
    const auto in_fp8 = [](const std::string& call) { return call.ends_with(", fp8"); };
    CHECK(std::ranges::count_if(calls, in_fp8) == 2 * (4 + 8));
    for (size_t i = 0; i < calls.size(); ++i)
      if (in_fp8(calls[i])) CHECK(calls[i - 1] == "kernel to_fp8");
    std::erase(calls, "kernel to_fp8");
    for (std::string& call : calls)
      if (in_fp8(call)) call.resize(call.size() - std::string(", fp8").size());
    CHECK(text_of(calls) == text_of(bf16));
  }
}
