// A temporary folder for a test's files.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace simplescale::test {

/// A new, empty folder below `parent`, which is removed with all its files when this object is
/// destroyed.
struct TempFolder {
  explicit TempFolder(const std::string& parent = "/tmp")
      : path(parent + "/simplescale-test-XXXXXX") {
    if (!mkdtemp(path.data())) abort();
  }
  ~TempFolder() {
    std::error_code error;
    for (int tries = 0; tries < 1000; ++tries) {
      std::filesystem::remove_all(path, error);
      // A thread of the code under test may have written a file meanwhile.
      if (error != std::errc::directory_not_empty) return;
    }
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(const std::string& name) const { return path + "/" + name; }
  /// Creates or replaces the file, and the folders that its name has. Returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string file = *this / name;
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
