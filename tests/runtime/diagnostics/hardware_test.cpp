// What is read of GPUs and network cards, on simulated hosts.
// The checks of one machine: they pass on a healthy one, and report what is wrong.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/base/process.hpp"
#include "runtime/diagnostics/diagnose.hpp"
#include "runtime/diagnostics/hardware.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

/// A folder with `sys` and `proc`.
struct Host : test::TempFolder {
  void write(const fs::path& file, const std::string& text) const {
    TempFolder::write(file, text + "\n");
  }
  /// Returns its folder.
  fs::path add(const std::string& address, const std::string& vendor, const std::string& kind,
               int node, int width = 16) const {
    const fs::path folder = "sys/bus/pci/devices/" + address;
    write(folder / "vendor", vendor);
    write(folder / "class", kind);
    write(folder / "device", "0x2330");
    write(folder / "numa_node", std::to_string(node));
    write(folder / "local_cpulist", node == 0 ? "0-3" : "4-7");
    write(folder / "current_link_speed", "32.0 GT/s PCIe");
    write(folder / "current_link_width", std::to_string(width));
    write(folder / "max_link_width", "16");
    return folder;
  }
  void add_gpu(const std::string& address, int node, int width = 16) const {
    add(address, "0x10de", "0x030200", node, width);
  }
  void add_card(const std::string& name, const std::string& address, int node,
                const std::string& state = "4: ACTIVE") const {
    const fs::path folder = add(address, "0x15b3", "0x020700", node);
    const fs::path card = "sys/class/infiniband/" + name;
    write(card / "ports/1/rate", "400 Gb/sec (4X NDR)");
    write(card / "ports/1/state", state);
    fs::create_directory_symlink(*this / folder, *this / (card / "device"));
  }
  Hardware read() const { return read_hardware(path); }
};

const CpuList kAll = {0, 1, 2, 3, 4, 5, 6, 7};

}  // namespace

TEST_SUITE("hardware") {
  TEST_CASE("hardware: GPUs and cards are shown with NUMA node, CPUs and links") {
    const Host host;
    CHECK(hardware_text(host.read()).empty());
    host.add_gpu("0000:97:00.0", 1);
    host.add_gpu("0000:17:00.0", 0);
    host.add("0000:18:00.0", "0x10de", "0x040300", 0);  // a GPU's audio device
    host.add("0000:19:00.0", "0x1a03", "0x030000", 0);  // another vendor's display
    host.add("0000:1a:00.0", "0x10de", "0x068000", 0);  // an NVSwitch
    host.add_card("mlx5_1", "0000:98:00.0", 1);
    host.add_card("mlx5_0", "0000:1b:00.0", 0);
    host.write("sys/module/nvidia_peermem/version", "1");
    const Hardware found = host.read();
    CHECK(hardware_text(found) ==
          "GPU 0        0000:17:00.0 10de:2330, NUMA node 0, CPUs 0-3, 32.0 GT/s PCIe x16\n"
          "GPU 1        0000:97:00.0 10de:2330, NUMA node 1, CPUs 4-7, 32.0 GT/s PCIe x16\n"
          "mlx5_0       0000:1b:00.0 400 Gb/sec ACTIVE, NUMA node 0, CPUs 0-3, 32.0 GT/s PCIe x16\n"
          "mlx5_1       0000:98:00.0 400 Gb/sec ACTIVE, NUMA node 1, CPUs 4-7, 32.0 GT/s PCIe x16\n"
          "GPUDirect    by nvidia_peermem\n"
          "P2P          by NVSwitch\n"
          "slow: shared memory has small pages: registering a state with the driver takes long; as "
          "root: echo within_size > /sys/kernel/mm/transparent_hugepage/shmem_enabled\n");
    CHECK(hardware_json(found)["gpus"][1]["numa_node"] == 1);
  }

  TEST_CASE("hardware: what will be slow is told") {
    const Host host;
    host.add_gpu("0000:17:00.0", 0, 8);
    host.add_gpu("0000:97:00.0", 1);
    host.add_card("mlx5_0", "0000:1b:00.0", 0);
    host.add_card("mlx5_1", "0000:98:00.0", 1, "1: DOWN");
    const std::vector<std::string> slow = slow_paths(host.read());
    REQUIRE(slow.size() == 6);
    CHECK(slow[0] == "GPU 0 (0000:17:00.0) has fewer lanes than it could have: 32.0 GT/s PCIe x8");
    CHECK(slow[1] == "mlx5_1 carries nothing: its port is not active");
    CHECK(slow[2].starts_with("GPU 1 has no active card on its NUMA node 1"));
    CHECK(slow[3].starts_with("no GPUDirect"));
    CHECK(slow[4].starts_with("GPUs lie on several NUMA nodes"));
    host.write("proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05");
    CHECK(host.read().gpudirect == "dma-buf");
    CHECK(slow_paths(host.read()).size() == 5);
    const std::string setting = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    for (const char* chosen : {"[always] within_size advise never deny force",
                               "always [within_size] advise never deny force"}) {
      host.write(setting, chosen);
      CHECK(slow_paths(host.read()).size() == 4);
    }
    host.write(setting, "always within_size [advise] never deny force");
    CHECK(slow_paths(host.read()).size() == 5);
  }

  TEST_CASE("hardware: the CPUs near a GPU are found by its PCI address") {
    const Host host;
    for (int gpu = 0; gpu < 8; ++gpu)  // more than CUDA shows
      host.add_gpu("0000:" + std::to_string(gpu + 1) + "b:00.0", gpu < 4 ? 0 : 1);
    host.add_gpu("0000:9b:00.0", -1);
    host.write("sys/bus/pci/devices/0000:9b:00.0/local_cpulist", "0-1");
    const Hardware found = host.read();
    const CpuList low = {0, 1, 2, 3}, high = {4, 5, 6, 7}, unknown;
    for (const char* address : {"0000:5b:00.0", "0000:6b:00.0", "0000:7b:00.0", "0000:8b:00.0"})
      CHECK(cpus_near_gpu(kAll, found, address) == high);
    CHECK(cpus_near_gpu(kAll, found, "0000:1b:00.0") == low);
    CHECK(cpus_near_gpu({2, 3, 4}, found, "0000:8b:00.0") == CpuList{4});
    CHECK(cpus_near_gpu(low, found, "0000:8b:00.0") == unknown);   // none of these is near
    CHECK(cpus_near_gpu(high, found, "0000:8b:00.0") == unknown);  // all are
    CHECK(cpus_near_gpu(kAll, found, "0000:9b:00.0") == unknown);  // on no NUMA node
    CHECK(cpus_near_gpu(kAll, found, "0001:8b:00.0") == unknown);
    CHECK(cpus_near_gpu(kAll, found, "") == unknown);
    CHECK(cpus_near_gpu(kAll, {}, "0000:8b:00.0") == unknown);
  }
}

TEST_CASE("diagnose: all checks pass on this machine") {
  const auto results = check_machine(std::filesystem::temp_directory_path().string());
  CHECK(results.size() == 4);
  CHECK_MESSAGE(all_ok(results), table(results));
  CHECK(complaints(results).empty());
  for (const auto& r : results)
    if (r.unit != "ms") CHECK(r.value > 0);
}

TEST_CASE("diagnose: the disk check follows no link that another user of the folder has made") {
  namespace fs = std::filesystem;
  const test::TempFolder folder;
  const std::string mine = folder.write("mine", "mine");
  fs::create_symlink(mine, folder / (".check-" + std::to_string(getpid())));
  CHECK(check_disk(folder.path).ok);
  CHECK(fs::file_size(mine) == 4);
}

TEST_CASE("diagnose: a folder that cannot be written fails the disk check by name") {
  const auto result = check_disk("/nonexistent");
  CHECK(!result.ok);
  CHECK(result.detail.find("/nonexistent") != std::string::npos);
}
