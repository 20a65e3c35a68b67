#include "runtime/diagnostics/hardware.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "runtime/base/files.hpp"

namespace simplescale {
namespace {

constexpr const char* kSharedHugePages = "sys/kernel/mm/transparent_hugepage/shmem_enabled";

namespace fs = std::filesystem;

/// The file's first line; "" if it cannot be read.
std::string line_of(const fs::path& file) {
  const Result<std::string> text = read_text(file.string());
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

int number_of(const fs::path& file, int otherwise) {
  const std::string text = line_of(file);
  return text.empty() ? otherwise : std::atoi(text.c_str());
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, error)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

PciDevice device_at(const fs::path& folder, const std::string& name) {
  PciDevice device;
  std::error_code error;
  device.name = name;
  device.address = fs::weakly_canonical(folder, error).filename().string();
  device.numa_node = number_of(folder / "numa_node", -1);
  device.cpus = parse_cpu_list(line_of(folder / "local_cpulist")).value_or(CpuList());
  const int width = number_of(folder / "current_link_width", 0);
  if (width > 0) device.link = fmt::format("{} x{}", line_of(folder / "current_link_speed"), width);
  device.narrow = width > 0 && width < number_of(folder / "max_link_width", 0);
  return device;
}

/// "400 Gb/sec ACTIVE" of "400 Gb/sec (4X NDR)" and "4: ACTIVE".
std::string port_of(const fs::path& card) {
  const std::string rate = line_of(card / "ports/1/rate"), state = line_of(card / "ports/1/state");
  const size_t colon = state.find(": ");
  return rate.substr(0, rate.find(" (")) + " " +
         (colon == std::string::npos ? "without state" : state.substr(colon + 2));
}

bool active(const PciDevice& card) {
  return card.detail.ends_with(" ACTIVE");
}

std::string gpudirect_of(const fs::path& root) {
  for (const char* module : {"nvidia_peermem", "nv_peer_mem"})
    if (fs::exists(root / "sys/module" / module)) return module;
  // The open kernel modules export the memory of GPUs as dma-buf.
  const Result<std::string> version = read_text((root / "proc/driver/nvidia/version").string());
  return version.ok() && version->find("Open Kernel Module") != std::string::npos ? "dma-buf" : "";
}

/// True if Linux gives huge pages to shared memory that is allocated beforehand.
bool huge_pages_of(const fs::path& root) {
  std::ifstream setting(root / kSharedHugePages);
  bool huge = false;
  for (std::string word; setting >> word;)
    huge = huge || word == "[always]" || word == "[within_size]" || word == "[force]";
  return huge;
}

}  // namespace

Hardware read_hardware(const std::string& root) {
  Hardware found;
  for (const fs::path& folder : entries(fs::path(root) / "sys/bus/pci/devices")) {
    if (line_of(folder / "vendor") != "0x10de") continue;
    const std::string kind = line_of(folder / "class").substr(0, 6);
    if (kind == "0x0680") ++found.nvswitches;
    if (kind != "0x0300" && kind != "0x0302") continue;
    found.gpus.push_back(device_at(folder, fmt::format("GPU {}", found.gpus.size())));
    const std::string id = line_of(folder / "device");
    found.gpus.back().detail = "10de:" + id.substr(std::min<size_t>(2, id.size()));
  }
  for (const fs::path& card : entries(fs::path(root) / "sys/class/infiniband")) {
    found.cards.push_back(device_at(card / "device", card.filename().string()));
    found.cards.back().detail = port_of(card);
  }
  found.gpudirect = gpudirect_of(root);
  found.huge_pages = huge_pages_of(root);
  return found;
}

Hardware read_hardware() {
  const char* other = std::getenv("SIMPLESCALE_HARDWARE");
  return read_hardware(other ? other : "/");
}

std::vector<std::string> slow_paths(const Hardware& h) {
  std::vector<std::string> slow;
  for (const auto* devices : {&h.gpus, &h.cards})
    for (const PciDevice& device : *devices)
      if (device.narrow)
        slow.push_back(fmt::format("{} ({}) has fewer lanes than it could have: {}", device.name,
                                   device.address, device.link));
  for (const PciDevice& card : h.cards)
    if (!active(card)) slow.push_back(card.name + " carries nothing: its port is not active");
  for (const PciDevice& gpu : h.gpus) {
    const bool near = std::ranges::any_of(h.cards, [&](const PciDevice& card) {
      return active(card) && card.numa_node == gpu.numa_node;
    });
    if (!h.cards.empty() && !near)
      slow.push_back(
          fmt::format("{} has no active card on its NUMA node {}: what it sends to other "
                      "hosts crosses the link between the CPUs",
                      gpu.name, gpu.numa_node));
  }
  if (!h.gpus.empty() && !h.cards.empty() && h.gpudirect.empty())
    slow.push_back(
        "no GPUDirect: messages to other hosts are copied through host memory; as root: modprobe "
        "nvidia_peermem");
  const bool one_node = std::ranges::all_of(
      h.gpus, [&](const PciDevice& gpu) { return gpu.numa_node == h.gpus[0].numa_node; });
  if (!one_node && h.nvswitches == 0)
    slow.push_back(
        "GPUs lie on several NUMA nodes and there is no NVSwitch: without NVLink (nvidia-smi topo "
        "-m) what they send each other crosses the link between the CPUs");
  if (!h.gpus.empty() && !h.huge_pages)
    slow.push_back(
        "shared memory has small pages: registering a state with the driver takes long; as root: "
        "echo within_size > /" +
        std::string(kSharedHugePages));
  return slow;
}

std::string hardware_text(const Hardware& h) {
  if (h.gpus.empty() && h.cards.empty()) return "";
  std::string text;
  for (const auto* devices : {&h.gpus, &h.cards})
    for (const PciDevice& d : *devices)
      text += fmt::format("{:<12} {} {}, NUMA node {}, CPUs {}, {}\n", d.name, d.address, d.detail,
                          d.numa_node < 0 ? "unknown" : std::to_string(d.numa_node),
                          cpu_list_text(d.cpus), d.link.empty() ? "link unknown" : d.link);
  if (!h.gpus.empty())
    text += fmt::format("{:<12} by {}\n{:<12} by {}\n", "GPUDirect",
                        h.gpudirect.empty() ? "nothing" : h.gpudirect, "P2P",
                        h.nvswitches > 0 ? "NVSwitch" : "PCIe, or NVLink if there is any");
  for (const std::string& slow : slow_paths(h)) text += "slow: " + slow + "\n";
  return text;
}

nlohmann::json hardware_json(const Hardware& h) {
  const auto list = [](const std::vector<PciDevice>& devices) {
    nlohmann::json all = nlohmann::json::array();
    for (const PciDevice& d : devices)
      all.push_back({{"name", d.name},
                     {"address", d.address},
                     {"detail", d.detail},
                     {"numa_node", d.numa_node},
                     {"cpus", cpu_list_text(d.cpus)},
                     {"link", d.link}});
    return all;
  };
  return {{"gpus", list(h.gpus)},     {"cards", list(h.cards)},     {"nvswitches", h.nvswitches},
          {"gpudirect", h.gpudirect}, {"huge_pages", h.huge_pages}, {"slow", slow_paths(h)}};
}

CpuList cpus_near_gpu(const CpuList& mask, const Hardware& h, const std::string& address) {
  const auto gpu = std::ranges::find(h.gpus, address, &PciDevice::address);
  if (gpu == h.gpus.end() || gpu->numa_node < 0) return {};
  CpuList near;
  std::ranges::set_intersection(gpu->cpus, mask, std::back_inserter(near));
  return near == mask ? CpuList() : near;
}

}  // namespace simplescale
