// control/products: the algorithms that the run's GPUs have chosen for products and attention
// (model/cuda/chosen_algorithms.hpp), as fields of the numerics signature. Any thread; blocks on the
// file system.
#pragma once

#include <map>
#include <string>

#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// "GPU/PRODUCT", as the files are named, to the algorithm. Files that are damaged or cannot be read
/// now are left out: trainers report them.
std::map<std::string, std::string> chosen_products(const RunFolder& run);

}  // namespace simplescale
