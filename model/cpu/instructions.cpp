#include "model/cpu/instructions.hpp"

#include <atomic>
#include <mutex>
#include <string>

// Exported by libtorch_cpu.so. Counts more than MKL_ENABLE_INSTRUCTIONS, until MKL's first product.
// Returns 0 if MKL does not take it.
extern "C" int mkl_serv_enable_instructions(int most);

namespace simplescale::cpu {
namespace {

std::atomic<InstructionSet> used = InstructionSet::automatic;

/// MKL_ENABLE_... of mkl_types.h.
int mkl_limit(InstructionSet set) {
  switch (set) {
    case InstructionSet::automatic:
    case InstructionSet::generic:
      return 0;  // SSE4_2
    case InstructionSet::avx2:
      return 2;  // AVX2
    case InstructionSet::avx512:
      return 4;  // AVX512
    case InstructionSet::avx512_bf16:
      return 8;  // AVX512_E3
    case InstructionSet::amx:
      return 9;  // AVX512_E4
  }
  return 0;
}

}  // namespace

Status use_instructions(InstructionSet set) {
  const auto cannot = [&] {
    return Status(Code::bad_config, std::string("this host cannot compute with ") + to_string(set) +
                                        " instructions; its best are " +
                                        to_string(best_instructions()));
  };
  if (!can_use(best_instructions(), set)) return cannot();
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (used == set) return {};
  if (used != InstructionSet::automatic)
    return Status(Code::bad_config, std::string("this process computes with ") + to_string(used) +
                                        " instructions, not " + to_string(set));
  const bool taken = mkl_serv_enable_instructions(mkl_limit(set)) != 0;
  used = set;
  return taken ? Status() : cannot();
}

InstructionSet used_instructions() {
  if (used == InstructionSet::automatic) (void)use_instructions(best_instructions());
  return used;
}

}  // namespace simplescale::cpu
