// A sum in tree order as a little program for the device: every thread runs it for its elements.
// The header that tree_sum.cu includes besides CUDA; plain data, C++17.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace simplescale::nccl {

/// A stack machine: for each source in turn, push its element, then `merges` times replace the two
/// on top by left + right. In the end either everything left is added from the top down into
/// sink[0], or stack entry i goes to sink[i]. All sources are read before a sink is written,
/// element by element, so a sink may be any source's memory.
struct TreeProgram {
  static constexpr int kSourcesMax = 1024, kSinksMax = 64;
  const void* source[kSourcesMax];
  void* sink[kSinksMax];
  uint8_t merges[kSourcesMax];
  uint8_t bf16[kSourcesMax];  // the source's elements are bf16, else fp32
  int32_t sources, sinks;
  int32_t depth;      // the most entries on the stack
  bool total;         // add what is left
  bool narrow_sinks;  // sinks are bf16, else fp32
};
// Since CUDA 12.1 and Volta; 64 groups with 16 nodes each fit.
static_assert(sizeof(TreeProgram) <= 32764 - 64, "a kernel's parameters");

/// Runs it for `count` elements. The same bits as runtime/training/tree_sum.cpp.
cudaError_t run_tree_program(cudaStream_t stream, const TreeProgram& program, int64_t count);

}  // namespace simplescale::nccl
