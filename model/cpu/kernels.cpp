#include "model/cpu/kernels.hpp"

namespace simplescale::cpu {

#define SS_DECLARE(isa)                         \
  namespace isa {                               \
  extern const Kernels<float> float_kernels;    \
  extern const Kernels<Bf16> bf16_kernels;      \
  extern const ShardKernels kernels_of_a_shard; \
  }
SS_DECLARE(generic)
SS_DECLARE(avx2)
SS_DECLARE(avx512)
SS_DECLARE(avx512_bf16)
#undef SS_DECLARE

Isa best_isa() {
#if defined(__x86_64__)
  static const Isa isa = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      return __builtin_cpu_supports("avx512bf16") ? Isa::avx512_bf16 : Isa::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
    return Isa::generic;
  }();
  return isa;
#else
  return Isa::generic;
#endif
}

const char* to_string(Isa isa) {
  static constexpr const char* kNames[] = {"generic", "avx2", "avx512", "avx512_bf16"};
  return kNames[static_cast<int>(isa)];
}

template <>
const Kernels<float>& kernels(Isa isa) {
  static constexpr const Kernels<float>* kTables[] = {&generic::float_kernels, &avx2::float_kernels,
                                                      &avx512::float_kernels,
                                                      &avx512_bf16::float_kernels};
  return *kTables[static_cast<int>(isa)];
}

template <>
const Kernels<Bf16>& kernels(Isa isa) {
  static constexpr const Kernels<Bf16>* kTables[] = {&generic::bf16_kernels, &avx2::bf16_kernels,
                                                     &avx512::bf16_kernels,
                                                     &avx512_bf16::bf16_kernels};
  return *kTables[static_cast<int>(isa)];
}

const ShardKernels& shard_kernels(Isa isa) {
  static constexpr const ShardKernels* kTables[] = {
      &generic::kernels_of_a_shard, &avx2::kernels_of_a_shard, &avx512::kernels_of_a_shard,
      &avx512_bf16::kernels_of_a_shard};
  return *kTables[static_cast<int>(isa)];
}

}  // namespace simplescale::cpu
