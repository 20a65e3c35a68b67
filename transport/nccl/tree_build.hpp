// From sources in tree order to the device's program.
#pragma once

#include <span>

#include "runtime/base/dtype.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/tree_sum.hpp"
#include "transport/nccl/tree_program.hpp"

namespace simplescale::nccl {

/// As simplescale::tree_sum(): sinks[i] receives the i-th node of merged(nodes of the sources).
/// bad_config: more sources or sinks than a program holds.
Result<TreeProgram> tree_program(std::span<const TreeSource> sources,
                                 std::span<float* const> sinks);

/// As simplescale::tree_total().
Result<TreeProgram> tree_total_program(std::span<const TreeSource> sources, void* total,
                                       DType dtype);

}  // namespace simplescale::nccl
