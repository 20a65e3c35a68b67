// Compiles our kernels for the CPU that runs the tests.
#include "tests/gpu/emulation.hpp"
// These must follow it:
#include "model/cuda/fp8_kernels.cu"
#undef SS_INSTANTIATE
#include "model/cuda/hash_kernels.cu"
#include "model/cuda/loss_kernels.cu"
#undef SS_INSTANTIATE
#include "model/cuda/muon_kernels.cu"
#undef SS_INSTANTIATE
#include "model/cuda/rope_kernels.cu"
#undef SS_INSTANTIATE
#include "model/cuda/row_kernels.cu"
#undef SS_INSTANTIATE
#include "model/cuda/shard_kernels.cu"
#ifndef SIMPLESCALE_FAKE_STREAMS
#include "transport/nccl/tree_sum.cu"
#endif
