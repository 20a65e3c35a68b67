// bench gpu: each of our kernels, products and attention at a model's shapes on one GPU, against a
// plain copy and a large product that are measured first.
//
//   gpu_bench [tinyllama|mini|tiny] [--model]
//
// Prints a JSON line for each: shape, bytes or FLOP that it cannot avoid, launches in a step of one
// micro-batch, ms, and the share of the copy's bandwidth or of the product's rate that it reaches.
// --model: needs no GPU; ms are the model's in docs/benchmarks.md, followed by its table. bf16.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/cuda/aten.hpp"
#include "model/cuda/check.hpp"
#include "model/cuda/chosen_algorithms.hpp"
#include "model/cuda/cudnn_attention.hpp"
#include "model/cuda/fastest.hpp"
#include "model/cuda/gemm.hpp"
#include "runtime/base/dtype.hpp"
#include "runtime/training/arithmetic.hpp"
#include "runtime/training/model_shape.hpp"
#include "tests/temp_folder.hpp"
#include "transport/nccl/tree_program.hpp"

using namespace simplescale;
using namespace simplescale::cuda;

namespace {

constexpr int64_t kMicroBatchSize = 8, kBytes = 2;  // of an element
/// What docs/benchmarks.md assumes of an H200: bytes/s of a kernel, FLOP/s of products and of
/// attention, bytes/s to the host.
constexpr double kKernelBytes = 0.85 * 4.8e12, kProductFlop = 0.7 * 989e12, kAttentionFlop = 350e12,
                 kHostBytes = 55e9;

struct Preset {
  const char* name;
  ModelShape shape;
  int launches;                 // timed
  int64_t product, copy_bytes;  // of the measured limits
};
const Preset kPresets[] = {
    {"tinyllama", {2048, 5632, 22, 32, 4, 32000, 2048, 10000.0, 1e-5}, 10, 8192, 1 << 30},
    {"mini", {384, 1024, 6, 6, 2, 8192, 256, 10000.0, 1e-5}, 20, 8192, 1 << 30},
    {"tiny", {16, 16, 2, 2, 1, 64, 4, 10000.0, 1e-5}, 1, 16, 4096},
};

enum class Limit { copy, product, attention, host };

struct Row {
  std::string name, shape;
  double amount;  // bytes, or FLOP of products and attention
  double count;   // launches in a step of one micro-batch; 0: the row before it may be this one
  Limit limit;
  std::function<void()> launch;

  bool is_flop() const { return limit == Limit::product || limit == Limit::attention; }
  double model_rate() const {
    return limit == Limit::copy      ? kKernelBytes
           : limit == Limit::product ? kProductFlop
           : limit == Limit::host    ? kHostBytes
                                     : kAttentionFlop;
  }
};

/// Device memory by number, allocated at the first use and filled with random normal bf16 values: a
/// GPU multiplies zeros faster. Read as fp32 these values are finite, too.
class Memory {
 public:
  explicit Memory(cudaStream_t stream) : stream_(stream) {}
  ~Memory() {
    (void)cudaStreamSynchronize(stream_);
    for (auto& [_, block] : blocks_) (void)cudaFree(block.data);
    if (host_) (void)cudaFreeHost(host_);
  }
  template <class T = Bf16>
  T* at(int number, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    Block& block = blocks_[number];
    if (block.bytes < bytes) grow(block, bytes);
    return static_cast<T*>(block.data);
  }
  int32_t* integers(int number, const std::vector<int32_t>& values) {
    auto* data = at<int32_t>(number, static_cast<int64_t>(values.size()));
    copy(data, values.data(), values.size() * sizeof(int32_t), cudaMemcpyHostToDevice);
    SS_CUDA(cudaStreamSynchronize(stream_));
    return data;
  }
  void* pinned(size_t bytes) {
    if (!host_) SS_CUDA(cudaMallocHost(&host_, bytes));
    return host_;
  }
  void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    SS_CUDA(cudaMemcpyAsync(to, from, bytes, kind, stream_));
  }

 private:
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
  };
  void grow(Block& block, size_t bytes) {
    SS_CUDA(cudaStreamSynchronize(stream_));
    SS_CUDA(cudaFree(block.data));
    block = {};
    SS_CUDA(cudaMalloc(&block.data, bytes));
    block.bytes = bytes;
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<uint16_t> pattern(std::min<size_t>(bytes / 2, 1 << 20));
    for (uint16_t& value : pattern) value = f32_to_bf16(normal(random));
    size_t filled = pattern.size() * 2;
    copy(block.data, pattern.data(), filled, cudaMemcpyHostToDevice);
    for (auto* data = static_cast<char*>(block.data); filled < bytes;) {
      const size_t more = std::min(filled, bytes - filled);
      copy(data + filled, data, more, cudaMemcpyDeviceToDevice);
      filled += more;
    }
    SS_CUDA(cudaStreamSynchronize(stream_));
  }
  cudaStream_t stream_;
  std::map<int, Block> blocks_;
  void* host_ = nullptr;
};

std::string by(int64_t a, int64_t b) {
  return std::to_string(a) + " x " + std::to_string(b);
}

/// The launches of a step of one micro-batch, in its order. aten, gemm and memory are used by
/// launch() only; null without a GPU.
class Rows {
 public:
  Rows(const ModelShape& shape, Aten* aten, Gemm* gemm, Memory* memory)
      : s_(shape), aten_(aten), gemm_(gemm), memory_(memory) {
    forward();
    head();
    backward();
    step();
  }
  const std::vector<Row>& rows() const { return rows_; }

 private:
  cudaStream_t stream() const { return aten_->stream(); }
  Bf16* at(int number, int64_t count) const { return memory_->at(number, count); }

  /// bytes: what the kernel has to read and write.
  void kernel(const std::string& name, int64_t rows, int64_t width, double bytes, double count,
              std::function<cudaError_t()> launch) {
    rows_.push_back({name, by(rows, width), bytes, count, Limit::copy,
                     [launch = std::move(launch)] { SS_CUDA(launch()); }});
  }
  void product(const std::string& name, Transpose a, Transpose b, int64_t m, int64_t n, int64_t k,
               double count) {
    rows_.push_back({"product, " + name, by(m, n) + " x " + std::to_string(k),
                     2.0 * double(m) * double(n) * double(k), count, Limit::product, [=, this] {
                       gemm_->run(a, b, m, n, k, at(0, m * k), at(1, k * n), at(2, m * n));
                     }});
  }
  /// A factor in fp8 in the blocks `number` and number + 1, made at its first use.
  Fp8Factor factor(int number, Fp8Kind kind, int64_t rows, int64_t columns) {
    const int64_t scales = fp8_scale_count(fp8_square(kind), rows, columns);
    const Fp8Values values{memory_->at<uint8_t>(number, rows * columns),
                           memory_->at<float>(number + 1, scales)};
    const std::tuple wanted(kind, rows, columns);
    if (factors_[number] != wanted) {
      SS_CUDA(to_fp8<Bf16>(stream(), kind, rows, columns, at(0, rows * columns), values, {}));
      factors_[number] = wanted;
    }
    return {kind, values};
  }
  /// The same product with train.fp8. Its share is that of a product in bf16, and may be above 1.
  void fp8_product(const std::string& name, Fp8Kind a, Fp8Kind b, int64_t m, int64_t n, int64_t k) {
    rows_.push_back({"product in fp8, " + name, by(m, n) + " x " + std::to_string(k),
                     2.0 * double(m) * double(n) * double(k), 0, Limit::product, [=, this] {
                       gemm_->run_fp8(m, n, k, factor(11, a, m, k), factor(13, b, n, k),
                                      at(2, m * n));
                     }});
  }
  void fp8_factors(const std::string& name, Fp8Kind kind, int64_t rows, int64_t columns) {
    kernel("to_fp8, " + name, rows, columns, (kBytes + 2.0) * double(rows * columns), 0, [=, this] {
      const auto values = [&](int number) {
        return Fp8Values{memory_->at<uint8_t>(number, rows * columns),
                         memory_->at<float>(number + 1, rows * columns / 16)};
      };
      return to_fp8(stream(), kind, rows, columns, at(0, rows * columns), values(15), values(17));
    });
  }

  void forward_product(const std::string& name, int64_t n, int64_t k) {
    product(name, Transpose::no, Transpose::yes, N, n, k, L);
    fp8_product(name, Fp8Kind::activation, Fp8Kind::weight, N, n, k);
  }
  /// The gradients of the input, N x k, and of the weight, n x k.
  void backward_product(const std::string& name, int64_t n, int64_t k, int64_t rows, double count) {
    product(name + ", input's gradient", Transpose::no, Transpose::no, rows, k, n, count);
    product(name + ", weight's gradient", Transpose::yes, Transpose::no, n, k, rows, count);
    if (n == V) return;  // the head
    fp8_product(name + ", input's gradient", Fp8Kind::gradient, Fp8Kind::weight, rows, k, n);
    fp8_product(name + ", weight's gradient", Fp8Kind::gradient, Fp8Kind::activation, n, k, rows);
  }

  void forward() {
    kernel("embed", N, C, 2.0 * kBytes * double(N * C), 1,
           [=, this] { return embed(stream(), N, C, at(0, V * C), tokens(), at(1, N * C)); });
    kernel("rms_norm", N, C, 2.0 * kBytes * double(N * C), 1, [=, this] {
      return rms_norm(stream(), N, C, at(0, N * C), at(1, C), 1e-5f, at(2, N * C));
    });
    forward_product("q, k, v", Q, C);
    kernel("rope", N, A + K, 2.0 * kBytes * double(N * (A + K)), L, [=, this] {
      return rope(stream(), N, (A + K) / D, D, T, memory_->at<float>(0, T * D),
                  memory_->at<float>(1, T * D), at(2, N * Q), Q);
    });
    const double causal = 2.0 * double(N) * double(T) * double(A);
    const std::string heads = by(N, T) + " x " + std::to_string(A);
    for (const auto& [kernel, title] : {std::pair{AttentionKernel::flash, "attention, flash"},
                                        {AttentionKernel::cudnn, "attention, cuDNN"}}) {
      const double count = kernel == AttentionKernel::flash ? double(L) : 0;  // one of the two
      const auto attend = [=, this] {
        aten_->use(kernel);
        saved_ = aten_->attention(at(3, N * Q));
      };
      rows_.push_back({title, heads, causal, count, Limit::attention, attend});
      attention_backward_.push_back({std::string(title) + ", backward", heads, 2.5 * causal, count,
                                     Limit::attention, [=, this] {
                                       if (!saved_) attend();
                                       aten_->use(kernel);
                                       (void)aten_->attention_backward<Bf16>(at(3, N * Q), *saved_,
                                                                             at(4, N * A));
                                     }});
    }
    forward_product("output", C, A);
    kernel("add_rms_norm", N, C, 4.0 * kBytes * double(N * C), 2 * double(L), [=, this] {
      return add_rms_norm<Bf16>(stream(), N, C, at(0, N * C), at(1, N * C), at(2, C), 1e-5f,
                                at(5, N * C), at(6, N * C));
    });
    forward_product("gate and up", 2 * F, C);
    kernel("swiglu", N, F, 3.0 * kBytes * double(N * F), L,
           [=, this] { return swiglu<Bf16>(stream(), N, F, at(0, N * 2 * F), at(1, N * F)); });
    forward_product("down", C, F);
    fp8_factors("a gradient and its transpose", Fp8Kind::gradient, N, 2 * F);
    fp8_factors("a weight and its transpose", Fp8Kind::weight, 2 * F, C);
  }

  void head() {
    const int64_t R = std::clamp<int64_t>(arithmetic::kPartBytes / (V * kBytes), 1, N);
    const double count = double(N) / double(R);
    product("lm_head", Transpose::no, Transpose::yes, R, V, C, count);
    kernel("cross_entropy", R, V, 2.0 * kBytes * double(R * V), count, [=, this] {
      return cross_entropy(stream(), R, V, at(0, R * V), tokens(), 1e-4f, 0.0f, true,
                           memory_->at<float>(1, R));
    });
    backward_product("lm_head", V, C, R, count);
  }

  void backward() {
    const int64_t G = gamma_partials(N);
    kernel("rms_norm_backward", N, C, 5.0 * kBytes * double(N * C) + 4.0 * double(G * C),
           2 * double(L) + 1, [=, this] {
             return rms_norm_backward<Bf16>(stream(), N, C, at(0, N * C), at(1, C), 1e-5f,
                                            at(2, N * C), at(5, N * C), at(6, N * C), at(7, N * C),
                                            memory_->at<float>(8, G * C));
           });
    kernel("gamma_gradient", G, C, 4.0 * double(G * C), 2 * double(L) + 1, [=, this] {
      return gamma_gradient(stream(), G, C, memory_->at<float>(8, G * C), at(1, C));
    });
    kernel("swiglu_backward", N, F, 6.0 * kBytes * double(N * F), L, [=, this] {
      return swiglu_backward<Bf16>(stream(), N, F, at(0, N * 2 * F), at(1, N * F), at(2, N * 2 * F),
                                   at(1, N * F));
    });
    backward_product("down", C, F, N, L);
    backward_product("gate and up", 2 * F, C, N, L);
    backward_product("output", C, A, N, L);
    rows_.insert(rows_.end(), attention_backward_.begin(), attention_backward_.end());
    kernel("rope_backward", N, Q, 2.0 * kBytes * double(N * Q), L, [=, this] {
      const HeadView<Bf16> q{at(2, N * Q), T * A, D, A}, k{q.data + N * A, T * K, D, K},
          v{k.data + N * K, T * K, D, K};
      return rope_backward<Bf16>(stream(), N / T, T, A / D, K / D, D, memory_->at<float>(0, T * D),
                                 memory_->at<float>(1, T * D), q, k, v, at(5, N * Q));
    });
    backward_product("q, k, v", Q, C, N, L);
    kernel("embed_backward", V, C, kBytes * double((N + V) * C), 1, [=, this] {
      return embed_backward(stream(), V, C, begins(), tokens() + N, at(2, N * C), at(5, V * C));
    });
    kernel("run_tree_program", 1, E, 6.0 * double(E), P / double(E), [=, this] {
      const auto program = std::make_unique<nccl::TreeProgram>();
      std::memset(program.get(), 0, sizeof *program);
      program->source[0] = at(0, E);
      program->bf16[0] = 1;
      program->sink[0] = memory_->at<float>(1, E);
      program->sources = program->sinks = program->depth = 1;
      return nccl::run_tree_program(stream(), *program, E);
    });
  }

  void step() {
    const int64_t blocks = E / 1024;
    kernel("block_square_sums", blocks, 1024, 4.0 * double(E), P / double(E), [=, this] {
      return block_square_sums(stream(), blocks, memory_->at<float>(0, E),
                               memory_->at<double>(1, blocks));
    });
    kernel("adamw", 1, E, 30.0 * double(E), P / double(E), [=, this] {
      auto values = [&](int number) { return memory_->at<float>(number, E); };
      const AdamWConstants constants{1, 1, 0.9f, 0.95f, 1e-4f, 1, 1e-8f};
      return adamw(stream(), E, constants, values(0), values(1), values(2), values(5), values(1),
                   values(2), values(5), at(6, E));
    });
    // The three arrays of a state, after AdamW and again at the end of the next step.
    const auto all = static_cast<int64_t>(P);
    kernel("hash_blocks", 1, all, 4.0 * P, 6, [=, this] {
      return hash_blocks(stream(), all, memory_->at<float>(0, all),
                         memory_->at<uint64_t>(1, 2 * (all / kHashBlock + 1)));
    });
    rows_.push_back({"state to host memory", by(1, E), 4.0 * double(E), 3 * P / double(E),
                     Limit::host, [=, this] {
                       const auto bytes = static_cast<size_t>(E) * 4;
                       memory_->copy(memory_->pinned(bytes), memory_->at<float>(0, E), bytes,
                                     cudaMemcpyDeviceToHost);
                     }});
  }

  /// Tokens, then the rows by token; each token occurs about equally often.
  const int32_t* tokens() {
    if (!tokens_) {
      std::vector<int32_t> values;
      for (int64_t i = 0; i < N; ++i) values.push_back(static_cast<int32_t>(i * 7919 % V));
      for (int64_t i = 0; i < N; ++i) values.push_back(static_cast<int32_t>(i * 4099 % N));
      tokens_ = memory_->integers(9, values);
    }
    return tokens_;
  }
  const int32_t* begins() {
    if (!begins_) {
      std::vector<int32_t> values;
      for (int64_t v = 0; v <= V; ++v) values.push_back(static_cast<int32_t>(v * N / V));
      begins_ = memory_->integers(10, values);
    }
    return begins_;
  }

  const ModelShape s_;
  Aten* aten_;
  Gemm* gemm_;
  Memory* memory_;
  const int64_t C = s_.dim, F = s_.hidden, V = s_.vocab, T = s_.block_size, D = s_.head_dim(),
                A = s_.q_dim(), K = s_.kv_dim(), Q = A + 2 * K, N = kMicroBatchSize * T,
                L = s_.layers;
  const int64_t E = (C * (Q + A + 3 * F) + 1023) / 1024 * 1024;  // about a block's parameters
  const double P = double(parameter_count(s_));
  std::vector<Row> rows_;
  std::vector<Row> attention_backward_;
  std::map<int, std::tuple<Fp8Kind, int64_t, int64_t>> factors_;
  Aten::SavedPtr saved_;
  const int32_t *tokens_ = nullptr, *begins_ = nullptr;
};

void print(const Row& row, double ms, double share) {
  static const char* const names[] = {"copy", "product", "product", "55 GB/s"};
  std::printf(
      "{\"kernel\": \"%s\", \"shape\": \"%s\", \"%s\": %.6g, \"a_step\": %.4g, \"ms\": %.6g, "
      "\"step_ms\": %.6g, \"share\": %.4g, \"of\": \"%s\"}\n",
      row.name.c_str(), row.shape.c_str(), row.is_flop() ? "flop" : "bytes", row.amount, row.count,
      ms, ms * row.count, share, names[static_cast<int>(row.limit)]);
  std::fflush(stdout);
}

/// The table of docs/benchmarks.md.
void print_model(const std::vector<Row>& rows) {
  std::printf("\n| kernel | shape | amount | a step | ms each | ms a step |\n");
  std::printf("|---|---|--:|--:|--:|--:|\n");
  for (const Row& row : rows) {
    const double ms = row.amount / row.model_rate() * 1e3;
    std::printf("| %s | %s | %.3g %s | %.3g | %.3g | %.3g |\n", row.name.c_str(), row.shape.c_str(),
                row.amount / (row.is_flop() ? 1e12 : 1e9), row.is_flop() ? "TFLOP" : "GB",
                row.count, ms, ms * row.count);
  }
}

void measure(const Preset& preset) {
  const ModelShape& s = preset.shape;
  const test::TempFolder choices;  // with it the products are measured, as in a run
  const auto chosen = ChosenAlgorithms::of_run(choices.path, 0);
  Aten aten(0, DType::bf16,
            {kMicroBatchSize, s.heads, s.kv_heads, s.block_size, s.head_dim(),
             s.q_dim() + 2 * s.kv_dim(), 0},
            true, chosen.get());
  Gemm gemm(DType::bf16, aten.stream(), chosen.get());
  Memory memory(aten.stream());
  const int64_t side = preset.product, copied = preset.copy_bytes;
  const double product = 2.0 * double(side) * double(side) * double(side),
               product_ms =
                   milliseconds_of(aten.stream(), preset.launches,
                                   [&] {
                                     gemm.run(Transpose::no, Transpose::yes, side, side, side,
                                              memory.at(0, side * side), memory.at(1, side * side),
                                              memory.at(2, side * side));
                                   }),
               copy_ms = milliseconds_of(aten.stream(), preset.launches, [&] {
                 memory.copy(memory.at(0, copied / 2), memory.at(1, copied / 2),
                             static_cast<size_t>(copied), cudaMemcpyDeviceToDevice);
               });
  print({"plain copy", std::to_string(copied), 2.0 * double(copied), 0, Limit::copy, {}}, copy_ms,
        1);
  print({"large product", by(side, side), product, 0, Limit::product, {}}, product_ms, 1);
  const Rows all(s, &aten, &gemm, &memory);
  for (const Row& row : all.rows()) try {
      const double ms = milliseconds_of(aten.stream(), preset.launches, row.launch);
      const double limit = row.limit == Limit::copy   ? 2.0 * double(copied) / copy_ms
                           : row.limit == Limit::host ? kHostBytes / 1e3
                                                      : product / product_ms;
      print(row, ms, row.amount / ms / limit);
    } catch (const CudaError& error) {  // cuDNN and products in fp8: not every shape, not every GPU
      if (row.count > 0) throw;
      std::fprintf(stderr, "%s\n", error.what());
    }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string name = argc > 1 ? argv[1] : "tinyllama";
  const bool model = argc > 2 && std::string(argv[2]) == "--model";
  const auto* preset = std::find_if(std::begin(kPresets), std::end(kPresets),
                                    [&](const Preset& p) { return name == p.name; });
  if (preset == std::end(kPresets) || argc > 3 || (argc == 3 && !model)) {
    std::fprintf(stderr, "usage: gpu_bench [tinyllama|mini|tiny] [--model]\n");
    return 2;
  }
  if (!model) {
    measure(*preset);
    return 0;
  }
  std::vector<Row> rows = Rows(preset->shape, nullptr, nullptr, nullptr).rows();
  std::erase_if(rows, [](const Row& row) { return row.count == 0; });
  for (const Row& row : rows) print(row, row.amount / row.model_rate() * 1e3, 1);
  print_model(rows);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_bench: %s\n", error.what());
  return 1;
}
