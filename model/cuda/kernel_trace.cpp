#include "model/cuda/kernel_trace.hpp"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <exception>
#include <set>

namespace simplescale::cuda {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

bool recording = false;

}  // namespace

Status start_kernel_trace() try {
  if (recording) return {};
  const std::set<ActivityType> activities{ActivityType::CUDA};
  const ProfilerConfig config(ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  recording = true;
  return {};
} catch (const std::exception& error) {
  return Status(Code::unavailable, std::string("no trace of kernels: ") + error.what());
}

Status write_kernel_trace(const std::string& file) try {
  if (!recording) return Status(Code::not_found, "no kernels were traced");
  recording = false;
  profiler::disableProfiler()->save(file);
  return {};
} catch (const std::exception& error) {
  return Status(Code::io, file + ": " + error.what());
}

}  // namespace simplescale::cuda
