#include "model/cuda/attention_choice.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "model/cuda/check.hpp"
#include "model/cuda/cudnn_attention.hpp"

namespace simplescale::cuda {
namespace {

const std::string kCudnn = "cuDNN";

}  // namespace

std::string AttentionShape::text() const {
  return "attention of " + std::to_string(batch) + " x " + std::to_string(heads) + " (" +
         std::to_string(kv_heads) + ") heads, " + std::to_string(T) + " tokens, " +
         std::to_string(D) + " elements";
}

AttentionChoice::AttentionChoice(const AttentionShape& shape, DType dtype, std::string pass,
                                 const ChosenAlgorithms* chosen)
    : name_(shape.text() + ", " + std::move(pass)), chosen_(chosen) {
  if (dtype == DType::f32)
    kernel_ = AttentionKernel::efficient;
  else if (!chosen || shape.window > 0)
    kernel_ = AttentionKernel::flash;
}

AttentionKernel AttentionChoice::kernel(cudaStream_t stream, bool documents,
                                        const std::function<void(AttentionKernel)>& launch,
                                        const std::function<std::string()>& cudnn_plan,
                                        bool (*may_work_later)(const std::exception&),
                                        const std::function<void()>& measured) {
  using enum AttentionKernel;
  if (documents && kernel_ != efficient) return flash;
  if (kernel_) return *kernel_;
  const Candidate candidates[] = {{"flash", [&] { launch(flash); }},
                                  {kCudnn, [&] { launch(cudnn); }}};
  bool has_measured = false;
  const std::string used = chosen_->choose(name_, [&] {
    const Fastest best = fastest(stream, candidates, may_work_later);
    has_measured = true;
    const std::string& fastest_name = candidates[best.index].name;
    // Not by runtime/base/log.hpp, as in memory.cpp.
    std::fprintf(stderr, "%s: %s; %s is used\n", name_.c_str(), best.told.c_str(),
                 fastest_name.c_str());
    return fastest_name == kCudnn ? kCudnn + ", " + cudnn_plan() : fastest_name;
  });
  // Only now: if a candidate has broken the context, this throws, and the next process finds the
  // choice.
  if (has_measured) measured();
  if (used != "flash" && used != kCudnn && !used.starts_with(kCudnn + ", "))
    throw CudaError("this program does not know the attention in " + chosen_->file_of(name_) +
                    ": remove the file to choose again");
  kernel_ = used == "flash" ? flash : cudnn;
  if (*kernel_ == cudnn) plan_ = used.substr(std::min(used.size(), kCudnn.size() + 2));
  return *kernel_;
}

bool is_want_of_memory(const std::string& error) {
  // CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, ..._HOST_..., and CUDNN_STATUS_ALLOC_FAILED
  // before version 9.
  for (const char* words : {"ALLOCATION_FAILED", "ALLOC_FAILED", "out of memory"})
    if (error.find(words) != std::string::npos) return true;
  return false;
}

size_t attention_plan(std::span<const std::string> plans, const std::string& wanted,
                      const std::string& pass, const std::function<void(size_t)>& build) {
  std::string failures;
  for (size_t i = 0; i < plans.size(); ++i) try {
      if (!wanted.empty() && plans[i] != wanted) continue;
      build(i);
      return i;
    } catch (const CudnnError& error) {
      if (error.no_memory || !wanted.empty()) throw;
      failures += "\n" + std::string(error.what());
    }
  throw CudnnError(wanted.empty() ? "cuDNN has no plan for " + pass + failures
                                  : "cuDNN has no plan " + wanted + " for " + pass +
                                        ", which this run has chosen: remove the choice's file in "
                                        "control/products to choose again",
                   false);
}

AttentionPart attention_part(const AttentionShape& shape, size_t workspace_bytes) {
  constexpr int64_t kAligned = 16 / sizeof(float);
  const int64_t all = shape.batch * shape.kv_heads;
  const auto at_a_time =
      static_cast<int64_t>(kAttentionWorkspaceBytesMax * static_cast<size_t>(all) /
                           std::max<size_t>(1, workspace_bytes));
  AttentionPart part;
  const auto consider = [&](int64_t samples, int64_t kv_heads) {  // in ascending order
    const int64_t heads = samples * kv_heads,
                  sums = heads * (shape.heads / shape.kv_heads) * shape.T;
    if (heads != all && sums % kAligned != 0) return;
    if (part.samples == 0 || heads <= at_a_time) part = {samples, kv_heads};
  };
  for (int64_t n = 1; n <= shape.kv_heads; ++n)
    if (shape.kv_heads % n == 0) consider(1, n);
  for (int64_t n = 1; n <= shape.batch; ++n)
    if (shape.batch % n == 0) consider(n, shape.kv_heads);
  return part;
}

}  // namespace simplescale::cuda
