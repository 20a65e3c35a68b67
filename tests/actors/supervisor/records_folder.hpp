// A temporary folder with the records of a run.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/base/files.hpp"

namespace simplescale::test {

/// Removed with all its files when it is destroyed.
struct RecordsFolder {
  RecordsFolder() {
    char name[] = "/tmp/simplescale-records-XXXXXX";
    path = mkdtemp(name);
  }
  ~RecordsFolder() { std::filesystem::remove_all(path); }
  std::string text(const std::string& file) { return *read_text(path + "/" + file); }
  void write(const std::string& file, const std::string& text) {
    std::ofstream(path + "/" + file) << text;
  }
  std::string path;
};

}  // namespace simplescale::test
