// A client of the file system: the host of some processes, which share what it knows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace file_faults {

/// In memory that the processes of a client share.
struct ClientPage {
  static constexpr size_t kFolders = 1024;
  std::atomic<int64_t> blocked_until_ms;  // by now_ms(); the calls of the client wait until then
  std::atomic<uint32_t> changes[kFolders];
  static constexpr size_t kFiles = 1021;
  std::atomic<uint64_t> sizes[kFiles];  // by inode: size + 1 of a file that it knows, or 0
};

/// The page of this process's client. Of its own if the file cannot be shared.
ClientPage& client_page();

int64_t now_ms();  // steady
void sleep_ms(int64_t ms);
/// Waits for the end of the client's outage. Milliseconds waited.
int64_t wait_for_outage();

uint64_t hash(const char* text, size_t bytes);

}  // namespace file_faults
