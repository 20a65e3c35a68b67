// Which of cuBLASLt's algorithms the products of a run take. Each product has a file in a folder of
// the run, which all its trainers share. The bits of a product depend on its algorithm, so:
//
//   BACKEND-2  all trainers of a run on GPUs of one kind, also replacements and those of a later
//              start, take the same algorithm for a product: that of the first to choose one.
//
// The compute thread makes all calls. They block on the file system.
#pragma once

#include <cublasLt.h>

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale::cuda {

class ChosenAlgorithms {
 public:
  /// folder: BackendOptions::products_folder. gpu: the kind of the GPU and cuBLASLt's version: an
  /// algorithm has no meaning for others, so each `gpu` has a folder of its own within `folder`.
  ChosenAlgorithms(std::string folder, std::string gpu);

  /// What a product takes in this run; none: nobody has chosen yet. bad_data: its file is damaged;
  /// io.
  Result<std::optional<cublasLtMatmulAlgo_t>> find(const std::string& product) const;
  /// Keeps a choice, and returns the one that counts: another trainer's if it was earlier. io.
  Result<cublasLtMatmulAlgo_t> keep(const std::string& product,
                                    const cublasLtMatmulAlgo_t& algorithm) const;
  /// Other kinds of GPU, or versions of cuBLASLt, for which this run has chosen.
  std::vector<std::string> others() const;
  std::string file_of(const std::string& product) const;

 private:
  const std::string folder_, gpu_, own_folder_;
};

}  // namespace simplescale::cuda
