#include "client.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>

#include "faults.hpp"

namespace file_faults {

ClientPage& client_page() {
  static ClientPage own;
  static ClientPage* const page = [] {
    char path[PATH_MAX + 32];
    std::snprintf(path, sizeof path, "%s/client-%016llx", state_folder(),
                  static_cast<unsigned long long>(client()));
    const int fd =
        static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (fd < 0) return &own;
    void* memory = MAP_FAILED;
    if (syscall(SYS_ftruncate, fd, sizeof own) == 0)
      memory = mmap(nullptr, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    return memory == MAP_FAILED ? &own : static_cast<ClientPage*>(memory);
  }();
  return *page;
}

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void sleep_ms(int64_t ms) {
  timespec left{ms / 1000, ms % 1000 * 1'000'000};
  while (syscall(SYS_nanosleep, &left, &left) != 0 && errno == EINTR) {
  }
}

int64_t wait_for_outage() {
  const int64_t begin = now_ms();
  if (begin >= client_page().blocked_until_ms) return 0;
  for (int64_t left = 1; left > 0; left = client_page().blocked_until_ms - now_ms())
    sleep_ms(std::min<int64_t>(20, left));
  return now_ms() - begin;
}

uint64_t hash(const char* text, size_t bytes) {
  uint64_t value = 0xcbf29ce484222325;  // FNV-1a
  for (size_t i = 0; i < bytes; ++i)
    value = (value ^ static_cast<unsigned char>(text[i])) * 0x100000001b3;
  return value;
}

}  // namespace file_faults
