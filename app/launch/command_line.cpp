#include "app/launch/command_line.hpp"

#include <cstdlib>
#include <filesystem>

#include "runtime/base/process.hpp"
#include "runtime/base/run_command.hpp"

namespace simplescale {

std::string command_line(const std::vector<std::string>& words) {
  const char* wrapper = std::getenv("SIMPLESCALE_COMMAND");
  std::vector<std::string> all = {
      wrapper && *wrapper ? wrapper : shown_path(program_folder() + "/simplescale")};
  all.insert(all.end(), words.begin(), words.end());
  return shell_text(all);
}

std::string shown_path(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string below = fs::path(path).lexically_relative(fs::current_path(error)).string();
  return error || below.empty() || below.starts_with("..") ? path : below;
}

}  // namespace simplescale
