// Which matrices Muon updates, and which rank orthogonalizes each of them. Pure functions, any
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/training/model_shape.hpp"

namespace simplescale {

/// muon: Muon for the matrices of the blocks, AdamW for all other parameters.
enum class Optimizer : unsigned char { adamw, muon };

/// A matrix that Muon updates.
struct MuonMatrix {
  size_t unit = 0;
  size_t offset = 0;  // in elements, from the start of its unit
  int64_t rows = 0, columns = 0;
  size_t count() const { return static_cast<size_t>(rows * columns); }
  /// Multiply-adds of one Newton-Schulz step.
  double cost() const;
  /// The factor of the orthogonalized update, which gives it about the size of AdamW's (arXiv
  /// 2502.16982).
  float update_scale() const;
};

/// The matrices of all blocks, in the order of units, without embeddings and head.
std::vector<MuonMatrix> muon_matrices(const std::vector<Unit>& units);

/// The owner of each matrix, in [0, ranks). Assigns the most expensive matrix first, each to the
/// rank with the lowest cost so far. The same on every rank.
std::vector<size_t> owners_of(const std::vector<MuonMatrix>& matrices, size_t ranks);

/// The most elements that any of `ranks` ranks owns.
size_t most_owned(const std::vector<MuonMatrix>& matrices, size_t ranks);

}  // namespace simplescale
