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
#undef SS_DECLARE

Isa best_isa() {
#if defined(__x86_64__)
  static const Isa isa = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      return Isa::avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
    return Isa::generic;
  }();
  return isa;
#else
  return Isa::generic;
#endif
}

const char* to_string(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "generic";
}

template <>
const Kernels<float>& kernels(Isa isa) {
  return isa == Isa::avx512 ? avx512::float_kernels
         : isa == Isa::avx2 ? avx2::float_kernels
                            : generic::float_kernels;
}

template <>
const Kernels<Bf16>& kernels(Isa isa) {
  return isa == Isa::avx512 ? avx512::bf16_kernels
         : isa == Isa::avx2 ? avx2::bf16_kernels
                            : generic::bf16_kernels;
}

const ShardKernels& shard_kernels(Isa isa) {
  return isa == Isa::avx512 ? avx512::kernels_of_a_shard
         : isa == Isa::avx2 ? avx2::kernels_of_a_shard
                            : generic::kernels_of_a_shard;
}

}  // namespace simplescale::cpu
