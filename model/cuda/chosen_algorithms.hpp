// Which algorithms the products and the attention of a run take. Each has a file in a folder of the
// run, which all its trainers share. The bits of a product depend on its algorithm, so:
//
//   BACKEND-2  all trainers of a run on GPUs of one kind, also replacements and those of a later
//              start, take the same algorithm for a product: that of the first to choose one.
//
// Here attention, forward and backward, is a product, too. The compute thread makes all calls. They
// block on the file system.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale::cuda {

class ChosenAlgorithms {
 public:
  /// folder: BackendOptions::gemm_folder; if it is empty, the run keeps nothing, and this is null.
  /// Says on stderr if the run has chosen for other GPUs. Throws CudaError.
  static std::unique_ptr<const ChosenAlgorithms> of_run(const std::string& folder,
                                                        int device_index);
  /// gpu: the kind of the GPU and the libraries' versions: an algorithm has no meaning for others, so
  /// each `gpu` has a folder of its own within `folder`.
  ChosenAlgorithms(std::string folder, std::string gpu);

  /// What a product takes in this run, as text; none: nobody has chosen yet. bad_data: its file is
  /// damaged; io.
  Result<std::optional<std::string>> find(const std::string& product) const;
  /// Keeps a choice, and returns the one that counts: another trainer's if it was earlier. io.
  Result<std::string> keep(const std::string& product, const std::string& algorithm) const;
  /// What a product takes; if nobody has chosen yet, keeps choice(). Throws CudaError.
  std::string choose(const std::string& product, const std::function<std::string()>& choice) const;
  /// Other kinds of GPU, or versions of the libraries, for which this run has chosen.
  std::vector<std::string> others() const;
  std::string file_of(const std::string& product) const;

 private:
  const std::string folder_, gpu_, own_folder_;
};

}  // namespace simplescale::cuda
