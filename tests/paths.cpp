#include "tests/paths.hpp"

std::string source_dir() {
  return SIMPLESCALE_SOURCE_DIR;
}

std::string deps_dir() {
  return SIMPLESCALE_DEPS_DIR;
}
