#include "model/cpu/kernels.hpp"

#include <algorithm>
#include <cstddef>

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

namespace {
size_t table_of(InstructionSet set) {
  const auto last = InstructionSet::avx512_bf16, first = InstructionSet::generic;
  return static_cast<size_t>(std::min(set, last)) - static_cast<size_t>(first);
}
}  // namespace

template <>
const Kernels<float>& kernels(InstructionSet set) {
  static constexpr const Kernels<float>* kTables[] = {&generic::float_kernels, &avx2::float_kernels,
                                                      &avx512::float_kernels,
                                                      &avx512_bf16::float_kernels};
  return *kTables[table_of(set)];
}

template <>
const Kernels<Bf16>& kernels(InstructionSet set) {
  static constexpr const Kernels<Bf16>* kTables[] = {&generic::bf16_kernels, &avx2::bf16_kernels,
                                                     &avx512::bf16_kernels,
                                                     &avx512_bf16::bf16_kernels};
  return *kTables[table_of(set)];
}

const ShardKernels& shard_kernels(InstructionSet set) {
  static constexpr const ShardKernels* kTables[] = {
      &generic::kernels_of_a_shard, &avx2::kernels_of_a_shard, &avx512::kernels_of_a_shard,
      &avx512_bf16::kernels_of_a_shard};
  return *kTables[table_of(set)];
}

}  // namespace simplescale::cpu
