#include "model/cuda/fastest.hpp"

#include <limits>

#include "model/cuda/check.hpp"

namespace simplescale::cuda {
namespace {

struct Event {
  Event() { SS_CUDA(cudaEventCreateWithFlags(&at, cudaEventBlockingSync)); }
  ~Event() { (void)cudaEventDestroy(at); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t at = nullptr;
};

}  // namespace

double milliseconds_of(cudaStream_t stream, int launches, const std::function<void()>& launch) {
  const Event begin, end;
  launch();
  SS_CUDA(cudaEventRecord(begin.at, stream));
  for (int i = 0; i < launches; ++i) launch();
  SS_CUDA(cudaEventRecord(end.at, stream));
  SS_CUDA(cudaEventSynchronize(end.at));
  float ms = 0;
  SS_CUDA(cudaEventElapsedTime(&ms, begin.at, end.at));
  return double{ms} / launches;
}

Fastest fastest(cudaStream_t stream, std::span<const Candidate> candidates,
                bool (*may_work_later)(const std::exception&)) {
  constexpr int kLaunches = 3;
  Fastest best;
  std::exception_ptr failure;  // the newest one
  double best_ms = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < candidates.size(); ++i) {
    best.told += (i > 0 ? "; " : "") + candidates[i].name;
    try {
      const double ms = milliseconds_of(stream, kLaunches, candidates[i].launch);
      best.told += " " + std::to_string(ms) + " ms";
      if (ms < best_ms) best_ms = ms, best.index = i;
    } catch (const std::exception& error) {
      if (best_ms == std::numeric_limits<double>::infinity() && may_work_later(error)) throw;
      failure = std::current_exception();
      (void)cudaGetLastError();  // libtorch throws what it finds there after its next kernel
      const std::string why = error.what();
      best.told += " fails: " + why.substr(0, why.find('\n'));
    }
  }
  if (best_ms == std::numeric_limits<double>::infinity()) std::rethrow_exception(failure);
  return best;
}

}  // namespace simplescale::cuda
