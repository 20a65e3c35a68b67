#include "runtime/observe/health.hpp"

#include <dlfcn.h>
#include <sys/statvfs.h>

#include <chrono>
#include <fstream>
#include <map>
#include <sstream>

namespace simplescale {

namespace {

constexpr double kMb = 1e6;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void read_cpu(double& busy, double& total) {
  std::ifstream file("/proc/stat");
  std::string word;
  file >> word;
  double value = 0;
  busy = total = 0;
  for (int field = 0; field < 8 && file >> value; ++field) {
    total += value;
    if (field != 3 && field != 4) busy += value;  // all but idle and iowait
  }
}

double used_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  double value = 0, total = 0, available = 0;
  while (file >> name >> value && std::getline(file, unit)) {
    if (name == "MemTotal:") total = value;
    if (name == "MemAvailable:") available = value;
  }
  return total > 0 ? 1 - available / total : 0;
}

void read_network(double& received, double& sent) {
  std::ifstream file("/proc/net/dev");
  received = sent = 0;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.find("lo:") != std::string::npos) continue;
    std::istringstream fields(line.substr(colon + 1));
    double value = 0;
    for (int field = 0; field < 9 && fields >> value; ++field) {
      if (field == 0) received += value;
      if (field == 8) sent += value;
    }
  }
}

double used_disk(const std::string& folder) {
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0) return 0;
  return 1 - static_cast<double>(disk.f_bavail) / static_cast<double>(disk.f_blocks);
}

}  // namespace

/// The functions of NVML that are used; their C interface is stable
/// (https://docs.nvidia.com/deploy/nvml-api). If a driver lacks a function, its figure stays 0.
struct HealthProbe::Nvml {
  using Device = void*;
  using EventSet = void*;
  struct Event {
    Device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
  };
  static constexpr unsigned long long kXidEvents = 8;  // nvmlEventTypeXidCriticalError
  static constexpr int kEventsMax = 1000;              // per sample
  struct Utilization {
    unsigned gpu, memory;
  };
  struct Memory {
    unsigned long long total, free, used;
  };
  void* library;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*by_index)(unsigned, Device*) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*temperature)(Device, int sensor, unsigned*) = nullptr;
  int (*power)(Device, unsigned* milliwatts) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*ecc)(Device, int type, int counter, unsigned long long*) = nullptr;
  int (*clock)(Device, int type, unsigned* mhz) = nullptr;
  int (*event_set)(EventSet*) = nullptr;
  int (*event_set_free)(EventSet) = nullptr;
  int (*register_events)(Device, unsigned long long types, EventSet) = nullptr;
  int (*next_event)(EventSet, Event*, unsigned timeout_ms) = nullptr;
  bool usable = false;
  EventSet events = nullptr;
  struct Xids {
    uint64_t count = 0, newest = 0;
  };
  std::map<Device, Xids> xids;

  explicit Nvml(const std::string& file) : library(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!library) return;
    auto find = [this](auto& function, const char* symbol) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    };
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(count, "nvmlDeviceGetCount_v2");
    find(by_index, "nvmlDeviceGetHandleByIndex_v2");
    find(name, "nvmlDeviceGetName");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    find(temperature, "nvmlDeviceGetTemperature");
    find(power, "nvmlDeviceGetPowerUsage");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(ecc, "nvmlDeviceGetTotalEccErrors");
    find(clock, "nvmlDeviceGetClockInfo");
    find(event_set, "nvmlEventSetCreate");
    find(event_set_free, "nvmlEventSetFree");
    find(register_events, "nvmlDeviceRegisterEvents");
    find(next_event, "nvmlEventSetWait_v2");
    usable = init && count && by_index && init() == 0;
    if (usable) listen();
  }
  ~Nvml() {
    if (events) event_set_free(events);
    if (usable && shutdown) shutdown();
    if (library) dlclose(library);
  }
  /// Subscribes to critical errors, which NVML queues until fetch_events().
  void listen() {
    unsigned number = 0;
    if (!event_set || !event_set_free || !register_events || !next_event || count(&number) != 0 ||
        event_set(&events) != 0) {
      events = nullptr;
      return;
    }
    for (unsigned index = 0; index < number; ++index)
      if (Device device = nullptr; by_index(index, &device) == 0)
        register_events(device, kXidEvents, events);  // if it fails, xids stays 0
  }
  void fetch_events() {
    Event event{};
    for (int i = 0; events && i < kEventsMax && next_event(events, &event, 0) == 0; ++i)
      if (event.type == kXidEvents) xids[event.device] = {xids[event.device].count + 1, event.data};
  }
  std::vector<GpuHealth> sample() {
    std::vector<GpuHealth> gpus;
    unsigned number = 0;
    if (!usable || count(&number) != 0) return gpus;
    fetch_events();
    for (unsigned index = 0; index < number; ++index) {
      Device device = nullptr;
      if (by_index(index, &device) != 0) continue;
      GpuHealth& gpu = gpus.emplace_back();
      char text[96] = "";
      unsigned value = 0;
      unsigned long long errors = 0;
      Utilization busy{};
      Memory use{};
      if (name && name(device, text, sizeof text) == 0) gpu.name = text;
      if (utilization && utilization(device, &busy) == 0) gpu.utilization = busy.gpu / 100.0;
      if (temperature && temperature(device, 0, &value) == 0) gpu.temperature_c = value;
      if (power && power(device, &value) == 0) gpu.power_w = value / 1e3;
      if (memory && memory(device, &use) == 0 && use.total > 0)
        gpu.memory_used = static_cast<double>(use.used) / static_cast<double>(use.total);
      if (ecc && ecc(device, 1, 0, &errors) == 0) gpu.ecc_errors = errors;  // uncorrected, volatile
      if (clock && clock(device, 1, &value) == 0) gpu.clock_mhz = value;    // NVML_CLOCK_SM
      gpu.xids = xids[device].count;
      gpu.xid = xids[device].newest;
    }
    return gpus;
  }
};

HealthProbe::HealthProbe(std::string folder, const std::string& nvml)
    : folder_(std::move(folder)), nvml_(std::make_unique<Nvml>(nvml)) {
  sample();
}

HealthProbe::~HealthProbe() = default;

HostHealth HealthProbe::sample() {
  Counters now{seconds_now()};
  read_cpu(now.busy, now.total);
  read_network(now.received, now.sent);
  HostHealth health;
  const double passed = now.time_s - before_.time_s;
  if (now.total > before_.total)
    health.cpu = (now.busy - before_.busy) / (now.total - before_.total);
  if (passed > 0 && now.received >= before_.received && now.sent >= before_.sent) {
    health.received_mb_per_s = (now.received - before_.received) / passed / kMb;
    health.sent_mb_per_s = (now.sent - before_.sent) / passed / kMb;
  }
  before_ = now;
  health.memory = used_memory();
  health.disk = used_disk(folder_);
  health.gpus = nvml_->sample();
  return health;
}

}  // namespace simplescale
