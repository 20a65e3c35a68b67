// Constants of the arithmetic: with another value, a step has other bits. The numerics signature has
// all of them (runtime/config/signature.cpp), so that a program with other values is noticed. What
// changes bits and has no constant here (a kernel, the order of a sum) changes
// kVersion; tests/model/golden notices it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simplescale::arithmetic {

inline constexpr int kVersion = 2;
/// How the two gradients of tied embeddings are added: each has a tree over all leaves, and the two
/// totals are added once. In version 1 each micro-batch added them.
inline constexpr const char* kTiedGradients = "two trees";

inline constexpr int64_t kFp8Block = 128;  // fp8 values that share a scale; 128 x 128 of a weight

// The CPU backend.
inline constexpr int64_t kRows = 256;          // rows (tokens) of a product in the blocks
inline constexpr int64_t kHeadRows = 128;      // rows of a product in the head
inline constexpr int64_t kQueryRows = 64;      // query rows of a block of attention
inline constexpr int64_t kWeightRows = 512;    // the most rows of a weight's gradient at a time
inline constexpr int64_t kWeightTokens = 512;  // tokens added to a weight's gradient at a time
inline constexpr int64_t kLogitBytes = int64_t{64} << 20;  // the most d logits kept at a time
inline constexpr size_t kPackedBytes = size_t{64} << 20;   // the largest weight that MKL packs
inline constexpr int64_t kExpertRows = 64;  // rows of an expert's product, always so many
/// What the routers' own losses of a micro-batch weigh. At first each micro-batch weighed the same.
inline constexpr const char* kRouterLosses = "trained targets";
inline constexpr int kPackedRows = 256;  // rows of A that MKL packs for

// The CUDA backend.
inline constexpr int64_t kPartBytes = int64_t{2} << 30;  // BackendOptions::part_bytes

// Muon: Newton-Schulz steps x <- a x + (b A + c A A) x with A = x x^T.
inline constexpr int kMuonSteps = 5;
inline constexpr float kMuonA = 3.4445f, kMuonB = -4.7750f, kMuonC = 2.0315f;
inline constexpr double kMuonEpsilon = 1e-7;
// On CPUs:
inline constexpr int64_t kMuonNormElements = 1 << 16;  // of a matrix, whose squares are one sum
inline constexpr int64_t kMuonGramRows = 64;           // rows of a symmetric product
inline constexpr int64_t kMuonProductRows = 128;       // rows of another product

}  // namespace simplescale::arithmetic
