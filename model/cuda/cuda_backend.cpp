#include "model/cuda/cuda_backend.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <type_traits>

#include "model/cuda/check.hpp"
#include "runtime/base/library.hpp"
#include "runtime/training/state_hash.hpp"

namespace simplescale::cuda {
namespace {

Status check_device(int index, bool fp8 = false) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess)
    return Status(Code::unavailable,
                  std::string("no GPU can be used: ") + cudaGetErrorString(error));
  if (index < 0 || index >= devices)
    return Status(Code::unavailable, "there is no GPU " + std::to_string(index) + ", only " +
                                         std::to_string(devices) + " (CUDA_VISIBLE_DEVICES?)");
  cudaDeviceProp properties{};
  if (const cudaError_t asked = cudaGetDeviceProperties(&properties, index); asked != cudaSuccess)
    return Status(Code::unavailable, "GPU " + std::to_string(index) +
                                         " does not answer: " + cudaGetErrorString(asked));
  if (properties.major < kOldestGpuMajor)
    return Status(Code::unavailable, "GPU " + std::to_string(index) + " (" + properties.name +
                                         ") is older than Ampere, which the program requires");
  if (fp8 && (properties.major != kFp8Major || properties.minor != kFp8Minor))
    return Status(Code::bad_config, "GPU " + std::to_string(index) + " (" + properties.name +
                                        ") does not make products in fp8 with a scale for each " +
                                        "block, which only Hopper GPUs (sm_90) do: set train.fp8 " +
                                        "= false");
  return {};
}

Status check_options(const BackendOptions& options) {
  SS_RETURN_IF_ERROR(validate(options.shape));
  if (options.micro_batch_size < 1)
    return Status(
        Code::bad_config,
        "micro_batch_size = " + std::to_string(options.micro_batch_size) + " is out of range");
  if (options.inputs_in_host && options.recompute != Recompute::block)
    return Status(Code::bad_config,
                  "inputs of blocks cannot be in host memory if the blocks are not recomputed");
  if (options.fp8) SS_RETURN_IF_ERROR(validate_fp8(options.shape, options.micro_batch_size));
  return validate_gpu_heads(options.shape, options.precision);
}

constexpr int64_t aligned(int64_t count) {
  return (count + 63) / 64 * 64;
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options) try {
  SS_RETURN_IF_ERROR(check_options(options));
  SS_RETURN_IF_ERROR(check_device(options.device_index, options.fp8));
  use_device(options.device_index);
  return options.precision == DType::f32 ? LlamaBackend::make<CudaBackend<float>>(options)
                                         : LlamaBackend::make<CudaBackend<Bf16>>(options);
} catch (const std::exception& error) {  // CudaError, and what libtorch throws
  return Status(Code::unavailable,
                "GPU " + std::to_string(options.device_index) + ": " + error.what());
}

Status hold_context(int device_index) try {
  SS_RETURN_IF_ERROR(check_device(device_index));
  use_device(device_index);
  Aten::load();
  Gemm::load();
  return {};
} catch (const std::exception& error) {
  drop_context(device_index);
  return Status(Code::unavailable, "GPU " + std::to_string(device_index) + ": " + error.what());
}

void drop_context(int device_index) {
  if (cudaSetDevice(device_index) == cudaSuccess) (void)cudaDeviceReset();
  // The former device stays unset: cudaSetDevice() would make its context again if that has ended.
  (void)cudaGetLastError();
}

template <class T>
CudaBackend<T>::CudaBackend(const BackendOptions& options)
    : LlamaBackend(options),
      chosen_(ChosenAlgorithms::of_run(options.gemm_folder, options.device_index)),
      aten_(options.device_index, options.precision,
            {B_, options.shape.heads, options.shape.kv_heads, T_, D_, Q_, options.shape.window()},
            options.deterministic, chosen_.get()),
      stream_(aten_.stream()),
      gemm_(options.precision, stream_, chosen_.get()),
      copies_(options.threads),
      frames_(static_cast<size_t>(options.frames)),
      frame_(frames_.data()) {
  for (Frame& frame : frames_)
    for (cudaEvent_t* event : {&frame.tokens_read, &frame.losses_ready})
      SS_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventBlockingSync));
}

template <class T>
CudaBackend<T>::~CudaBackend() {
  (void)cudaStreamSynchronize(stream_);
  (void)cudaStreamSynchronize(inputs_stream_.get());
  for (Frame& frame : frames_)
    for (cudaEvent_t event : {frame.tokens_read, frame.losses_ready})
      if (event) (void)cudaEventDestroy(event);
}

// --- Frames ---

template <class T>
void CudaBackend<T>::use(int frame) {
  Frame* const next = &frames_[static_cast<size_t>(frame)];
  if (next == frame_) return;
  if (const int layer = std::exchange(sum_due_of_, -1); layer >= 0)
    SS_CUDA(add<T>(stream_, N_ * C_, saved(layer).middle, product_, x(layer + 1)));
  frame_ = next;
  show_documents();
}

/// Tells attention where the frame's documents begin.
template <class T>
void CudaBackend<T>::show_documents() {
  if (frame_->documents.begin.empty()) return;  // before embed()
  const DocumentRows rows{frame_->documents.count(), frame_->document_begin, frame_->row_document};
  aten_.set_documents(rows.count > B_ ? &rows : nullptr);
}

template <class T>
void CudaBackend<T>::take_frame(Frame& frame) {
  const bool training = options_.training;
  frame.tokens = take<int32_t>(4 * aligned(N_) + aligned(N_ + 1) + aligned(V_ + 1));
  frame.inputs = frame.tokens;
  frame.targets = frame.inputs + aligned(N_);
  frame.token_rows = frame.targets + aligned(N_);
  frame.row_document = frame.token_rows + aligned(N_);
  frame.document_begin = frame.row_document + aligned(N_);
  frame.token_begin = frame.document_begin + aligned(N_ + 1);
  frame.x.resize(training && !inputs_in_host() ? static_cast<size_t>(shape_.layers) + 1 : 2);
  if (inputs_in_host())
    frame.inputs_out.reserve(static_cast<size_t>((shape_.layers - 1) * N_ * C_) * sizeof(T));
  for (T*& x : frame.x) x = take<T>(N_ * C_);
  if (training) frame.d_out = take<T>(N_ * C_);
  const bool keep = training && options_.recompute != Recompute::block;
  const Frame& first = frames_.front();
  if (!keep && &frame != &first) return;
  frame.saved.resize(keep ? static_cast<size_t>(shape_.layers) : 1);
  for (Saved& s : frame.saved) {
    s.qkv = take<T>(N_ * Q_);
    s.middle = take<T>(N_ * C_);
    const bool share = options_.recompute == Recompute::mlp && first.saved[0].gate_up;
    s.gate_up =
        share ? first.saved[0].gate_up : take<T>((keeps_gate_up() ? N_ : mlp_rows_) * 2 * F_);
    if (has_qk_norm()) s.qk = take<T>(N_ * (A_ + K_));
    if (post_norm()) s.attention_out = take<T>(N_ * C_), s.mlp_out = take<T>(N_ * C_);
  }
}

// --- Memory ---

template <class T>
Status CudaBackend<T>::allocate_buffers() {
  const bool training = options_.training;
  cosine_ = take<float>(T_ * (D_ / 2));
  sine_ = take<float>(T_ * (D_ / 2));
  const auto rows_at_a_time = [this](int64_t row) {
    return std::clamp<int64_t>(options_.part_bytes / (row * int64_t{sizeof(T)}), 1, N_);
  };
  kept_rows_ = rows_at_a_time(V_);
  logits_ = take<T>(kept_rows_ * V_);

  mlp_rows_ = rows_at_a_time(2 * F_);
  if (options_.fp8)  // whole blocks, but for the last part
    mlp_rows_ = std::min(N_, std::max<int64_t>(1, mlp_rows_ / kFp8Block) * kFp8Block);
  for (Frame& frame : frames_) take_frame(frame);
  normed_ = take<T>(N_ * C_);
  product_ = take<T>(N_ * std::max(C_, A_));
  act_ = take<T>(mlp_rows_ * F_);
  if (options_.fp8) allocate_fp8();
  if (!training) return allocated_;

  if (options_.muon) {
    gram_ = take<T>(muon_side() * muon_side());
    polynomial_ = take<T>(muon_side() * muon_side());
    muon_product_ = take<T>(muon_elements());
  }
  for (T** buffer : {&d_middle_, &d_in_}) *buffer = take<T>(N_ * C_);
  d_qkv_ = take<T>(N_ * Q_);
  d_gate_up_ = take<T>(mlp_rows_ * 2 * F_);
  int64_t partials = gamma_partials(N_) * std::max(C_, shape_.bias_width());
  if (has_qk_norm())
    for (const QkPieces part : {qk_pieces(A_), qk_pieces(K_)})
      partials = std::max(partials, gamma_partials(N_ * part.pieces) * part.width);
  d_gamma_ = take<float>(partials);
  return allocated_;
}

template <class T>
void CudaBackend<T>::allocate_fp8() {
  struct {
    int64_t values = 0, scales = 0;
    void fit(bool square, int64_t rows, int64_t columns) {
      values = std::max(values, rows * columns);
      scales = std::max(scales, fp8_scale_count(square, rows, columns));
    }
  } left, right, turned;
  struct {
    int64_t rows, out, in;
  } const products[] = {{N_, Q_, C_}, {N_, C_, A_}, {mlp_rows_, 2 * F_, C_}, {mlp_rows_, C_, F_}};
  for (const auto& [rows, out, in] : products) {
    left.fit(false, rows, in);
    right.fit(true, out, in);
    if (!options_.training) continue;
    left.fit(false, rows, out);
    turned.fit(false, out, rows);
    right.fit(true, in, out);
    right.fit(false, in, rows);
  }
  for (const auto& [size, buffer] :
       {std::pair{left, &fp8_left_}, {right, &fp8_right_}, {turned, &fp8_turned_}})
    *buffer = {take<uint8_t>(size.values), take<float>(size.scales)};
  // to_fp8() does not write the padding at the end of a row of square blocks.
  if (allocated_.ok()) zero(fp8_right_.scales, static_cast<size_t>(right.scales) * sizeof(float));
}

template <class T>
Result<void*> CudaBackend<T>::allocate(size_t bytes) {
  return memory_.allocate(bytes);
}

template <class T>
void CudaBackend<T>::copy_to_device(void* device, const void* host, size_t bytes) {
  copies_.copy(stream_, device, host, bytes, false);
}

template <class T>
void CudaBackend<T>::copy_to_host(void* host, const void* device, size_t bytes) {
  copies_.copy(stream_, host, device, bytes, true);
}

template <class T>
Result<void*> CudaBackend<T>::host_buffer(HostUse use, size_t bytes) {
  try {
    return copies_.reserve(static_cast<size_t>(use), bytes);
  } catch (const CudaError& error) {
    (void)cudaGetLastError();
    return Status(Code::io, "no pinned host memory for " + std::to_string(bytes) +
                                " bytes, which " + "parallel.offload needs: " + error.what());
  }
}

template <class T>
Backend::PendingCopy CudaBackend<T>::start_upload(void* device, const void* host, size_t bytes) {
  return [this, wait = copies_.upload(stream_, device, host, bytes)] { wait(stream_); };
}

template <class T>
Backend::PendingCopy CudaBackend<T>::start_download(void* host, const void* device, size_t bytes) {
  return [this, wait = copies_.download(stream_, host, device, bytes)] { wait(stream_); };
}

template <class T>
void CudaBackend<T>::copy(void* to, const void* from, size_t bytes) {
  SS_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
}

template <class T>
void CudaBackend<T>::zero(void* data, size_t bytes) {
  SS_CUDA(cudaMemsetAsync(data, 0, bytes, stream_));
}

template <class T>
void CudaBackend<T>::synchronize() {
  SS_CUDA(cudaStreamSynchronize(stream_));
}

// --- Element-wise work on a shard ---

template <class T>
void CudaBackend<T>::cast(const float* from, void* to, size_t count) {
  if constexpr (std::is_same_v<T, float>)
    SS_CUDA(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDeviceToDevice, stream_));
  else
    SS_CUDA(to_bf16(stream_, static_cast<int64_t>(count), from, static_cast<Bf16*>(to)));
}

template <class T>
void* CudaBackend<T>::results(size_t bytes) {
  if (bytes > results_bytes_) {
    Result<void*> memory = memory_.allocate(bytes);
    if (!memory.ok()) throw CudaError(memory.status().message());
    results_ = *memory;
    results_bytes_ = bytes;
  }
  return results_;
}

template <class T>
void CudaBackend<T>::start_squares(const float* values, size_t first, size_t count, size_t total) {
  static_assert(kShardAlign == 1024, "the kernel's block");
  auto* of_blocks = static_cast<double*>(results(total / kShardAlign * sizeof(double)));
  SS_CUDA(block_square_sums(stream_, static_cast<int64_t>(count / kShardAlign), values,
                            of_blocks + first / kShardAlign));
}

template <class T>
void CudaBackend<T>::square_sums(std::span<const BlockTree> trees, double* sums) {
  if (trees.empty()) return;
  auto* of_blocks = static_cast<double*>(results_);
  // The device reads the trees and writes their sums in pinned memory: a few kilobytes.
  auto* pinned = static_cast<BlockTree*>(
      pinned_results_.reserve(trees.size() * (sizeof(BlockTree) + sizeof(double))));
  std::ranges::copy(trees, pinned);
  auto* of_trees = reinterpret_cast<double*>(pinned + trees.size());
  SS_CUDA(tree_sums(stream_, static_cast<int64_t>(trees.size()), pinned, of_blocks, of_trees));
  synchronize();
  std::copy_n(of_trees, trees.size(), sums);
}

template <class T>
Backend::PendingHash CudaBackend<T>::start_state_hash(const TrainState::Side& side) {
  static_assert(kStateHashBlock == kHashBlock && sizeof(Hash128) == 2 * sizeof(uint64_t) &&
                offsetof(Hash128, high) == 0);
  SS_ASSERT(side.params.size() % kShardAlign == 0);
  const auto blocks = [](std::span<const float> part) {
    return (part.size() + kStateHashBlock - 1) / kStateHashBlock;
  };
  size_t bytes = 0;
  for (const std::span<float> part : side.parts()) bytes += blocks(part) * sizeof(Hash128);
  void* const pinned = pinned_hashes_.reserve(bytes);
  auto* hashes = static_cast<uint64_t*>(pinned);
  hash_stream_.follow(stream_);
  for (const std::span<float> part : side.parts()) {
    SS_CUDA(
        hash_blocks(hash_stream_.get(), static_cast<int64_t>(part.size()), part.data(), hashes));
    hashes += 2 * blocks(part);
  }
  return [this, pinned, bytes] {
    hash_stream_.finish();
    return hash128(pinned, bytes);
  };
}

template <class T>
void CudaBackend<T>::adamw(const AdamW& o, std::span<const ParameterRun> runs,
                           const float* gradient, const float* from_params, const void* from_avg,
                           const void* from_avg_sq, float* to_params, void* to_avg, void* to_avg_sq,
                           void* rounded) {
  for (const ParameterRun& run : runs) {
    const auto constants = adamw_constants<AdamWConstants>(o, run);
    const auto count = static_cast<int64_t>(run.count);
    const size_t at = run.first;
    Bf16* to_bf16 = nullptr;
    if constexpr (std::is_same_v<T, Bf16>)
      if (rounded) to_bf16 = static_cast<Bf16*>(rounded) + at;
    if (o.moments.dtype == DType::f32)
      SS_CUDA(cuda::adamw(stream_, count, constants, gradient + at, from_params + at,
                          static_cast<const float*>(from_avg) + at,
                          static_cast<const float*>(from_avg_sq) + at, to_params + at,
                          static_cast<float*>(to_avg) + at, static_cast<float*>(to_avg_sq) + at,
                          to_bf16));
    else
      SS_CUDA(cuda::adamw(stream_, count, constants, {o.moments.key, run.element}, gradient + at,
                          from_params + at, static_cast<const Bf16*>(from_avg) + at,
                          static_cast<const Bf16*>(from_avg_sq) + at, to_params + at,
                          static_cast<Bf16*>(to_avg) + at, static_cast<Bf16*>(to_avg_sq) + at,
                          to_bf16));
    if (std::is_same_v<T, float> && rounded)
      cast(to_params + at, static_cast<float*>(rounded) + at, run.count);
  }
}

template <class T>
void CudaBackend<T>::accumulate(const float* from, float* to, size_t count) {
  SS_CUDA(add<float>(stream_, static_cast<int64_t>(count), to, from, to));
}

/// The leaf completes the last of the sum's nodes, none of them or several.
template <class T>
void CudaBackend<T>::add_leaf(const TreeSource& leaf, PartialSum& sum) {
  const size_t before = sum.nodes().size();
  sum.added({&leaf.node, 1});
  const size_t to = sum.nodes().size() - 1;
  LeftSums left;
  SS_ASSERT(before - to <= LeftSums::kMost);
  for (size_t i = to; i < before; ++i) left.sums[left.count++] = sum.data(i);
  SS_ASSERT(leaf.dtype == options_.precision && to < sum.buffers());
  SS_CUDA(cuda::add_leaf(stream_, static_cast<int64_t>(sum.count()), left,
                         static_cast<const T*>(leaf.data), sum.buffer(to)));
}

template <class T>
void CudaBackend<T>::average(float weight, size_t count, const float* params, const float* from,
                             float* to) {
  SS_CUDA(cuda::average(stream_, static_cast<int64_t>(count), weight, params, from, to));
}

template class CudaBackend<float>;
template class CudaBackend<Bf16>;

}  // namespace simplescale::cuda
