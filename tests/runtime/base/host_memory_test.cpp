// The memory of a host and of its control groups, from folders that look like /proc and /sys.
#include "runtime/base/host_memory.hpp"

#include <doctest/doctest.h>

#include "tests/temp_folder.hpp"

using namespace simplescale;

namespace {

struct Host : test::TempFolder {
  void has(const std::string& name, const std::string& text) const { write(name, text + "\n"); }
  void group(const std::string& name, uint64_t mib) const { has(name, std::to_string(mib << 20)); }
  uint64_t memory() const { return memory_of_host(path) >> 20; }
  uint64_t left() const { return memory_left(path) >> 20; }
};

}  // namespace

TEST_CASE("host memory: the host's own, with swap space") {
  const Host host;
  CHECK(memory_of_host(host.path) == 0);
  CHECK(memory_left(host.path) == UINT64_MAX);
  host.has("proc/meminfo",
           "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:    3 kB\nSwapTotal: 8 kB\nSwapFree: 2 kB");
  CHECK(memory_of_host(host.path) == 9 << 10);
  CHECK(memory_left(host.path) == 5 << 10);
}

TEST_CASE("host memory: the lowest limit of the process's control groups counts") {
  const Host host;
  host.has("proc/meminfo", "MemFree: 5 kB\nMemTotal:  8388608 kB");
  CHECK(host.memory() == 8192);
  host.has("proc/self/cgroup", "0::/slurm/job_7/step_0");  // version 2
  host.has("sys/fs/cgroup/slurm/job_7/memory.max", "max");
  CHECK(host.memory() == 8192);
  host.group("sys/fs/cgroup/slurm/memory.max", 6144);
  host.group("sys/fs/cgroup/slurm/job_7/memory.max", 2048);
  host.group("sys/fs/cgroup/slurm/job_7/step_0/memory.max", 4096);
  CHECK(host.memory() == 2048);
  host.group("sys/fs/cgroup/memory.max", 1024);
  CHECK(host.memory() == 1024);
  host.has("proc/self/cgroup", "0::/gone");  // a container that sees its own group as the top
  CHECK(host.memory() == 1024);
  std::filesystem::remove_all(host.path + "/sys");
  host.has("proc/self/cgroup", "4:cpu,memory:/job\n3:cpuset:/");  // version 1
  host.group("sys/fs/cgroup/memory/job/memory.limit_in_bytes", 3072);
  CHECK(host.memory() == 3072);
  host.has("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  CHECK(host.memory() == 3072);
}

TEST_CASE("host memory: what a group of version 2 uses is not left, but for its file cache") {
  const Host host;
  host.has("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 8388608 kB");
  host.has("proc/self/cgroup", "0::/job/step");
  host.group("sys/fs/cgroup/job/step/memory.max", 2048);
  CHECK(host.left() == 2048);
  host.group("sys/fs/cgroup/job/step/memory.current", 1536);
  CHECK(host.left() == 512);
  // `file` has shared memory, too, which the kernel does not give back.
  const auto mib = [](uint64_t count) { return std::to_string(count << 20); };
  host.has("sys/fs/cgroup/job/step/memory.stat", "anon " + mib(100) + "\nfile " + mib(900) +
                                                     "\nshmem " + mib(600) + "\ninactive_file " +
                                                     mib(256) + "\nactive_file " + mib(64));
  CHECK(host.left() == 832);
  host.has("sys/fs/cgroup/job/memory.max", "max");
  host.group("sys/fs/cgroup/job/memory.current", 4096);
  CHECK(host.left() == 832);
  host.group("sys/fs/cgroup/job/memory.max", 4095);  // another step has used all
  CHECK(host.left() == 0);
}

TEST_CASE("host memory: what a group of version 1 uses is not left, but for its file cache") {
  const Host host;
  host.has("proc/self/cgroup", "4:memory:/job");
  host.group("sys/fs/cgroup/memory/job/memory.limit_in_bytes", 2048);
  host.group("sys/fs/cgroup/memory/job/memory.usage_in_bytes", 1536);
  host.has("sys/fs/cgroup/memory/job/memory.stat",
           "cache 9\ninactive_file 9\nactive_file 9\ntotal_inactive_file " +
               std::to_string(256 << 20) + "\ntotal_active_file " + std::to_string(64 << 20));
  CHECK(host.left() == 832);
}
