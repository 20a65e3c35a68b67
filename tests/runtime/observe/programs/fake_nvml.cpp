// A fake of NVIDIA's libnvidia-ml.so.1 with the declarations of nvml.h (driver 580; these parts
// have not changed since 2013). It has two GPUs, of which the second one reports only its name, and
// returns errors for wrong arguments. FAKE_NVML_OLD: the library of a driver that lacks some
// functions.
#include <cstring>

extern "C" {

using nvmlReturn_t = int;  // an enum
struct nvmlDevice_st {
  int index;
};
using nvmlDevice_t = nvmlDevice_st*;
struct nvmlUtilization_t {
  unsigned int gpu, memory;
};
struct nvmlMemory_t {
  unsigned long long total, free, used;
};
enum nvmlTemperatureSensors_t { NVML_TEMPERATURE_GPU = 0 };
enum nvmlMemoryErrorType_t {
  NVML_MEMORY_ERROR_TYPE_CORRECTED = 0,
  NVML_MEMORY_ERROR_TYPE_UNCORRECTED
};
enum nvmlEccCounterType_t { NVML_VOLATILE_ECC = 0, NVML_AGGREGATE_ECC };
enum nvmlClockType_t { NVML_CLOCK_GRAPHICS = 0, NVML_CLOCK_SM, NVML_CLOCK_MEM };
struct nvmlEventSet_st {
  bool listens;
  int fetched;
};
using nvmlEventSet_t = nvmlEventSet_st*;
struct nvmlEventData_t {
  nvmlDevice_t device;
  unsigned long long eventType, eventData;
  unsigned int gpuInstanceId, computeInstanceId;
};

static constexpr nvmlReturn_t kSuccess = 0, kInvalid = 2, kNotSupported = 3, kNotInitialized = 1,
                              kTimeout = 10;
static constexpr unsigned long long kXidCriticalError = 8;
static nvmlDevice_st devices[2] = {{0}, {1}};
static int users = 0;

static nvmlReturn_t state_of(nvmlDevice_t device) {
  if (users == 0) return kNotInitialized;
  if (device == &devices[0]) return kSuccess;
  return device == &devices[1] ? kNotSupported : kInvalid;
}

nvmlReturn_t nvmlInit_v2() {
  ++users;
  return kSuccess;
}
nvmlReturn_t nvmlShutdown() {
  --users;
  return kSuccess;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return users > 0 ? kSuccess : kNotInitialized;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  if (users == 0 || index > 1) return kInvalid;
  *device = &devices[index];
  return kSuccess;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  if (state_of(device) == kInvalid || length < 96) return kInvalid;
  std::strcpy(name, device->index == 0 ? "NVIDIA H100 80GB HBM3" : "NVIDIA H100 (silent)");
  return kSuccess;
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int* celsius) {
  if (state_of(device) != kSuccess) return state_of(device);
  *celsius = 61;
  return sensor == NVML_TEMPERATURE_GPU ? kSuccess : kInvalid;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  if (state_of(device) != kSuccess) return state_of(device);
  *memory = {80ull << 30, 60ull << 30, 20ull << 30};
  return kSuccess;
}
#ifndef FAKE_NVML_OLD
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* rates) {
  if (state_of(device) != kSuccess) return state_of(device);
  *rates = {87, 33};
  return kSuccess;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts) {
  if (state_of(device) != kSuccess) return state_of(device);
  *milliwatts = 412'500;
  return kSuccess;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t counter, unsigned long long* count) {
  if (state_of(device) != kSuccess) return state_of(device);
  *count = (5ull << 40) + 3;
  return type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED && counter == NVML_VOLATILE_ECC ? kSuccess
                                                                                    : kInvalid;
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* mhz) {
  if (state_of(device) != kSuccess) return state_of(device);
  *mhz = 1'980;
  return type == NVML_CLOCK_SM ? kSuccess : kInvalid;
}
// A set that is registered for errors gets two errors of the first GPU, then no more.
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
  if (users == 0) return kNotInitialized;
  *set = new nvmlEventSet_st{};
  return kSuccess;
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  delete set;
  return kSuccess;
}
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                      nvmlEventSet_t set) {
  if (state_of(device) != kSuccess) return state_of(device);
  if (types != kXidCriticalError) return kInvalid;
  set->listens = true;
  return kSuccess;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data,
                                 unsigned int timeout_ms) {
  if (timeout_ms != 0 || !set->listens) return kInvalid;  // the probe must not block
  if (set->fetched == 2) return kTimeout;
  *data = {&devices[0], kXidCriticalError, set->fetched == 0 ? 45ull : 79ull, ~0u, ~0u};
  ++set->fetched;
  return kSuccess;
}
#endif

}  // extern "C"
