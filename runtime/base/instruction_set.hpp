// The sets of vector instructions of CPUs on which the bits of results depend (docs/guarantees.md).
// Each one contains those before it. Any thread.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>

namespace simplescale {

/// automatic: not known, or not chosen yet. generic: less than AVX2 and FMA. amx: AVX-512 with bf16,
/// and tiles of bf16.
enum class InstructionSet : unsigned char { automatic, generic, avx2, avx512, avx512_bf16, amx };

inline constexpr const char* instruction_set_names[] = {"auto",   "generic",     "avx2",
                                                        "avx512", "avx512_bf16", "amx"};

constexpr const char* to_string(InstructionSet set) {
  const auto index = static_cast<size_t>(set);
  return index < std::size(instruction_set_names) ? instruction_set_names[index] : "?";
}

/// Nothing: there is no set of this name.
std::optional<InstructionSet> instruction_set(std::string_view name);

/// The best set that this host has and MKL_ENABLE_INSTRUCTIONS, MKL's variable, allows.
InstructionSet best_instructions();

/// True if a host whose best set is `best` gets the bits of `set`. generic: only hosts without better
/// ones, because libm takes FMA where it is.
constexpr bool can_use(InstructionSet best, InstructionSet set) {
  return set <= best && (set != InstructionSet::generic || best == set);
}

/// The best set that a value of MKL_ENABLE_INSTRUCTIONS allows; amx for a value that MKL ignores.
InstructionSet allowed_instructions(std::string_view mkl_value);

}  // namespace simplescale
