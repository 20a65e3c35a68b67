#include "actors/trainer/kernel_traces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "runtime/base/log.hpp"

namespace simplescale {

bool KernelTraces::contains(uint64_t step) const {
  return std::ranges::find(steps_, static_cast<int64_t>(step)) != steps_.end();
}

void KernelTraces::begin(Backend& backend, uint64_t step) const {
  if (!contains(step)) return;
  std::error_code error;  // the file cannot be written then, and says so
  std::filesystem::create_directories(folder_, error);
  if (const Status begun = backend.start_kernel_trace(); !begun.ok())
    log::warn("{}", begun.message());
}

void KernelTraces::end(Backend& backend, const std::string& trainer, uint64_t step,
                       bool last) const {
  if (!contains(step) || (!last && contains(step + 1))) return;
  write(backend, fmt::format("kernels-{}-{}.json", step, trainer));
}

void KernelTraces::end_failed(Backend& backend, const std::string& trainer) const {
  write(backend, "kernels-failed-" + trainer + ".json");
}

void KernelTraces::write(Backend& backend, const std::string& name) const {
  const Status written = backend.write_kernel_trace(folder_ + "/" + name);
  if (!written.ok() && written.code() != Code::not_found) log::warn("{}", written.message());
}

}  // namespace simplescale
