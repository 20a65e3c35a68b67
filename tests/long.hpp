// What `./simplescale test --long` tests beyond CI.
#pragma once

#include <cstdlib>

namespace simplescale::test {

/// True if a test tries all combinations rather than those that show each property once.
inline bool long_tests() {
  return std::getenv("SIMPLESCALE_LONG") != nullptr;
}

}  // namespace simplescale::test
