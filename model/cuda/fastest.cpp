#include "model/cuda/fastest.hpp"

#include <limits>
#include <vector>

#include "model/cuda/check.hpp"

namespace simplescale::cuda {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kShortMs = 0.05;  // what takes less is a small part of a step
constexpr double kNear = 1.12;  // what takes less than so many times the least may win under load
constexpr double kLoadMs = 80;  // until the clock has settled, and then of the measurement

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
  double best_ms = kNever;
  const auto measure = [&](size_t i, int launches, bool under_load) {
    best.told += std::string(best.told.empty() ? "" : "; ") + (under_load ? "under load " : "") +
                 candidates[i].name;
    try {
      if (under_load) (void)milliseconds_of(stream, launches, candidates[i].launch);  // settles
      const double ms = milliseconds_of(stream, launches, candidates[i].launch);
      best.told += " " + std::to_string(ms) + " ms";
      if (ms < best_ms) best_ms = ms, best.index = i;
      return ms;
    } catch (const std::exception& error) {
      if (best_ms == kNever && !under_load && may_work_later(error)) throw;
      failure = std::current_exception();
      (void)cudaGetLastError();  // libtorch throws what it finds there after its next kernel
      const std::string why = error.what();
      best.told += " fails: " + why.substr(0, why.find('\n'));
      return kNever;
    }
  };
  std::vector<double> ms_of;
  for (size_t i = 0; i < candidates.size(); ++i) ms_of.push_back(measure(i, kLaunches, false));
  if (best_ms == kNever) std::rethrow_exception(failure);
  // Under load a GPU lowers its clock until it draws no more power than it may. Then the candidate
  // that needs the least energy is the fastest one.
  if (best_ms < kShortMs) return best;
  std::vector<size_t> near;
  for (size_t i = 0; i < candidates.size(); ++i)
    if (ms_of[i] < kNear * best_ms) near.push_back(i);
  if (near.size() == 1) return best;
  best_ms = kNever;
  for (const size_t i : near) measure(i, static_cast<int>(kLoadMs / ms_of[i]) + 1, true);
  return best;
}

}  // namespace simplescale::cuda
