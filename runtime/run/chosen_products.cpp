#include "runtime/run/chosen_products.hpp"

#include <filesystem>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/json_members.hpp"

namespace simplescale {

std::map<std::string, std::string> chosen_products(const RunFolder& run) {
  namespace fs = std::filesystem;
  constexpr size_t kFileBytesMax = 4096;
  std::map<std::string, std::string> chosen;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(run.products(), error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const fs::path& file = entry->path();
    if (file.extension() != ".json") continue;
    const std::string algorithm =
        text_of(json_of(read_text(file.string(), kFileBytesMax)), "algorithm");
    if (!algorithm.empty())
      chosen[file.parent_path().filename().string() + "/" + file.stem().string()] = algorithm;
  }
  return chosen;
}

}  // namespace simplescale
