// A path without the slashes at its end, which do not matter. Pure. Any thread.
#pragma once

#include <string>

namespace simplescale {

/// "/" stays.
inline std::string bare_path(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace simplescale
