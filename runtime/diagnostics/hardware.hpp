// The GPUs and network cards of a host as Linux shows them in /sys and /proc, without a driver's
// library: where they are, how they are linked, and what will be slow. Any thread.
//
// A GPU is a display controller of NVIDIA, a card one of InfiniBand or RoCE. NVLink between two GPUs
// is not seen, only an NVSwitch.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/cpu_affinity.hpp"

namespace simplescale {

struct PciDevice {
  std::string name;     // "GPU 0", "mlx5_0"
  std::string address;  // "0000:17:00.0"
  int numa_node = -1;   // -1: unknown, or the host has only one
  CpuList cpus;         // near it
  std::string link;     // "32.0 GT/s PCIe x16"; a GPU without work may lower the speed
  bool narrow = false;  // the link has fewer lanes than device and slot can have
  std::string detail;  // a GPU's device id, such as "10de:2330"; a card's port: "400 Gb/sec ACTIVE"
};

struct Hardware {
  std::vector<PciDevice> gpus;   // by address; CUDA may show fewer, in another order
  std::vector<PciDevice> cards;  // by name
  int nvswitches = 0;
  std::string gpudirect;    // what lets cards access GPUs' memory; "": nothing is loaded
  bool huge_pages = false;  // shared memory, which holds the states, has huge pages
};

/// root: the folder that has `sys` and `proc`. What cannot be read is left out.
Hardware read_hardware(const std::string& root);
/// Of this machine; the environment variable SIMPLESCALE_HARDWARE names another root (for tests).
Hardware read_hardware();

/// What will be slow and why, a sentence each.
std::vector<std::string> slow_paths(const Hardware& hardware);
/// A line for each device, for GPUDirect and P2P, and for each slow path; "" without GPUs and cards.
std::string hardware_text(const Hardware& hardware);
nlohmann::json hardware_json(const Hardware& hardware);

/// The CPUs of `mask` near the GPU at a PCI address, such as "0000:17:00.0". Empty if it is not known
/// which these are, or if they are all of `mask`.
CpuList cpus_near_gpu(const CpuList& mask, const Hardware& hardware, const std::string& address);

}  // namespace simplescale
