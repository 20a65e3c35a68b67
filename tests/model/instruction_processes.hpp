// A process has one instruction set. So a test of each set runs its own program again.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "runtime/base/instruction_set.hpp"

namespace simplescale::testing {

inline constexpr InstructionSet kInstructionSets[] = {
    InstructionSet::generic, InstructionSet::avx2, InstructionSet::avx512,
    InstructionSet::avx512_bf16, InstructionSet::amx};

/// The sets that this CPU has.
inline std::vector<InstructionSet> sets_of_host() {
  std::vector<InstructionSet> sets;
  for (const InstructionSet set : kInstructionSets)
    if (set <= best_instructions())
      sets.push_back(set);
    else
      MESSAGE("skipped: this CPU lacks " << std::string(to_string(set)));
  return sets;
}

/// What a skipped test case prints in a process that has `set` alone; it has to pass there. Of each
/// line what follows the set's name and a blank; other lines are left out.
inline std::vector<std::string> lines_with(InstructionSet set, const std::string& test_case) {
  constexpr const char* mkl_names[] = {"SSE4_2", "AVX2", "AVX512", "AVX512_E3", "AVX512_E4"};
  // libm has no other way to leave out FMA.
  const char* tunables =
      set == InstructionSet::generic ? " GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-AVX2" : "";
  const std::string command =
      std::string("MKL_ENABLE_INSTRUCTIONS=") + mkl_names[static_cast<size_t>(set) - 1] + tunables +
      " /proc/" + std::to_string(getpid()) + "/exe --no-skip --test-case='" + test_case + "'";
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  const std::string begin = std::string(to_string(set)) + " ";
  std::vector<std::string> lines;
  std::string all;
  char line[256];
  while (std::fgets(line, sizeof line, pipe)) {
    const std::string own = line;
    all += own;
    if (own.starts_with(begin))
      lines.push_back(own.substr(begin.size(), own.size() - begin.size() - 1));
  }
  CHECK_MESSAGE(pclose(pipe) == 0, all);
  return lines;
}

}  // namespace simplescale::testing
