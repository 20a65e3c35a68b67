#include "model/cuda/cudnn_attention.hpp"

// Without them the header would need cuDNN, NVRTC and the driver's library at link time, and a second
// version of nlohmann-json.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <dlfcn.h>
namespace cudnn_frontend::detail {
/// The header finds this one first. It takes only what the process has: not another CUDA runtime.
inline void* dlopen(const char* name, int flags) {
  return ::dlopen(name, flags | RTLD_NOLOAD);
}
}  // namespace cudnn_frontend::detail
#include <cudnn_frontend.h>

#include <cmath>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fe = cudnn_frontend;

/// The header looks up cuDNN's functions here.
void* cudnn_frontend::cudnn_dlhandle = nullptr;

namespace simplescale::cuda {
namespace {

/// The tensors' names in graphs.
enum Uid : int64_t { kQ = 1, kK, kV, kOut, kLogSums, kDOut, kDQ, kDK, kDV };

/// An element of a tensor in bf16.
void* at(const void* data, int64_t element) {
  return static_cast<char*>(const_cast<void*>(data)) + 2 * element;
}

/// libtorch has loaded cuDNN, unless it was built without.
bool is_loaded() {
  if (!fe::cudnn_dlhandle) fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW);
  return fe::cudnn_dlhandle;
}

struct DestroyHandle {
  void operator()(cudnnContext* handle) const { (void)fe::detail::destroy_handle(handle); }
};
using Handle = std::unique_ptr<cudnnContext, DestroyHandle>;

/// cudnnCreate() may report missing memory as "not initialized".
void check(cudnnStatus_t status, const std::string& call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const std::string why = fe::detail::get_error_string(status);
  throw CudnnError(call + ": " + why,
                   is_want_of_memory(why) || status == CUDNN_STATUS_NOT_INITIALIZED);
}

Handle make_handle() {
  if (!is_loaded()) throw CudnnError(std::string("cuDNN cannot be loaded: ") + dlerror(), false);
  cudnnHandle_t handle = nullptr;
  check(fe::detail::create_handle(&handle), "cudnnCreate");
  return Handle(handle);
}

using Part = AttentionPart;

struct Pass {
  std::shared_ptr<fe::graph::Graph> graph;
  Part part;
  size_t workspace_bytes = 0;
  std::string plan;
};

}  // namespace

struct CudnnAttention::Impl {
  using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
  using Strides = std::vector<int64_t>;

  int64_t group() const { return shape.heads / shape.kv_heads; }
  int64_t row_of_out() const { return shape.heads * shape.D; }
  Strides qkv_strides() const { return {shape.T * shape.ld_qkv, shape.D, shape.ld_qkv, 1}; }
  Strides out_strides() const { return {shape.T * row_of_out(), shape.D, row_of_out(), 1}; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape.D)); }

  /// Its first line is for the log, if there is a choice.
  CudnnError failure(const char* pass, const std::string& why) const {
    return {"cuDNN, " + shape.text() + ", " + pass + ": " + why +
                "\nIf this run has chosen cuDNN here, remove its file in control/products to "
                "choose again",
            is_want_of_memory(why)};
  }
  void check(const fe::error_t& error, const char* pass) const {
    if (error.is_bad()) throw failure(pass, error.err_msg);
  }

  /// A tensor of (samples, heads, T, width).
  fe::graph::Tensor_attributes tensor(Uid uid, const Part& part, int64_t heads, int64_t width,
                                      const Strides& strides) const {
    fe::graph::Tensor_attributes made;
    made.set_uid(uid).set_dim({part.samples, heads, shape.T, width}).set_stride(strides);
    return made;
  }
  fe::graph::Tensor_attributes log_sums(const Part& part) const {
    const int64_t heads = part.kv_heads * group();
    return tensor(kLogSums, part, heads, 1, {heads * shape.T, shape.T, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }
  static void output(const Tensor& made, const fe::graph::Tensor_attributes& as) {
    made->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
    if (as.get_data_type() != fe::DataType_t::NOT_SET) made->set_data_type(as.get_data_type());
  }

  static std::shared_ptr<fe::graph::Graph> new_graph() {
    auto graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    return graph;
  }
  /// Builds the graph by `plan`, or, if it is empty, by the first that works.
  Pass finished(std::shared_ptr<fe::graph::Graph> graph, const Part& part, const char* name,
                const std::string& plan) const {
    check(graph->validate(), name);
    check(graph->build_operation_graph(handle.get()), name);
    check(graph->create_execution_plans({fe::HeurMode_t::A}), name);
    std::vector<std::string> plans(static_cast<size_t>(graph->get_execution_plan_count()));
    for (size_t i = 0; i < plans.size(); ++i)
      check(graph->get_plan_name_at_index(static_cast<int64_t>(i), plans[i]), name);
    const size_t taken = attention_plan(plans, plan, shape.text() + ", " + name, [&](size_t i) {
      check(graph->build_plan_at_index(static_cast<int64_t>(i)), name);
    });
    int64_t bytes = 0;
    check(graph->get_workspace_size(bytes), name);
    return {std::move(graph), part, static_cast<size_t>(bytes), plans[taken]};
  }

  Pass make_forward(const std::string& plan) const {
    const Part all{shape.batch, shape.kv_heads};
    const auto graph = new_graph();
    const auto input = [&](Uid uid, int64_t heads) {
      return graph->tensor(tensor(uid, all, heads, shape.D, qkv_strides()));
    };
    fe::graph::SDPA_attributes options;
    options.set_name("attention")
        .set_generate_stats(true)
        .set_causal_mask(true)
        .set_attn_scale(scale());
    const auto [out, sums] = graph->sdpa(input(kQ, shape.heads), input(kK, shape.kv_heads),
                                         input(kV, shape.kv_heads), options);
    output(out, tensor(kOut, all, shape.heads, shape.D, out_strides()));
    output(sums, log_sums(all));
    return finished(graph, all, "forward", plan);
  }

  Pass make_backward(const Part& part, const std::string& plan) const {
    const int64_t heads = part.kv_heads * group();
    const auto graph = new_graph();
    const auto of_qkv = [&](Uid uid, int64_t count) {
      return tensor(uid, part, count, shape.D, qkv_strides());
    };
    const auto of_out = [&](Uid uid) {
      return graph->tensor(tensor(uid, part, heads, shape.D, out_strides()));
    };
    fe::graph::SDPA_backward_attributes options;
    options.set_name("attention, backward")
        .set_causal_mask(true)
        .set_attn_scale(scale())
        .set_deterministic_algorithm(deterministic);
    const auto [dq, dk, dv] = graph->sdpa_backward(
        graph->tensor(of_qkv(kQ, heads)), graph->tensor(of_qkv(kK, part.kv_heads)),
        graph->tensor(of_qkv(kV, part.kv_heads)), of_out(kOut), of_out(kDOut),
        graph->tensor(log_sums(part)), options);
    output(dq, of_qkv(kDQ, heads));
    output(dk, of_qkv(kDK, part.kv_heads));
    output(dv, of_qkv(kDV, part.kv_heads));
    return finished(graph, part, "backward", plan);
  }

  /// In parts if the whole needs too large a workspace.
  Pass make_backward(const std::string& plan) const {
    const Part all{shape.batch, shape.kv_heads};
    Pass made = make_backward(all, "");
    const bool fits = made.workspace_bytes <= kAttentionWorkspaceBytesMax;
    if (fits && (plan.empty() || made.plan == plan)) return made;
    made = make_backward(fits ? all : attention_part(shape, made.workspace_bytes), plan);
    if (made.workspace_bytes <= kAttentionWorkspaceBytesMax) return made;
    throw failure("backward",
                  "it needs a workspace of " + std::to_string(made.workspace_bytes) + " bytes");
  }

  static bool is(const Pass& made, const std::string& plan) {
    return made.graph && (plan.empty() || plan == made.plan);
  }
  /// Calls body(sample, head of keys) for each part.
  template <class Body>
  void for_each(const Part& part, Body body) const {
    for (int64_t sample = 0; sample < shape.batch; sample += part.samples)
      for (int64_t head = 0; head < shape.kv_heads; head += part.kv_heads) body(sample, head);
  }
  void execute(const Pass& pass, std::unordered_map<int64_t, void*> tensors, void* workspace,
               const char* name) const {
    check(pass.graph->execute(handle.get(), tensors, workspace), name);
  }

  const AttentionShape shape;
  const bool deterministic;
  const Handle handle = make_handle();
  Pass forward_made, backward_made;
};

CudnnAttention::CudnnAttention(const AttentionShape& shape, bool deterministic, cudaStream_t stream)
    : impl_(new Impl{shape, deterministic}) {
  check(fe::detail::set_stream(impl_->handle.get(), stream), "cudnnSetStream");
}
CudnnAttention::~CudnnAttention() = default;

void CudnnAttention::load() {
  (void)make_handle();
}

size_t CudnnAttention::version() {
  return is_loaded() ? fe::detail::get_backend_version() : 0;
}

size_t CudnnAttention::forward_workspace(const std::string& plan) {
  Pass& made = impl_->forward_made;
  if (!impl_->is(made, plan)) made = impl_->make_forward(plan);
  return made.workspace_bytes;
}

size_t CudnnAttention::backward_workspace(const std::string& plan) {
  Pass& made = impl_->backward_made;
  if (!impl_->is(made, plan)) made = impl_->make_backward(plan);
  return made.workspace_bytes;
}

const std::string& CudnnAttention::forward_plan() const {
  return impl_->forward_made.plan;
}

const std::string& CudnnAttention::backward_plan() const {
  return impl_->backward_made.plan;
}

void CudnnAttention::forward(const void* qkv, void* out, float* log_sums, void* workspace) {
  const AttentionShape& s = impl_->shape;
  impl_->execute(impl_->forward_made,
                 {{kQ, at(qkv, 0)},
                  {kK, at(qkv, s.heads * s.D)},
                  {kV, at(qkv, (s.heads + s.kv_heads) * s.D)},
                  {kOut, out},
                  {kLogSums, log_sums}},
                 workspace, "forward");
}

void CudnnAttention::backward(const void* qkv, const void* out, const float* log_sums,
                              const void* dout, void* dqkv, void* workspace) {
  const AttentionShape& s = impl_->shape;
  const Pass& pass = impl_->backward_made;
  impl_->for_each(pass.part, [&](int64_t sample, int64_t head) {
    const int64_t q_head = head * impl_->group(), row = sample * s.T * s.ld_qkv,
                  q = row + q_head * s.D, k = row + (s.heads + head) * s.D,
                  v = k + s.kv_heads * s.D, o = sample * s.T * impl_->row_of_out() + q_head * s.D;
    impl_->execute(pass,
                   {{kQ, at(qkv, q)},
                    {kK, at(qkv, k)},
                    {kV, at(qkv, v)},
                    {kOut, at(out, o)},
                    {kDOut, at(dout, o)},
                    {kLogSums, const_cast<float*>(log_sums) + (sample * s.heads + q_head) * s.T},
                    {kDQ, at(dqkv, q)},
                    {kDK, at(dqkv, k)},
                    {kDV, at(dqkv, v)}},
                   workspace, "backward");
  });
}

}  // namespace simplescale::cuda
