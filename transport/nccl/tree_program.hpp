// A sum in tree order as a small program for the device: every thread runs it for its elements.
// Plain data, C++17: tree_sum.cu includes it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace simplescale::nccl {

/// A stack machine. For each source in turn it pushes the element, then `merges` times replaces the
/// top two entries by left + right. At the end, if `total`, it adds the remaining entries from the
/// top down into sink[0]; else entry i goes to sink[i]. For each element it reads all sources
/// before it writes a sink, so a sink may be any source's memory.
struct TreeProgram {
  static constexpr int kSourcesMax = 1024, kSinksMax = 64;
  const void* source[kSourcesMax];
  void* sink[kSinksMax];
  uint8_t merges[kSourcesMax];
  uint8_t bf16[kSourcesMax];  // the source's elements are bf16, else fp32
  int32_t sources, sinks;
  int32_t depth;      // the largest number of entries on the stack
  bool total;         // add the remaining entries
  bool narrow_sinks;  // sinks are bf16, else fp32
};
// A kernel takes 32764 bytes of parameters since CUDA 12.1 on Volta and newer. kSourcesMax is
// enough for 64 groups with 16 nodes each.
static_assert(sizeof(TreeProgram) <= 32764 - 64, "exceeds the size of a kernel's parameters");

/// Runs the program for `count` elements. Same bits as runtime/training/tree_sum.cpp.
cudaError_t run_tree_program(cudaStream_t stream, const TreeProgram& program, int64_t count);

}  // namespace simplescale::nccl
