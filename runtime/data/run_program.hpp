// Runs another program without a shell and returns what it prints.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale {

/// argv[0] is looked up in PATH; stdin is empty, stderr is ours. Returns all of stdout. Blocks the
/// caller. not_found: there is no such program. deadline: it took too long and was killed. io: it
/// failed, or printed more than bytes_max.
Result<std::string> run_program(const std::vector<std::string>& argv, int timeout_ms,
                                size_t bytes_max);

}  // namespace simplescale
