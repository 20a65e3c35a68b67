// bench step: tokens/s of the engine's steps in one process, no collectives; and the time that Muon
// takes to orthogonalize all matrices, which the trainers of a run share.
//
//   ./simplescale bench step [micro|moe-micro|mini|small ...] [float32|bfloat16] [1|2] [documents=N ...]
//                            [block_size=T] [kernels]
//
// kernels: prints a table of what each kernel of a step takes, and could take (kernel_times.hpp).
// 1, 2: the number of threads. Default: all but small, both precisions, 1 and 2 threads. N: the
// mean length of documents that do not see each other, in tokens; 0, the default: samples are
// whole. T: tokens of a sample in place of the preset's; a step has as many tokens as before. Prints
// one JSON line per combination; runs on the CPU.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "model/backend.hpp"
#include "model/engine/engine.hpp"
#include "runtime/training/muon_plan.hpp"
#include "runtime/training/token_marks.hpp"
#include "tests/bench/kernel_times.hpp"
#include "tests/model/thread_collective.hpp"

using namespace simplescale;

namespace {

struct Preset {
  const char* name;
  ModelShape shape;
  int micro_batch_size;
};

ModelShape moe(ModelShape shape) {
  shape.experts = {.count = 8, .per_token = 2, .hidden = 176};
  return canonical(shape);
}

const Preset kPresets[] = {
    {"micro", {128, 352, 4, 4, 2, 4096, 256, 10000.0, 1e-5, false}, 8},
    {"moe-micro", moe({128, 352, 4, 4, 2, 4096, 256, 10000.0, 1e-5, false}), 8},
    {"mini", {384, 1024, 6, 6, 2, 8192, 256, 10000.0, 1e-5, false}, 8},
    {"small", {768, 2048, 12, 12, 4, 32000, 1024, 10000.0, 1e-5, false}, 4},
};

/// CPU milliseconds of all threads so far. On a busy machine, compare these with one thread.
double cpu_ms() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) * 1e3 + double(t.tv_nsec) / 1e6;
}

double now_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

/// The engine of one process, over shared memory as in a run.
class Training {
 public:
  /// documents: their mean length in tokens; 0: none.
  Training(const Preset& preset, DType precision, int threads, int documents) {
    options_.shape = preset.shape;
    options_.precision = precision;
    options_.micro_batch_size = preset.micro_batch_size;
    const std::vector<Unit> units = units_of(preset.shape);
    const size_t total = shard_layout(units, 1).total;
    backend_ = must(make_cpu_backend({.shape = preset.shape,
                                      .micro_batch_size = preset.micro_batch_size,
                                      .precision = precision,
                                      .threads = threads,
                                      .muon = true}));
    const std::string name = "ss-step-bench-" + std::to_string(getpid());
    state_.emplace(must(TrainState::create(name, 1, total, state_format(options_))));
    engine_ = must(
        Engine::create(options_, *backend_, axes_of(shard_.rank(0), replicate_.rank(0)), *state_));
    must(engine_->initialize());
    muon_matrices_ = muon_matrices(units);
    for (const MuonMatrix& matrix : muon_matrices_)
      muon_copy_.resize(std::max(muon_copy_.size(), matrix.count()));
    tokens_.resize(size_t(preset.micro_batch_size) * size_t(preset.shape.block_size + 1));
    std::mt19937 random(1);
    std::uniform_int_distribution<int32_t> first(0, int32_t(preset.shape.vocab) - 1);
    for (size_t i = 0; i < tokens_.size(); ++i)
      tokens_[i] = i % 4 ? (tokens_[i - 1] * 31 + 7) % int32_t(preset.shape.vocab) : first(random);
    for (size_t i = 0; documents > 0 && i < tokens_.size(); ++i)
      if (random() % unsigned(documents) == 0) tokens_[i] |= kBeginsDocument;
  }

  /// Orthogonalizes a copy of every matrix of the blocks, as Muon does once a step.
  void orthogonalize() {
    const float* params = state_->committed().params.data();
    const ShardLayout layout = shard_layout(units_of(options_.shape), 1);
    for (const MuonMatrix& matrix : muon_matrices_) {
      backend_->cast(params + layout.offset[matrix.unit] + matrix.offset, muon_copy_.data(),
                     matrix.count());
      backend_->orthogonalize(matrix.rows, matrix.columns, muon_copy_.data());
    }
  }

  /// Makes one step on the same batch. Returns its loss.
  double step() {
    const Result<StepResult> made = engine_->step(
        ++steps_, 4e-4f, {}, [&](int) { return Result<const int32_t*>(tokens_.data()); });
    return must(made).loss;
  }

 private:
  static void must(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(1);
  }
  template <class T>
  static T must(Result<T> result) {
    must(result.ok() ? Status() : result.status());
    return result.take();
  }

  EngineOptions options_;
  ThreadCommunicator shard_{1, 1000}, replicate_{1, 1000};
  std::unique_ptr<Backend> backend_;
  std::optional<TrainState> state_;
  std::unique_ptr<Engine> engine_;
  std::vector<MuonMatrix> muon_matrices_;
  std::vector<float> muon_copy_;
  std::vector<int32_t> tokens_;
  uint64_t steps_ = 0;
};

void measure(const Preset& preset, DType precision, int threads, int documents, bool kernels) {
  Training training(preset, precision, threads, documents);
  double loss = 0;
  for (int i = 0; i < 3; ++i) loss = training.step();
  std::vector<double> times;
  const double cpu_begin = cpu_ms();
  for (const double begin = now_ms();
       times.size() < 5 || (now_ms() - begin < 4000 && times.size() < 60);) {
    const double at = now_ms();
    loss = training.step();
    times.push_back(now_ms() - at);
  }
  std::sort(times.begin(), times.end());
  const double cpu = (cpu_ms() - cpu_begin) / double(times.size());
  const double median = times[times.size() / 2];
  std::vector<double> muon_times;
  const double muon_begin = cpu_ms();
  for (int i = 0; i < 5; ++i) {
    const double at = now_ms();
    training.orthogonalize();
    muon_times.push_back(now_ms() - at);
  }
  const double muon_cpu = (cpu_ms() - muon_begin) / 5;
  std::sort(muon_times.begin(), muon_times.end());
  const double tokens = double(preset.micro_batch_size) * double(preset.shape.block_size);
  std::printf(
      "{\"preset\": \"%s\", \"block_size\": %d, \"dtype\": \"%s\", \"threads\": %d, \"documents\": "
      "%d, "
      "\"tokens_per_second\": %.1f, "
      "\"step_ms_median\": %.2f, "
      "\"step_ms_min\": %.2f, \"cpu_ms\": %.2f, \"muon_ms_median\": %.2f, \"muon_cpu_ms\": %.2f, "
      "\"loss\": %.4f}\n",
      preset.name, static_cast<int>(preset.shape.block_size), to_string(precision), threads,
      documents, tokens / median * 1e3, median, times[0], cpu, muon_times[2], muon_cpu, loss);
  if (kernels) {
    bench::start_recording();
    constexpr int kSteps = 5;
    const double begin = now_ms();
    for (int i = 0; i < kSteps; ++i) training.step();
    bench::print_kernels(kSteps, (now_ms() - begin) / kSteps, threads);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  auto named = [&](const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  const bool any_preset = named("micro") || named("moe-micro") || named("mini") || named("small");
  const bool any_dtype = named("float32") || named("bfloat16"),
             any_threads = named("1") || named("2");
  std::vector<int> documents;
  int block_size = 0;
  for (const std::string& word : words) {
    if (word.starts_with("documents=")) documents.push_back(std::atoi(word.c_str() + 10));
    if (word.starts_with("block_size=")) block_size = std::atoi(word.c_str() + 11);
  }
  if (documents.empty()) documents.push_back(0);
  for (Preset preset : kPresets) {
    if (block_size > 0) {
      const auto tokens = preset.micro_batch_size * static_cast<int>(preset.shape.block_size);
      preset.micro_batch_size = std::max(1, tokens / block_size);
      preset.shape.block_size = block_size;
    }
    if (any_preset ? named(preset.name) : preset.name != std::string("small"))
      for (DType precision : {DType::f32, DType::bf16})
        if (!any_dtype || named(to_string(precision)))
          for (int threads : {1, 2})
            for (const int length : documents)
              if (!any_threads || named(std::to_string(threads)))
                measure(preset, precision, threads, length, named("kernels"));
  }
}
