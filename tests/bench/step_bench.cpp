// bench step: tokens/s of forward, backward and AdamW in one process, no collectives; and the time
// that Muon takes to orthogonalize all matrices, which the trainers of a run share.
//
//   ./simplescale bench step [micro|mini|small ...] [float32|bfloat16] [1|2] [documents=N ...]
//                            [block_size=T]
//
// 1, 2: the number of threads. Default: micro and mini, both precisions, 1 and 2 threads. N: the
// mean length of documents that do not see each other, in tokens; 0, the default: samples are
// whole. T: tokens of a sample in place of the preset's; a step has as many tokens as before. Prints
// one JSON line per combination; runs on the CPU.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "model/backend.hpp"
#include "runtime/training/muon_plan.hpp"
#include "runtime/training/token_marks.hpp"

using namespace simplescale;

namespace {

struct Preset {
  const char* name;
  ModelShape shape;
  int micro_batch_size;
};

const Preset kPresets[] = {
    {"micro", {128, 352, 4, 4, 2, 4096, 256, 10000.0, 1e-5, false}, 8},
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

/// A training step of one process. Owns the fp32 master state, and the parameters and gradients of
/// each unit in the model's precision.
class Step {
 public:
  /// documents: their mean length in tokens; 0: none.
  Step(const Preset& preset, DType precision, int threads, int documents)
      : preset_(preset), precision_(precision), units_(units_of(preset.shape)) {
    auto made = make_cpu_backend({.shape = preset.shape,
                                  .micro_batch_size = preset.micro_batch_size,
                                  .precision = precision,
                                  .threads = threads,
                                  .muon = true});
    SS_ASSERT(made.ok());
    backend_ = made.take();
    layout_ = shard_layout(units_, 1);
    auto take = [&](size_t bytes) {
      auto memory = backend_->allocate(bytes);
      SS_ASSERT(memory.ok());
      return *memory;
    };
    for (float** state : {&params_, &avg_, &avg_sq_, &gradient_})
      *state = static_cast<float*>(take(layout_.total * 4));
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.02f);
    for (size_t u = 0; u < units_.size(); ++u) {
      casted_.push_back(take(layout_.count[u] * bytes_of(precision)));
      grads_.push_back(take(layout_.count[u] * bytes_of(precision)));
      for (const Parameter& p : units_[u].parameters) {
        const size_t at = layout_.offset[u] + p.offset;
        for (size_t i = 0; i < p.count; ++i) params_[at + i] = p.is_matrix() ? normal(random) : 1;
        runs_.push_back({at, p.count, 1, p.is_matrix() ? 0.1f : 0});
      }
    }
    for (int64_t block = 0; block < int64_t(layout_.total / kShardAlign); ++block)
      blocks_.push_back({.first = block});
    sums_.resize(blocks_.size());
    tokens_.resize(size_t(preset.micro_batch_size) * size_t(preset.shape.block_size + 1));
    std::uniform_int_distribution<int32_t> first(0, int32_t(preset.shape.vocab) - 1);
    for (size_t i = 0; i < tokens_.size(); ++i)
      tokens_[i] = i % 4 ? (tokens_[i - 1] * 31 + 7) % int32_t(preset.shape.vocab) : first(random);
    for (size_t i = 0; documents > 0 && i < tokens_.size(); ++i)
      if (random() % unsigned(documents) == 0) tokens_[i] |= kBeginsDocument;
  }

  /// Orthogonalizes a copy of every matrix of the blocks, as Muon does once a step.
  void orthogonalize() {
    for (const MuonMatrix& matrix : muon_matrices(units_)) {
      void* copy = grads_[matrix.unit];
      backend_->cast(params_ + layout_.offset[matrix.unit] + matrix.offset, copy, matrix.count());
      backend_->orthogonalize(matrix.rows, matrix.columns, copy);
    }
  }

  /// Makes one step on the same batch. Returns its loss.
  double run() {
    const int layers = int(preset_.shape.layers);
    const size_t head = units_.size() - 1;
    for (size_t u = 0; u < units_.size(); ++u)
      backend_->cast(params_ + layout_.offset[u], casted_[u], units_[u].count);
    backend_->embed(0, casted_[0], tokens_.data());
    for (int i = 0; i < layers; ++i) backend_->forward_block(0, i, casted_[size_t(i) + 1]);
    backend_->head(0, casted_[head], nullptr, 1, grads_[head], nullptr);
    for (int i = layers; i-- > 0;)
      backend_->backward_block(0, i, casted_[size_t(i) + 1], grads_[size_t(i) + 1]);
    backend_->backward_embed(0, grads_[0]);
    for (size_t u = 0; u < units_.size(); ++u) widen(u);
    backend_->square_sums(gradient_, blocks_, sums_.data());
    double square = 0;
    for (double s : sums_) square += s;
    ++steps_;
    const AdamW options{.learning_rate = 4e-4f,
                        .gradient_scale = std::min(1.0f, 1.0f / (float(std::sqrt(square)) + 1e-6f)),
                        .step = steps_};
    backend_->adamw(options, runs_, gradient_, params_, avg_, avg_sq_, params_, avg_, avg_sq_,
                    nullptr);
    return backend_->loss(0);
  }

 private:
  /// Converts the gradient of unit u to fp32.
  void widen(size_t u) {
    float* to = gradient_ + layout_.offset[u];
    if (precision_ == DType::f32) {
      std::copy_n(static_cast<const float*>(grads_[u]), units_[u].count, to);
    } else {
      const auto* from = static_cast<const uint16_t*>(grads_[u]);
      for (size_t i = 0; i < units_[u].count; ++i) to[i] = bf16_to_f32(from[i]);
    }
  }

  const Preset& preset_;
  const DType precision_;
  const std::vector<Unit> units_;
  std::unique_ptr<Backend> backend_;
  ShardLayout layout_;
  float *params_, *avg_, *avg_sq_, *gradient_;
  std::vector<void*> casted_, grads_;
  std::vector<ParameterRun> runs_;
  std::vector<BlockTree> blocks_;
  std::vector<double> sums_;
  std::vector<int32_t> tokens_;
  uint64_t steps_ = 0;
};

void measure(const Preset& preset, DType precision, int threads, int documents) {
  Step step(preset, precision, threads, documents);
  double loss = 0;
  for (int i = 0; i < 3; ++i) loss = step.run();
  std::vector<double> times;
  const double cpu_begin = cpu_ms();
  for (const double begin = now_ms();
       times.size() < 5 || (now_ms() - begin < 4000 && times.size() < 60);) {
    const double at = now_ms();
    loss = step.run();
    times.push_back(now_ms() - at);
  }
  std::sort(times.begin(), times.end());
  const double cpu = (cpu_ms() - cpu_begin) / double(times.size());
  const double median = times[times.size() / 2];
  std::vector<double> muon_times;
  const double muon_begin = cpu_ms();
  for (int i = 0; i < 5; ++i) {
    const double at = now_ms();
    step.orthogonalize();
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
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  auto named = [&](const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  const bool any_preset = named("micro") || named("mini") || named("small");
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
                measure(preset, precision, threads, length);
  }
}
