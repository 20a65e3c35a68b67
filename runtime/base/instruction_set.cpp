#include "runtime/base/instruction_set.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace simplescale {
namespace {

#if defined(__x86_64__)
/// True if the kernel lets processes use the registers of tiles.
bool has_tiles() {
  constexpr int kGetSupported = 0x1021;  // ARCH_GET_XCOMP_SUPP of asm/prctl.h
  constexpr uint64_t kTileData = uint64_t{1} << 18;
  uint64_t supported = 0;
  return syscall(SYS_arch_prctl, kGetSupported, &supported) == 0 && (supported & kTileData) != 0;
}
#endif

InstructionSet of_this_host() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    return InstructionSet::generic;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return InstructionSet::avx2;
  if (!__builtin_cpu_supports("avx512bf16")) return InstructionSet::avx512;
  const bool amx = __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-tile");
  return amx && has_tiles() ? InstructionSet::amx : InstructionSet::avx512_bf16;
#else
  return InstructionSet::generic;
#endif
}

}  // namespace

std::optional<InstructionSet> instruction_set(std::string_view name) {
  const auto found = std::ranges::find(instruction_set_names, name);
  if (found == std::end(instruction_set_names)) return {};
  return static_cast<InstructionSet>(found - std::begin(instruction_set_names));
}

InstructionSet allowed_instructions(std::string_view value) {
  if (value == "SSE4_2" || value == "AVX") return InstructionSet::generic;
  if (value.starts_with("AVX2")) return InstructionSet::avx2;
  if (value == "AVX512" || value == "AVX512_E1" || value == "AVX512_E2")
    return InstructionSet::avx512;
  if (value == "AVX512_E3") return InstructionSet::avx512_bf16;
  return InstructionSet::amx;
}

InstructionSet best_instructions() {
  static const InstructionSet host = of_this_host();
  const char* value = std::getenv("MKL_ENABLE_INSTRUCTIONS");
  return std::min(host, allowed_instructions(value ? value : ""));
}

}  // namespace simplescale
