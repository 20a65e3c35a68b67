#include "runtime/base/write_whole.hpp"

#include <unistd.h>

#include <cerrno>

namespace simplescale {

bool write_whole(int fd, std::string_view text, size_t& done, int64_t begin) {
  while (done < text.size()) {
    const ssize_t count = ::pwrite(fd, text.data() + done, text.size() - done,
                                   static_cast<off_t>(begin) + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = EIO;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace simplescale
