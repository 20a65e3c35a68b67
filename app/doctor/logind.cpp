#include "app/doctor/logind.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <vector>

namespace simplescale {

namespace {

namespace fs = std::filesystem;

/// The files of logind's settings; of two settings the later one counts.
std::vector<fs::path> settings_files(const fs::path& root) {
  std::vector<fs::path> files;
  std::map<std::string, fs::path> parts;  // of parts with equal names the one in etc counts
  for (const char* folder : {"usr/lib/systemd", "run/systemd", "etc/systemd"}) {
    if (fs::exists(root / folder / "logind.conf")) files = {root / folder / "logind.conf"};
    std::error_code error;
    for (const auto& part : fs::directory_iterator(root / folder / "logind.conf.d", error))
      if (part.path().extension() == ".conf") parts[part.path().filename()] = part.path();
  }
  for (const auto& [name, path] : parts) files.push_back(path);
  return files;
}

bool is_set(const std::vector<fs::path>& files, const std::string& key, bool otherwise) {
  bool set = otherwise;
  for (const fs::path& file : files) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      std::erase_if(line, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
      if (!line.starts_with(key + "=")) continue;
      const std::string_view value = std::string_view(line).substr(key.size() + 1);
      set = value.empty() ? otherwise
                          : value == "yes" || value == "true" || value == "on" || value == "1";
    }
  }
  return set;
}

}  // namespace

std::string logind_text(const std::string& root) {
  std::error_code error;
  if (!fs::exists(fs::path(root) / "usr/lib/systemd/systemd-logind", error)) return "";
  const std::vector<fs::path> files = settings_files(root);
  if (is_set(files, "KillUserProcesses", false))
    return "logind: KillUserProcesses=yes: a logout ends runs, also those with --detach; loginctl "
           "enable-linger prevents it\n";
  return std::string("logind: a logout ends no run with --detach") +
         (is_set(files, "RemoveIPC", true)
              ? "; RemoveIPC=yes takes nothing from it, since its memory has no names\n"
              : "\n");
}

}  // namespace simplescale
