// A temporary folder for a test's files.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace simplescale::test {

/// A new, empty folder, which is removed with all its files when this object is destroyed.
struct TempFolder {
  TempFolder() {
    char name[] = "/tmp/simplescale-test-XXXXXX";
    path = mkdtemp(name);
  }
  ~TempFolder() { std::filesystem::remove_all(path); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  /// Creates or replaces the file, and the folders that its name has. Returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string file = path + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }

  std::string path;
};

/// The bytes of a file; "" if it cannot be read.
inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace simplescale::test
