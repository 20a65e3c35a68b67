#include "model/cuda/chosen_algorithms.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

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
constexpr size_t kWords = std::size(cublasLtMatmulAlgo_t{}.data);

/// `text` as the name of a file.
std::string name_of(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return !std::isalnum(c) && c != '.' && c != '-'; }, '_');
  return text;
}

std::string hex(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(word));
    text += digits;
  }
  return text;
}

std::optional<cublasLtMatmulAlgo_t> from_hex(const std::string& text) {
  if (text.size() != 16 * kWords ||
      !std::ranges::all_of(text, [](unsigned char c) { return std::isxdigit(c); }))
    return std::nullopt;
  cublasLtMatmulAlgo_t algorithm{};
  for (size_t i = 0; i < kWords; ++i)
    algorithm.data[i] = std::stoull(text.substr(16 * i, 16), nullptr, 16);
  return algorithm;
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

}  // namespace

ChosenAlgorithms::ChosenAlgorithms(std::string folder, std::string gpu)
    : folder_(std::move(folder)),
      gpu_(std::move(gpu)),
      own_folder_(folder_ + "/" + name_of(gpu_)) {}

std::string ChosenAlgorithms::file_of(const std::string& product) const {
  return own_folder_ + "/" + name_of(product) + ".json";
}

Result<std::optional<cublasLtMatmulAlgo_t>> ChosenAlgorithms::find(
    const std::string& product) const {
  (void)names_in(own_folder_);
  const std::string file = file_of(product);
  const Result<std::string> text = read_text(file, kFileBytesMax);
  if (text.status().code() == Code::not_found) return std::optional<cublasLtMatmulAlgo_t>();
  SS_RETURN_IF_ERROR(text.status());
  const nlohmann::json page = parse_json(*text);
  const std::string digits = text_of(page, "algorithm");
  auto algorithm = from_hex(digits);
  if (!algorithm || text_of(page, "hash") != hash_of(gpu_, product, digits) ||
      text_of(page, "gpu") != gpu_ || text_of(page, "product") != product)
    return Status(Code::bad_data, file + " is damaged: copy it from a backup, or remove it; then " +
                                      "the product's algorithm is chosen again, and the bits of " +
                                      "the run may change there");
  return algorithm;
}

Result<cublasLtMatmulAlgo_t> ChosenAlgorithms::keep(const std::string& product,
                                                    const cublasLtMatmulAlgo_t& algorithm) const {
  std::error_code error;
  fs::create_directories(own_folder_, error);
  if (error) return system_error("cannot create", own_folder_, error.value());
  // Most trainers find a choice here, and need not write.
  SS_ASSIGN(auto counts, find(product));
  if (!counts) {
    const std::string digits = hex(algorithm);
    const nlohmann::ordered_json page = {{"gpu", gpu_},
                                         {"product", product},
                                         {"algorithm", digits},
                                         {"hash", hash_of(gpu_, product, digits)}};
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

std::vector<std::string> ChosenAlgorithms::others() const {
  std::vector<std::string> others = names_in(folder_);
  std::erase(others, name_of(gpu_));
  return others;
}

}  // namespace simplescale::cuda
