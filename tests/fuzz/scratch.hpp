// A folder for the files of a target whose decoder opens them by their names.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

/// In memory; removed when the program ends.
class Scratch {
 public:
  Scratch() {
    char name[] = "/dev/shm/simplescale-fuzz-XXXXXX";
    if (mkdtemp(name) == nullptr) abort();
    folder_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  const std::string& folder() const { return folder_; }
  /// Creates or replaces the file. Returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    const int fd = open(path(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      abort();
    close(fd);
    return path(name);
  }

 private:
  std::string folder_;
};
