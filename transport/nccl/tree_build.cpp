#include "transport/nccl/tree_build.hpp"

#include <algorithm>
#include <vector>

namespace simplescale::nccl {
namespace {

/// The program without its sinks.
Result<TreeProgram> stack_program(std::span<const TreeSource> sources) {
  SS_ASSERT(!sources.empty());
  if (sources.size() > TreeProgram::kSourcesMax)
    return Status(Code::bad_config, std::to_string(sources.size()) +
                                        " partial sums at a time, but a GPU adds at most " +
                                        std::to_string(TreeProgram::kSourcesMax));
  TreeProgram program{};
  program.sources = static_cast<int32_t>(sources.size());
  std::vector<TreeNode> stack;
  for (size_t i = 0; i < sources.size(); ++i) {
    program.source[i] = sources[i].data;
    program.bf16[i] = sources[i].dtype == DType::bf16;
    stack.push_back(sources[i].node);
    program.depth = std::max(program.depth, static_cast<int32_t>(stack.size()));
    const size_t before = stack.size();
    stack = merged(stack);
    program.merges[i] = static_cast<uint8_t>(before - stack.size());
  }
  program.sinks = static_cast<int32_t>(stack.size());
  return program;
}

}  // namespace

Result<TreeProgram> tree_program(std::span<const TreeSource> sources,
                                 std::span<float* const> sinks) {
  SS_ASSIGN(TreeProgram program, stack_program(sources));
  SS_ASSERT(static_cast<size_t>(program.sinks) == sinks.size());
  if (program.sinks > TreeProgram::kSinksMax)
    return Status(Code::bad_config, std::to_string(program.sinks) +
                                        " partial sums remain, but a GPU keeps at most " +
                                        std::to_string(TreeProgram::kSinksMax));
  std::copy(sinks.begin(), sinks.end(), program.sink);
  return program;
}

Result<TreeProgram> tree_total_program(std::span<const TreeSource> sources, void* total,
                                       DType dtype) {
  SS_ASSIGN(TreeProgram program, stack_program(sources));
  program.total = true;
  program.narrow_sinks = dtype == DType::bf16;
  program.sinks = 1;
  program.sink[0] = total;
  return program;
}

}  // namespace simplescale::nccl
