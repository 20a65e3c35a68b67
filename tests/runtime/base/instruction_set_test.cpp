#include "runtime/base/instruction_set.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

using namespace simplescale;

TEST_CASE("instruction set: names go both ways") {
  for (const char* name : instruction_set_names) CHECK(to_string(*instruction_set(name)) == name);
  CHECK(!instruction_set("avx"));
}

TEST_CASE("instruction set: MKL's variable limits what the host has") {
  CHECK(allowed_instructions("SSE4_2") == InstructionSet::generic);
  CHECK(allowed_instructions("AVX2") == InstructionSet::avx2);
  CHECK(allowed_instructions("AVX512_E2") == InstructionSet::avx512);
  CHECK(allowed_instructions("AVX512_E3") == InstructionSet::avx512_bf16);
  for (const char* ignored : {"", "AVX512_E4", "avx2"})
    CHECK(allowed_instructions(ignored) == InstructionSet::amx);
  const char* before = std::getenv("MKL_ENABLE_INSTRUCTIONS");
  REQUIRE(!before);
  setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2", 1);
  CHECK(best_instructions() == InstructionSet::generic);
  unsetenv("MKL_ENABLE_INSTRUCTIONS");
  CHECK(best_instructions() >= InstructionSet::generic);
}

TEST_CASE("instruction set: a better host can use all but generic") {
  CHECK(can_use(InstructionSet::amx, InstructionSet::avx2));
  CHECK(can_use(InstructionSet::generic, InstructionSet::generic));
  CHECK(!can_use(InstructionSet::avx2, InstructionSet::generic));
  CHECK(!can_use(InstructionSet::avx2, InstructionSet::avx512));
}
