#include "app/launch/last_line.hpp"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "runtime/base/files.hpp"

namespace simplescale {

std::string last_line(const std::string& path) {
  constexpr std::streamoff kBytesMax = 4096;
  constexpr std::string_view kPrefix = "simplescale: ", kErrorLevel = " error ";
  std::ifstream file = open_lines(path);
  file.seekg(0, std::ios::end);
  const std::streamoff bytes = file.tellg();
  if (!file || bytes <= 0) return "";
  std::string text(static_cast<size_t>(std::min(bytes, kBytesMax)), '\0');
  file.seekg(bytes - static_cast<std::streamoff>(text.size()));
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) return "";
  text.erase(text.find_last_not_of('\n') + 1);
  text.erase(0, text.rfind('\n') + 1);  // npos + 1 is 0
  if (text.starts_with(kPrefix)) return text.substr(kPrefix.size());
  const size_t level = text.find(kErrorLevel);
  return level == std::string::npos ? text : text.substr(level + kErrorLevel.size());
}

}  // namespace simplescale
