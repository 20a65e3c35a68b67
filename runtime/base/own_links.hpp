// Links on the way to a file or folder. Another user may plant one at any time. Any thread.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <utility>

namespace simplescale {

/// An open file or folder, or -1. Closes itself.
struct Descriptor {
  explicit Descriptor(int open_fd) : fd(open_fd) {}
  Descriptor(Descriptor&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd, other.fd);
    return *this;
  }
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  int fd;
};

/// True if `name`, as seen from the open folder, is the open file or folder, and all links on the way
/// are this user's or root's. Every link and folder on the way is held open while it is looked at:
/// another one in its place would have another owner.
bool by_own_links(int folder_fd, const std::filesystem::path& name, int file_fd);

}  // namespace simplescale
