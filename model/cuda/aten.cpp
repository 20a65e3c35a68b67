#include "model/cuda/aten.hpp"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "model/cuda/cudnn_attention.hpp"
#include "runtime/base/device_memory_retry.hpp"

namespace simplescale::cuda {
namespace {

using Kernel = AttentionKernel;

/// Makes libtorch choose deterministic kernels during its lifetime. The setting is process-wide, so
/// it is limited to the one call that needs it.
class Deterministic {
 public:
  explicit Deterministic(bool wanted) : wanted_(wanted) {
    if (wanted_) at::globalContext().setDeterministicAlgorithms(true, false);
  }
  ~Deterministic() {
    if (wanted_) at::globalContext().setDeterministicAlgorithms(false, false);
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  bool wanted_;
};

/// libtorch has an exception of its own for its allocator only.
bool out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) return true;
  if (const auto* of_cudnn = dynamic_cast<const CudnnError*>(&error)) return of_cudnn->no_memory;
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch && std::string(of_libtorch->what_without_backtrace()).find("out of memory") !=
                            std::string::npos;
}

template <class T>
HeadView<T> view_of(const at::Tensor& t) {
  TORCH_INTERNAL_ASSERT(t.stride(3) == 1);
  return {static_cast<const T*>(t.const_data_ptr()), t.stride(0), t.stride(1), t.stride(2)};
}

}  // namespace

struct Aten::Saved {
  at::Tensor out, lse;  // out: (batch, heads, T, D); in memory T comes before heads
  at::Tensor seed, offset, bias, cum_seq_q, cum_seq_k;
};
void Aten::SavedDeleter::operator()(Saved* saved) const {
  delete saved;
}

struct Aten::Impl {
  Impl(int device_index, DType dtype, const AttentionShape& attention, bool deterministic_,
       const ChosenAlgorithms* chosen)
      : stream(c10::cuda::getStreamFromPool(-1, static_cast<c10::DeviceIndex>(device_index))),
        options(at::TensorOptions()
                    .device(at::kCUDA, static_cast<c10::DeviceIndex>(device_index))
                    .dtype(dtype == DType::f32 ? at::kFloat : at::kBFloat16)),
        shape(attention),
        deterministic(deterministic_),
        forward(shape, dtype, "forward", chosen),
        backward(shape, dtype, deterministic ? "backward" : "backward, not deterministic", chosen) {
  }

  at::Tensor tensor(const void* data, at::IntArrayRef sizes, at::IntArrayRef strides) const {
    return at::for_blob(const_cast<void*>(data), sizes)
        .strides(strides)
        .options(options)
        .target_device(options.device())
        .make_tensor();
  }
  /// View of `count` heads of every row of qkv, from head `first` on: (batch, count, T, D).
  at::Tensor heads(const void* qkv, int64_t first, int64_t count) const {
    const auto* data = static_cast<const char*>(qkv) +
                       static_cast<size_t>(first * shape.D) * options.dtype().itemsize();
    return tensor(data, {shape.batch, count, shape.T, shape.D},
                  {shape.T * shape.ld_qkv, shape.D, shape.ld_qkv, 1});
  }
  at::Tensor q(const void* qkv) const { return heads(qkv, 0, shape.heads); }
  at::Tensor k(const void* qkv) const { return heads(qkv, shape.heads, shape.kv_heads); }
  at::Tensor v(const void* qkv) const {
    return heads(qkv, shape.heads + shape.kv_heads, shape.kv_heads);
  }
  /// What documents and the window hide from the efficient kernel: minus infinity, (batch, heads, T,
  /// T) of one (T, T) matrix, or with documents of `batch` of them, in memory. None without both.
  std::optional<at::Tensor> hidden_keys() {
    if (apart.defined()) return apart.expand({shape.batch, shape.heads, shape.T, shape.T});
    if (shape.window == 0) return std::nullopt;
    if (!hidden.defined()) {
      const int64_t row = (shape.T + 7) / 8 * 8;  // the kernel wants aligned rows
      hidden = at::full({shape.T, row}, -std::numeric_limits<double>::infinity(), options)
                   .tril_(-shape.window)
                   .slice(1, 0, shape.T);
    }
    return hidden.expand({shape.batch, shape.heads, shape.T, shape.T});
  }
  /// hidden_keys() of these documents: (batch, 1, T, T).
  at::Tensor between(const DocumentRows& documents) const {
    const int64_t row = (shape.T + 7) / 8 * 8;  // the kernel wants aligned rows
    const at::Tensor of_row = integers(documents.of_row, {shape.batch, shape.T});
    const double hide = -std::numeric_limits<double>::infinity();
    at::Tensor mask = at::zeros({shape.batch, shape.T, row}, options).slice(2, 0, shape.T);
    mask.masked_fill_(of_row.unsqueeze(2).ne(of_row.unsqueeze(1)), hide);
    if (shape.window > 0)
      mask.add_(at::full({shape.T, shape.T}, hide, options).tril_(-shape.window));
    return mask.unsqueeze(1);
  }
  at::Tensor integers(const int32_t* data, at::IntArrayRef sizes) const {
    return at::for_blob(const_cast<int32_t*>(data), sizes)
        .options(options.dtype(at::kInt))
        .target_device(options.device())
        .make_tensor();
  }
  /// flash takes documents as one sequence after the other, without a batch: (batch, heads, T, D) as
  /// (batch * T, heads, D), and back.
  at::Tensor rows(const at::Tensor& t) const { return t.transpose(1, 2).flatten(0, 1); }
  at::Tensor batches(const at::Tensor& t) const {
    return t.unflatten(0, {shape.batch, shape.T}).transpose(1, 2);
  }
  /// flash's window: tokens before a query that it sees. None: all.
  std::optional<int64_t> seen_before() const {
    return shape.window > 0 ? std::optional(shape.window - 1) : std::nullopt;
  }
  std::optional<int64_t> seen_after() const {
    return shape.window > 0 ? std::optional<int64_t>(0) : std::nullopt;
  }
  /// The kernel of this micro-batch's pass; launch(kernel) makes that pass, plan() names cuDNN's plan.
  template <class Launch, class PlanName>
  Kernel kernel_of(AttentionChoice& pass, const Launch& launch, const PlanName& plan) {
    return pass.kernel(stream.stream(), begins.defined(), launch, plan, out_of_memory, [this] {
      dq = dk = dv = dqkv = at::Tensor();
      c10::cuda::CUDACachingAllocator::emptyCache();  // of what only the other kernel needs
    });
  }
  CudnnAttention& cudnn() {
    if (!of_cudnn) of_cudnn.emplace(shape, deterministic, stream.stream());
    return *of_cudnn;
  }
  at::Tensor bytes(size_t count) const {
    return at::empty({static_cast<int64_t>(std::max<size_t>(count, 1))}, options.dtype(at::kByte));
  }
  /// heads() of rows that libtorch has allocated, (batch * T, ld_qkv).
  at::Tensor heads_of(const at::Tensor& rows, int64_t first, int64_t count) const {
    return batches(rows.narrow(1, first * shape.D, count * shape.D).unflatten(1, {count, shape.D}));
  }
  int64_t group() const { return shape.heads / shape.kv_heads; }
  /// (batch, kv_heads, T, D) to (batch, heads, T, D): each key/value head once per query head.
  at::Tensor repeated(const at::Tensor& t) const {
    if (group() == 1) return t;
    return t.unsqueeze(2)
        .expand({shape.batch, shape.kv_heads, group(), shape.T, shape.D})
        .reshape({shape.batch, shape.heads, shape.T, shape.D});
  }
  /// (batch, heads, T, D) to (batch, kv_heads, T, D).
  at::Tensor summed_over_group(const at::Tensor& t) const {
    if (group() == 1) return t;
    return t.reshape({shape.batch, shape.kv_heads, group(), shape.T, shape.D}).sum(2);
  }

  /// Calls body() again while there is no device memory: for libtorch's allocator, which has then
  /// emptied its cache, or for cuDNN.
  template <class Body>
  auto with_memory(Body body) {
    for (;;) try {
        return body();
      } catch (const std::exception& error) {
        (void)cudaGetLastError();  // libtorch throws what it finds there after its next kernel
        if (!out_of_memory(error) || !patience.again()) throw;
      }
  }

  c10::cuda::CUDAStream stream;
  at::TensorOptions options;
  AttentionShape shape;
  bool deterministic;
  AttentionChoice forward, backward;
  std::optional<CudnnAttention> of_cudnn;
  DeviceMemoryRetry patience;
  at::Tensor dq, dk, dv;  // results of the last backward pass
  at::Tensor dqkv;        // by cuDNN: their memory, which lies as qkv; or undefined
  at::Tensor hidden;      // see hidden_keys()
  at::Tensor apart;       // hidden_keys() of the micro-batch's documents; or undefined
  at::Tensor begins;      // of the micro-batch's documents, for flash; or undefined
};

void Aten::load() {
  at::globalContext().lazyInitDevice(at::kCUDA);
  if (cudnn_version() > 0) try {
      CudnnAttention::load();
    } catch (const CudnnError& error) {  // it is made again where it is used
      std::fprintf(stderr, "cuDNN is not loaded beforehand: %s\n", error.what());
    }
}

size_t Aten::cudnn_version() {
  return CudnnAttention::version();
}

Aten::Aten(int device_index, DType dtype, const AttentionShape& attention, bool deterministic,
           const ChosenAlgorithms* chosen)
    : impl_(std::make_unique<Impl>(device_index, dtype, attention, deterministic, chosen)) {
  // None of the functions used here initializes CUDA, and libtorch's allocator needs it.
  at::globalContext().lazyInitDevice(at::kCUDA);
  // Do not fill memory that is about to be overwritten.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}
Aten::~Aten() = default;

cudaStream_t Aten::stream() const {
  return impl_->stream.stream();
}

void Aten::use(AttentionKernel kernel) {
  impl_->forward.use(kernel);
  impl_->backward.use(kernel);
}

void Aten::set_documents(const DocumentRows* documents) {
  const c10::cuda::CUDAStreamGuard on(impl_->stream);
  const at::NoGradGuard no_grad;
  impl_->apart = impl_->begins = at::Tensor();
  if (!documents) return;
  if (impl_->options.dtype() == at::kFloat)
    impl_->apart = impl_->with_memory([&] { return impl_->between(*documents); });
  else
    impl_->begins = impl_->integers(documents->begin, {documents->count + 1});
}

Aten::SavedPtr Aten::attention(const void* qkv) {
  const auto pass = [&](Kernel kernel) {
    return impl_->with_memory([&] { return attend(kernel, qkv); });
  };
  return pass(
      impl_->kernel_of(impl_->forward, pass, [&] { return impl_->cudnn().forward_plan(); }));
}

Aten::SavedPtr Aten::attend(Kernel kernel, const void* qkv) {
  const c10::cuda::CUDAStreamGuard on(impl_->stream);
  const at::NoGradGuard no_grad;
  const at::Tensor q = impl_->q(qkv), k = impl_->k(qkv), v = impl_->v(qkv);
  SavedPtr saved(new Saved);
  switch (kernel) {
    case Kernel::efficient: {
      const std::optional<at::Tensor> bias = impl_->hidden_keys();
      auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
          q, impl_->repeated(k), impl_->repeated(v), bias, true, 0.0, true);
      *saved = {out, lse, seed, offset, bias.value_or(at::Tensor()), {}, {}};
      break;
    }
    case Kernel::flash: {
      const int64_t T = impl_->shape.T;
      if (const at::Tensor& begins = impl_->begins; begins.defined()) {
        auto [out, lse, seed, offset, mask] = at::_flash_attention_forward(
            impl_->rows(q), impl_->rows(k), impl_->rows(v), begins, begins, T, T, 0.0, true, false,
            std::nullopt, impl_->seen_before(), impl_->seen_after());
        *saved = {impl_->batches(out), lse, seed, offset, {}, begins, begins};
        break;
      }
      if (const auto before = impl_->seen_before()) {
        auto [out, lse, seed, offset, mask] = at::_flash_attention_forward(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), std::nullopt, std::nullopt, T,
            T, 0.0, true, false, std::nullopt, *before, 0);
        *saved = {out.transpose(1, 2), lse, seed, offset, {}, {}, {}};
        break;
      }
      auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, mask] =
          at::_scaled_dot_product_flash_attention(q, k, v, 0.0, true, false);
      *saved = {out, lse, seed, offset, {}, cum_q, cum_k};
      break;
    }
    case Kernel::cudnn: {
      const AttentionShape& shape = impl_->shape;
      const at::Tensor out =
                           at::empty({shape.batch, shape.T, shape.heads, shape.D}, impl_->options),
                       lse = at::empty({shape.batch, shape.heads, shape.T},
                                       impl_->options.dtype(at::kFloat)),
                       workspace = impl_->bytes(
                           impl_->cudnn().forward_workspace(impl_->forward.cudnn_plan()));
      impl_->cudnn().forward(qkv, out.mutable_data_ptr(), lse.mutable_data_ptr<float>(),
                             workspace.mutable_data_ptr());
      *saved = {out.transpose(1, 2), lse, {}, {}, {}, {}, {}};
      break;
    }
  }
  // Ensures the layout that attended() relies on; a no-op with the layouts of these kernels.
  saved->out = saved->out.transpose(1, 2).contiguous().transpose(1, 2);
  return saved;
}

const void* Aten::attended(const Saved& saved) const {
  return saved.out.const_data_ptr();
}

template <class T>
Aten::Gradients<T> Aten::attention_backward(const void* qkv, const Saved& saved,
                                            const void* dattended) {
  const auto pass = [&](Kernel kernel) {
    return impl_->with_memory([&] { return attend_backward<T>(kernel, qkv, saved, dattended); });
  };
  return pass(
      impl_->kernel_of(impl_->backward, pass, [&] { return impl_->cudnn().backward_plan(); }));
}

template <class T>
Aten::Gradients<T> Aten::attend_backward(Kernel kernel, const void* qkv, const Saved& s,
                                         const void* dattended) {
  Impl& i = *impl_;
  const c10::cuda::CUDAStreamGuard on(i.stream);
  const at::NoGradGuard no_grad;
  const Deterministic deterministic(i.deterministic);
  const at::Tensor q = i.q(qkv), k = i.k(qkv), v = i.v(qkv);
  // The stream has read the last pass's results before this one writes: it may take their memory.
  i.dq = i.dk = i.dv = at::Tensor();
  if (kernel != Kernel::cudnn) i.dqkv = at::Tensor();
  const int64_t A = i.shape.heads * i.shape.D;
  const at::Tensor dout = i.tensor(dattended, {i.shape.batch, i.shape.heads, i.shape.T, i.shape.D},
                                   {i.shape.T * A, i.shape.D, A, 1});
  switch (kernel) {
    case Kernel::efficient: {
      auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
          dout, q, i.repeated(k), i.repeated(v), s.bias, s.out, s.lse, s.seed, s.offset, 0.0,
          {true, true, true, false}, true);
      i.dq = dq;
      i.dk = i.summed_over_group(dk);
      i.dv = i.summed_over_group(dv);
      break;
    }
    case Kernel::flash: {
      if (i.begins.defined()) {
        auto [dq, dk, dv] = at::_flash_attention_backward(
            i.rows(dout), i.rows(q), i.rows(k), i.rows(v), i.rows(s.out), s.lse, s.cum_seq_q,
            s.cum_seq_k, i.shape.T, i.shape.T, 0.0, true, s.seed, s.offset, std::nullopt,
            i.seen_before(), i.seen_after());
        i.dq = i.batches(dq), i.dk = i.batches(dk), i.dv = i.batches(dv);
        break;
      }
      if (const auto before = i.seen_before()) {
        auto [dq, dk, dv] = at::_flash_attention_backward(
            dout.transpose(1, 2), q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
            s.out.transpose(1, 2), s.lse, s.cum_seq_q, s.cum_seq_k, i.shape.T, i.shape.T, 0.0, true,
            s.seed, s.offset, std::nullopt, *before, 0);
        i.dq = dq.transpose(1, 2), i.dk = dk.transpose(1, 2), i.dv = dv.transpose(1, 2);
        break;
      }
      std::tie(i.dq, i.dk, i.dv) = at::_scaled_dot_product_flash_attention_backward(
          dout, q, k, v, s.out, s.lse, s.cum_seq_q, s.cum_seq_k, i.shape.T, i.shape.T, 0.0, true,
          s.seed, s.offset);
      break;
    }
    case Kernel::cudnn: {
      const AttentionShape& shape = i.shape;
      if (!i.dqkv.defined()) i.dqkv = at::empty({shape.batch * shape.T, shape.ld_qkv}, i.options);
      const at::Tensor workspace = i.bytes(i.cudnn().backward_workspace(i.backward.cudnn_plan()));
      i.cudnn().backward(qkv, s.out.const_data_ptr(), s.lse.const_data_ptr<float>(), dattended,
                         i.dqkv.mutable_data_ptr(), workspace.mutable_data_ptr());
      i.dq = i.heads_of(i.dqkv, 0, shape.heads);
      i.dk = i.heads_of(i.dqkv, shape.heads, shape.kv_heads);
      i.dv = i.heads_of(i.dqkv, shape.heads + shape.kv_heads, shape.kv_heads);
      break;
    }
  }
  return {view_of<T>(i.dq), view_of<T>(i.dk), view_of<T>(i.dv)};
}

template Aten::Gradients<float> Aten::attention_backward(const void*, const Saved&, const void*);
template Aten::Gradients<Bf16> Aten::attention_backward(const void*, const Saved&, const void*);

}  // namespace simplescale::cuda
