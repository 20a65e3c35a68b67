#include "actors/trainer/inject.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <new>
#include <thread>
#include <vector>

#include "runtime/base/log.hpp"

namespace simplescale {
namespace {

/// Allocates memory until the allocation fails. The process first limits its own address space to
/// 256 MiB more than it uses, so that the machine does not run out of memory.
void run_out_of_memory() {
  constexpr size_t more = size_t{256} << 20, piece = size_t{16} << 20;
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const size_t limit = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + more;
  const rlimit bound{limit, limit};
  setrlimit(RLIMIT_AS, &bound);
  std::vector<char*> kept;
  while (true) {  // ends with std::bad_alloc, which is not caught
    kept.push_back(new char[piece]);
    std::memset(kept.back(), 1, piece);
  }
}

}  // namespace

void inject_into_trainer(ComputeThread& compute, const InjectFault& fault) {
  log::warn("injected: {}", fault.kind);
  if (fault.kind == "segfault_trainer") {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  } else if (fault.kind == "oom_trainer") {
    std::thread(run_out_of_memory).detach();
  } else if (fault.kind == "hang_trainer") {
    compute.inject(EngineFault::hang, fault.step);
  } else if (fault.kind == "bitflip_gradient") {
    compute.inject(EngineFault::bitflip_gradient, fault.step);
  } else if (fault.kind == "nan_loss") {
    compute.inject(EngineFault::nan_loss, fault.step);
  } else if (fault.kind == "partition_node" || fault.kind == "slow_link") {
    compute.inject_network_fault(
        {.delay = std::chrono::milliseconds(static_cast<int64_t>(fault.value)),
         .for_time = std::chrono::milliseconds(fault.ms)});
  } else if (fault.kind == "slow_node") {
    compute.slow_down(fault.value > 0 ? fault.value : 100,
                      std::chrono::milliseconds(fault.ms > 0 ? fault.ms : 10'000));
  } else {
    log::warn("a trainer cannot inject {}", fault.kind);
  }
}

}  // namespace simplescale
