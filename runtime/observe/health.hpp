// runtime/observe: what can be observed of running processes: health figures, log files, traces.
//
// Health figures of a host and its GPUs, from /proc, the file system of a folder, and NVML, which
// is loaded at run time and may be absent. For display and monitoring; no decision depends on them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace simplescale {

/// A figure that NVML does not report is 0.
struct GpuHealth {
  std::string name;
  double utilization = 0;  // 0 to 1
  double temperature_c = 0;
  double power_w = 0;
  double memory_used = 0;   // 0 to 1
  uint64_t ecc_errors = 0;  // uncorrected, since the driver was loaded
  double clock_mhz = 0;     // of the multiprocessors
  uint64_t xids = 0;        // number of critical (Xid) errors since the probe was created
  uint64_t xid = 0;         // NVIDIA's number of the newest of them
  bool operator==(const GpuHealth&) const = default;
};

/// Used shares of all cores, of memory and of the disk, 0 to 1; rates since the previous sample.
struct HostHealth {
  double cpu = 0, memory = 0, disk = 0;
  double received_mb_per_s = 0, sent_mb_per_s = 0;  // over all interfaces but loopback
  std::vector<GpuHealth> gpus;
};

class HealthProbe {
 public:
  /// folder: `disk` is about its file system. nvml: a path, or a name that the loader finds.
  explicit HealthProbe(std::string folder, const std::string& nvml = "libnvidia-ml.so.1");
  ~HealthProbe();
  /// Blocks as long as the file system and the GPU driver do. One thread at a time.
  HostHealth sample();

 private:
  struct Nvml;
  struct Counters {
    double time_s = 0, busy = 0, total = 0, received = 0, sent = 0;
  };
  const std::string folder_;
  Counters before_;
  std::unique_ptr<Nvml> nvml_;
};

}  // namespace simplescale
