// Builds the device's program (tree_program.hpp) from sources in tree order. Pure functions.
#pragma once

#include <span>

#include "runtime/base/dtype.hpp"
#include "runtime/base/status.hpp"
#include "runtime/training/tree_sum.hpp"
#include "transport/nccl/tree_program.hpp"

namespace simplescale::nccl {

/// Computes what simplescale::tree_sum() computes: sinks[i] receives the i-th node of merged(nodes
/// of the sources). Code::bad_config: more sources or sinks than a program holds.
Result<TreeProgram> tree_program(std::span<const TreeSource> sources,
                                 std::span<float* const> sinks);

/// Computes what simplescale::tree_total() computes. Code::bad_config as above.
Result<TreeProgram> tree_total_program(std::span<const TreeSource> sources, void* total,
                                       DType dtype);

}  // namespace simplescale::nccl
