#include "model/cuda/chosen_algorithms.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/cuda/aten.hpp"
#include "model/cuda/check.hpp"
#include "runtime/base/bounded_read.hpp"
#include "runtime/base/create_file.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/sync_path.hpp"

namespace simplescale::cuda {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileBytesMax = 4096;

/// `text` as the name of a file.
std::string name_of(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return !std::isalnum(c) && c != '.' && c != '-'; }, '_');
  return text;
}

std::string hash_of(const std::string& gpu, const std::string& product,
                    const std::string& algorithm) {
  const std::string text = gpu + "\n" + product + "\n" + algorithm;
  return hash128(text.data(), text.size()).hex();
}

/// Lists a folder. An NFS client that has looked for a name sees a file that another one has made
/// there after up to 30 s, or once it lists the folder.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    names.push_back(entry->path().filename());
  return names;
}

std::string kind_of(int device_index) {
  cudaDeviceProp gpu{};
  SS_CUDA(cudaGetDeviceProperties(&gpu, device_index));
  return std::string(gpu.name) + ", sm_" + std::to_string(gpu.major) + std::to_string(gpu.minor) +
         ", " + std::to_string(gpu.multiProcessorCount) + " SMs, cuBLASLt " +
         std::to_string(cublasLtGetVersion()) + ", cuDNN " + std::to_string(Aten::cudnn_version());
}

template <class T>
T take(Result<T> result) {
  if (!result.ok()) throw CudaError(result.status().message());
  return result.take();
}

}  // namespace

std::unique_ptr<const ChosenAlgorithms> ChosenAlgorithms::of_run(const std::string& folder,
                                                                 int device_index) {
  if (folder.empty()) return nullptr;
  const std::string kind = kind_of(device_index);
  auto chosen = std::make_unique<const ChosenAlgorithms>(folder, kind);
  // Not by runtime/base/log.hpp, as in memory.cpp.
  for (const std::string& other : chosen->others())
    std::fprintf(stderr,
                 "this run has chosen algorithms of products for %s, which mean nothing to %s: "
                 "here they are chosen anew, and the bits of products may differ\n",
                 other.c_str(), kind.c_str());
  return chosen;
}

ChosenAlgorithms::ChosenAlgorithms(std::string folder, std::string gpu)
    : folder_(std::move(folder)),
      gpu_(std::move(gpu)),
      own_folder_(folder_ + "/" + name_of(gpu_)) {}

std::string ChosenAlgorithms::file_of(const std::string& product) const {
  return own_folder_ + "/" + name_of(product) + ".json";
}

Result<std::optional<std::string>> ChosenAlgorithms::find(const std::string& product) const {
  (void)names_in(own_folder_);
  const std::string file = file_of(product);
  const Result<std::string> text = read_text(file, kFileBytesMax);
  if (text.status().code() == Code::not_found) return std::optional<std::string>();
  SS_RETURN_IF_ERROR(text.status());
  const nlohmann::json page = parse_json(*text);
  const std::string algorithm = text_of(page, "algorithm");
  if (text_of(page, "hash") != hash_of(gpu_, product, algorithm) || text_of(page, "gpu") != gpu_ ||
      text_of(page, "product") != product)
    return Status(Code::bad_data, file + " is damaged: copy it from a backup, or remove it; then " +
                                      "the product's algorithm is chosen again, and the bits of " +
                                      "the run may change there");
  return std::optional(algorithm);
}

Result<std::string> ChosenAlgorithms::keep(const std::string& product,
                                           const std::string& algorithm) const {
  std::error_code error;
  fs::create_directories(own_folder_, error);
  if (error) return system_error("cannot create", own_folder_, error.value());
  // Most trainers find a choice here, and need not write.
  SS_ASSIGN(auto counts, find(product));
  if (!counts) {
    const nlohmann::ordered_json page = {{"gpu", gpu_},
                                         {"product", product},
                                         {"algorithm", algorithm},
                                         {"hash", hash_of(gpu_, product, algorithm)}};
    const std::string file = file_of(product);
    SS_RETURN_IF_ERROR(create_file(file, page.dump(1) + "\n").status());
    SS_ASSIGN(counts, find(product));
    if (!counts) return Status(Code::io, "cannot read " + file + ", which a trainer has made");
  }
  // The trainer that made the choice may have died before it synced it.
  const fs::path folder = folder_;
  for (const std::string& each : {own_folder_, folder.string(), folder.parent_path().string()})
    SS_RETURN_IF_ERROR(sync_path(each));
  return *counts;
}

std::string ChosenAlgorithms::choose(const std::string& product,
                                     const std::function<std::string()>& choice) const {
  const auto kept = take(find(product));
  return kept ? *kept : take(keep(product, choice()));
}

std::vector<std::string> ChosenAlgorithms::others() const {
  std::vector<std::string> others = names_in(folder_);
  std::erase(others, name_of(gpu_));
  return others;
}

}  // namespace simplescale::cuda
