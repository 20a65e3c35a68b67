#include "runtime/base/own_links.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <optional>
#include <string>
#include <vector>

namespace simplescale {

namespace fs = std::filesystem;

namespace {

constexpr int kLinksMax = 40;  // as of the kernel

/// The target of a link that is open; "": it is none; nullopt: another user's.
std::optional<std::string> own_target(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return std::nullopt;
  if (!S_ISLNK(info.st_mode)) return std::string();
  std::string target(PATH_MAX, '\0');
  const bool own = info.st_uid == ::geteuid() || info.st_uid == 0;
  const ssize_t bytes = own ? ::readlinkat(fd, "", target.data(), target.size()) : 0;
  if (bytes <= 0) return std::nullopt;
  target.resize(static_cast<size_t>(bytes));
  return target;
}

}  // namespace

bool by_own_links(int folder_fd, const fs::path& name, int file_fd) {
  constexpr int kFlags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  std::vector<fs::path> rest(name.begin(), name.end());
  std::ranges::reverse(rest);
  Descriptor at(::openat(folder_fd, ".", kFlags));
  for (int links = 0; !rest.empty();) {
    if (at.fd < 0) return false;
    const fs::path part = rest.back();
    rest.pop_back();
    if (part.empty()) continue;  // behind a slash at the end
    Descriptor next(::openat(at.fd, part.c_str(), kFlags));
    if (next.fd < 0) return false;
    const auto target = own_target(next.fd);
    if (!target || (!target->empty() && ++links > kLinksMax)) return false;
    if (target->empty()) {
      at = std::move(next);
      continue;
    }
    const fs::path to = *target;
    if (to.is_absolute()) at = Descriptor(::open("/", kFlags));
    const fs::path parts = to.relative_path();
    rest.insert(rest.end(), parts.begin(), parts.end());
    std::reverse(rest.end() - std::distance(parts.begin(), parts.end()), rest.end());
  }
  struct stat found {
  }, wanted{};
  return ::fstat(at.fd, &found) == 0 && ::fstat(file_fd, &wanted) == 0 &&
         found.st_dev == wanted.st_dev && found.st_ino == wanted.st_ino;
}

}  // namespace simplescale
