// Traces of kernels around steps over a fake GPU, also of one that fails.
#include "actors/trainer/kernel_traces.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>

#include "model/cuda/cuda_backend.hpp"
#include "model/engine/engine.hpp"
#include "tests/gpu/fake_ranks.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using namespace simplescale::testing;

namespace {

/// A trainer alone on a fake GPU, whose state and backend outlive its generations.
class Trainer {
 public:
  explicit Trainer(KernelTraces traces) : traces_(std::move(traces)) {
    options_.shape = {.dim = 32,
                      .hidden = 64,
                      .layers = 1,
                      .heads = 4,
                      .kv_heads = 2,
                      .vocab = 96,
                      .block_size = 8};
    state_.emplace(must(TrainState::create("ss-test-traces-" + std::to_string(getpid()), 1,
                                           shard_layout(units_of(options_.shape), 1).total))
                       .take());
    backend_ = must(cuda::make_backend({.shape = options_.shape})).take();
  }

  /// A generation from the newest step on, as the compute thread makes its steps; the one with this
  /// number fails.
  void generation(uint64_t last, uint64_t failing) {
    traces_.end_failed(*backend_, "n0.0");
    ThreadCommunicator alone(1, 60'000);
    const auto shard = communicator("shard", alone.rank(0)),
               replicate = communicator("replicate", alone.rank(0));
    auto engine = must(Engine::create(options_, *backend_, axes_of(*shard, *replicate), *state_));
    uint64_t step = 0;
    if (state_->has_step())
      step = *(*engine)->attach();
    else
      REQUIRE((*engine)->initialize().ok());
    const std::vector<int32_t> tokens(static_cast<size_t>(options_.shape.block_size + 1), 5);
    while (step < last) {
      traces_.begin(*backend_, ++step);
      const auto made = (*engine)->step(step, 1e-3f, {}, [&](int) -> Result<const int32_t*> {
        if (step == failing) return Status(Code::io, "no tokens");
        return tokens.data();
      });
      CHECK(made.ok() == (step != failing));
      if (!made.ok()) return;
      traces_.end(*backend_, "n0.0", step, step == last);
    }
    CHECK((*engine)->wait_for_commit().ok());
  }

 private:
  const KernelTraces traces_;
  EngineOptions options_;
  std::optional<TrainState> state_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("gpu: a step that fails ends its trace of kernels, and later steps are traced") {
    const test::TempFolder folder;
    const std::string traces = folder.path + "/traces";
    const auto file = [&](const std::string& name) {
      return traces + "/kernels-" + name + ".json";
    };
    const auto number_of = [&](const std::string& name) {
      return std::stoi(test::contents(file(name)).substr(std::string("recording ").size()));
    };
    Trainer trainer(KernelTraces({2, 3, 5}, traces));
    trainer.generation(6, 3);
    CHECK_FALSE(std::filesystem::exists(file("failed-n0.0")));
    trainer.generation(6, 0);
    const int first = number_of("failed-n0.0");
    CHECK(number_of("3-n0.0") == first + 1);
    CHECK(number_of("5-n0.0") == first + 2);
    const auto files = std::filesystem::directory_iterator(traces);
    CHECK(std::distance(begin(files), end(files)) == 3);
  }

  TEST_CASE("gpu: a trace of kernels ends with the last step, in the middle of its steps, too") {
    const test::TempFolder folder;
    Trainer trainer(KernelTraces({1, 2, 3}, folder.path));
    trainer.generation(2, 0);
    CHECK(std::filesystem::exists(folder.path + "/kernels-2-n0.0.json"));
    const auto files = std::filesystem::directory_iterator(folder.path);
    CHECK(std::distance(begin(files), end(files)) == 1);
  }
}
