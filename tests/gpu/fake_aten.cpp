// Attention as plain loops, linked instead of model/cuda/aten.cpp: for the CUDA backend over a fake
// GPU. Enqueues its computation on the stream, as libtorch and cuDNN do, which differ in their notes
// and times only (fake_gpu.hpp).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/cuda/aten.hpp"
#include "model/cuda/chosen_algorithms.hpp"
#include "model/cuda/cudnn_attention.hpp"
#include "model/cuda/kernel_trace.hpp"
#include "tests/gpu/elements.hpp"
#include "tests/gpu/fake_gpu.hpp"

namespace simplescale {
namespace {
fake_gpu::Attention behaviour;
int plans_without_memory = 0, recordings = 0;
std::optional<std::string> recording;
}  // namespace

void fake_gpu::set_attention(Attention wanted) {
  behaviour = std::move(wanted);
}
void fake_gpu::fail_plans(int number) {
  plans_without_memory = number;
}

namespace cuda {
namespace {

/// Device memory of libtorch's allocator.
class Block {
 public:
  explicit Block(size_t bytes) { (void)cudaMalloc(&data_, bytes); }
  ~Block() { (void)cudaFree(data_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};
using Memory = std::shared_ptr<Block>;

/// Frees memory only when the stream has reached this point, as libtorch's allocator does.
void let_go(cudaStream_t stream, const Memory& memory) {
  fake_gpu::run_on(stream, [memory] {});
}

using Kernel = AttentionKernel;

/// How a pass of attention is computed.
struct Pass {
  AttentionChoice choice;
  std::string what;  // for notes
  std::string plan;  // cuDNN's; empty: not made yet
};

}  // namespace

struct Aten::Saved {
  cudaStream_t stream;
  Memory out;
};
void Aten::SavedDeleter::operator()(Saved* saved) const {
  let_go(saved->stream, saved->out);
  delete saved;
}

struct Aten::Impl {
  Impl(DType dtype_, const AttentionShape& attention, bool deterministic_,
       const ChosenAlgorithms* chosen)
      : dtype(dtype_),
        shape(attention),
        deterministic(deterministic_),
        forward{{shape, dtype, "forward", chosen}, "attention", ""},
        backward{{shape, dtype, "backward", chosen}, "attention's gradients", ""} {}

  cudaStream_t stream = nullptr;
  DType dtype;
  AttentionShape shape;
  const bool deterministic;
  Memory gradients, scratch;
  Kernel scratch_of = Kernel::flash;
  Memory mask;                      // of documents, in fp32, and their comparison
  const int32_t* of_row = nullptr;  // DocumentRows::of_row; null: no documents
  bool documents = false;
  Pass forward, backward;

  template <class Launch>
  Kernel kernel_of(Pass& pass, const Launch& launch) {
    return pass.choice.kernel(
        stream, documents, launch, [&pass] { return pass.plan; },
        [](const std::exception&) { return false; }, [this] { gradients = scratch = nullptr; });
  }
  void make_plan(Pass& pass) const {
    if (behaviour.cudnn_fails) throw std::runtime_error("cuDNN: CUDNN_STATUS_NOT_SUPPORTED");
    const std::string wanted = pass.choice.cudnn_plan();
    if (!pass.plan.empty() && (wanted.empty() || wanted == pass.plan)) return;
    pass.plan = behaviour.plans[attention_plan(behaviour.plans, wanted, pass.what, [](size_t i) {
      if (plans_without_memory > 0 && plans_without_memory--)
        throw CudnnError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", true);
      if (behaviour.failing.contains(behaviour.plans[i]))
        throw CudnnError("CUDNN_STATUS_NOT_SUPPORTED", false);
    })];
  }
  /// What a kernel does beside its computation.
  void begin(Kernel kernel, Pass& pass) const {
    fake_gpu::check_last_error();
    if (kernel == Kernel::cudnn) make_plan(pass);
    fake_gpu::note((kernel == Kernel::cudnn ? "cuDNN: " : "libtorch: ") + pass.what +
                   (kernel == Kernel::cudnn && pass.plan != "eng0" ? " by " + pass.plan : ""));
    for (int i = 1; i < (kernel == Kernel::cudnn ? behaviour.cudnn_ms : behaviour.flash_ms); ++i)
      fake_gpu::run_on(stream, [] {});
  }
  Elements at(const void* data) const { return {const_cast<void*>(data), dtype}; }
  Memory take(int64_t elements) const {
    return std::make_shared<Block>(static_cast<size_t>(elements) * bytes_of(dtype));
  }
  /// While the gradients are computed; libtorch's allocator keeps that memory. Its kernels accumulate
  /// dq in fp32, and make dk and dv for each query head. The one for fp32 takes k and v of each query
  /// head, too. Deterministic flash attention has a dq for each of the multiprocessors, 132 on an H200,
  /// that work at a head. cuDNN's deterministic kernel keeps the gradients of the scores, and makes dk
  /// and dv for each query head of a group.
  size_t scratch_bytes(Kernel kernel) const {
    const auto rows = static_cast<size_t>(shape.batch * shape.T * shape.heads),
               values = rows * static_cast<size_t>(shape.D);
    const auto heads = static_cast<size_t>(shape.batch * shape.heads);
    const size_t times = kernel == Kernel::flash && deterministic ? (131 + heads) / heads : 1;
    const bool repeats = kernel == Kernel::efficient && shape.heads > shape.kv_heads;
    if (kernel != Kernel::cudnn)
      return 4 * times * values + (repeats ? 4 : 2) * values * bytes_of(dtype);
    const size_t whole = 2 * rows * static_cast<size_t>(shape.T) + 4 * rows +
                         (shape.heads > shape.kv_heads ? 4 * values : 0);
    const AttentionPart part = attention_part(shape, whole);
    return whole / static_cast<size_t>(shape.batch * shape.kv_heads) *
           static_cast<size_t>(part.samples * part.kv_heads);
  }
  /// The attention weights of query (b, t, head) over tokens 0 ... t.
  std::vector<double> weights(const Elements& qkv, int64_t b, int64_t t, int64_t head) const {
    const int64_t D = shape.D, key = shape.heads + head / (shape.heads / shape.kv_heads);
    std::vector<double> w;
    double max = -1e300, sum = 0;
    for (int64_t s = 0; s <= t; ++s) {
      double dot = 0;
      for (int64_t d = 0; d < D; ++d)
        dot += qkv[(b * shape.T + t) * shape.ld_qkv + head * D + d] *
               qkv[(b * shape.T + s) * shape.ld_qkv + key * D + d];
      const bool other = of_row && of_row[b * shape.T + s] != of_row[b * shape.T + t];
      const bool hidden = other || (shape.window > 0 && s <= t - shape.window);
      w.push_back(hidden ? -1e300 : dot / std::sqrt(static_cast<double>(D)));
      max = std::max(max, w.back());
    }
    for (double& x : w) sum += x = std::exp(x - max);
    for (double& x : w) x /= sum;
    return w;
  }
  template <class Body>
  void each_query(Body body) const {
    for (int64_t b = 0; b < shape.batch; ++b)
      for (int64_t t = 0; t < shape.T; ++t)
        for (int64_t h = 0; h < shape.heads; ++h) body(b, t, h);
  }
};

void Aten::load() {}

size_t Aten::cudnn_version() {
  return behaviour.cudnn_version;
}

Aten::Aten(int, DType dtype, const AttentionShape& attention, bool deterministic,
           const ChosenAlgorithms* chosen)
    : impl_(std::make_unique<Impl>(dtype, attention, deterministic, chosen)) {
  (void)cudaStreamCreateWithPriority(&impl_->stream, cudaStreamNonBlocking, -1);
}
Aten::~Aten() {
  (void)cudaStreamDestroy(impl_->stream);
}

cudaStream_t Aten::stream() const {
  return impl_->stream;
}

void Aten::use(AttentionKernel kernel) {
  impl_->forward.choice.use(kernel);
  impl_->backward.choice.use(kernel);
}

void Aten::set_documents(const DocumentRows* documents) {
  impl_->documents = documents;
  const AttentionShape& shape = impl_->shape;
  if (documents && impl_->dtype == DType::f32 && !impl_->mask)
    impl_->mask = std::make_shared<Block>(
        static_cast<size_t>(shape.batch * shape.T * (4 * ((shape.T + 7) / 8 * 8) + shape.T)));
  fake_gpu::run_on(impl_->stream, [this, rows = documents ? documents->of_row : nullptr] {
    impl_->of_row = rows;
  });
}

Aten::SavedPtr Aten::attention(const void* qkv) {
  const Kernel kernel =
      impl_->kernel_of(impl_->forward, [&](Kernel each) { (void)attend(each, qkv); });
  return attend(kernel, qkv);
}

Aten::SavedPtr Aten::attend(Kernel kernel, const void* qkv) {
  Impl& s = *impl_;
  s.begin(kernel, s.forward);
  const AttentionShape shape = s.shape;
  const Memory out = s.take(shape.batch * shape.T * shape.heads * shape.D);
  fake_gpu::run_on(s.stream, [&s, shape, out, from = s.at(qkv)] {
    const Elements to = s.at(out->data());
    s.each_query([&](int64_t b, int64_t t, int64_t h) {
      const auto w = s.weights(from, b, t, h);
      const int64_t value = shape.heads + shape.kv_heads + h / (shape.heads / shape.kv_heads);
      for (int64_t d = 0; d < shape.D; ++d) {
        double sum = 0;
        for (int64_t i = 0; i <= t; ++i)
          sum += w[static_cast<size_t>(i)] *
                 from[(b * shape.T + i) * shape.ld_qkv + value * shape.D + d];
        to.set(((b * shape.T + t) * shape.heads + h) * shape.D + d, sum);
      }
    });
  });
  return SavedPtr(new Saved{s.stream, out});
}

const void* Aten::attended(const Saved& saved) const {
  return saved.out->data();
}

template <class T>
Aten::Gradients<T> Aten::attention_backward(const void* qkv, const Saved& saved,
                                            const void* dattended) {
  const Kernel kernel = impl_->kernel_of(
      impl_->backward, [&](Kernel each) { (void)attend_backward<T>(each, qkv, saved, dattended); });
  return attend_backward<T>(kernel, qkv, saved, dattended);
}

/// dq: (batch, T, heads, D) in memory; dk, dv: (batch, T, kv_heads, D).
template <class T>
Aten::Gradients<T> Aten::attend_backward(Kernel kernel, const void* qkv, const Saved&,
                                         const void* dattended) {
  Impl& s = *impl_;
  s.begin(kernel, s.backward);
  const AttentionShape shape = s.shape;
  const int64_t D = shape.D, tokens = shape.batch * shape.T, group = shape.heads / shape.kv_heads,
                q_size = tokens * shape.heads * D, kv_size = tokens * shape.kv_heads * D;
  let_go(s.stream, s.gradients);
  s.gradients = s.take(q_size + 2 * kv_size);
  if (!s.scratch || s.scratch_of != kernel) {  // the allocator cuts new blocks out of old ones
    let_go(s.stream, std::exchange(s.scratch, nullptr));
    s.scratch = std::make_shared<Block>(s.scratch_bytes(kernel));
    s.scratch_of = kernel;
  }
  fake_gpu::run_on(
      s.stream, [=, &s, memory = s.gradients, from = s.at(qkv), d_out = s.at(dattended)] {
        std::vector<double> all(static_cast<size_t>(q_size + 2 * kv_size));
        double *const dq = all.data(), *const dk = dq + q_size, *const dv = dk + kv_size;
        s.each_query([&](int64_t b, int64_t t, int64_t h) {
          const auto w = s.weights(from, b, t, h);
          const int64_t kv = h / group, key = (shape.heads + kv) * D,
                        value = (shape.heads + shape.kv_heads + kv) * D;
          const int64_t row = b * shape.T + t, at = (row * shape.heads + h) * D;
          auto row_of = [&](int64_t i) { return (b * shape.T + i) * shape.ld_qkv; };
          std::vector<double> dw(w.size());
          double mean = 0;
          for (size_t i = 0; i < w.size(); ++i) {
            for (int64_t d = 0; d < D; ++d)
              dw[i] += d_out[at + d] * from[row_of(static_cast<int64_t>(i)) + value + d];
            mean += dw[i] * w[i];
          }
          for (size_t i = 0; i < w.size(); ++i) {
            const auto other = static_cast<int64_t>(i);
            const double slope = w[i] * (dw[i] - mean) / std::sqrt(static_cast<double>(D));
            const int64_t to = ((b * shape.T + other) * shape.kv_heads + kv) * D;
            for (int64_t d = 0; d < D; ++d) {
              dq[at + d] += slope * from[row_of(other) + key + d];
              dk[to + d] += slope * from[row_of(t) + h * D + d];
              dv[to + d] += w[i] * d_out[at + d];
            }
          }
        });
        const Elements to = s.at(memory->data());
        for (size_t i = 0; i < all.size(); ++i) to.set(static_cast<int64_t>(i), all[i]);
      });
  const T* data = static_cast<const T*>(s.gradients->data());
  const int64_t q_row = shape.heads * D, kv_row = shape.kv_heads * D;
  return {{data, shape.T * q_row, D, q_row},
          {data + q_size, shape.T * kv_row, D, kv_row},
          {data + q_size + kv_size, shape.T * kv_row, D, kv_row}};
}

/// As kernel_trace.cpp, with the name of the recording's beginning instead of kernels.
Status start_kernel_trace() {
  if (!recording) recording.emplace("recording " + std::to_string(++recordings));
  return {};
}
Status write_kernel_trace(const std::string& file) {
  if (!recording) return Status(Code::not_found, "no kernels were traced");
  const std::string text = *std::exchange(recording, std::nullopt);
  return std::ofstream(file) << text ? Status() : Status(Code::io, file);
}

template Aten::Gradients<float> Aten::attention_backward(const void*, const Saved&, const void*);
template Aten::Gradients<Bf16> Aten::attention_backward(const void*, const Saved&, const void*);

}  // namespace cuda
}  // namespace simplescale
