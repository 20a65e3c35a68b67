#include "transport/nccl/device_plane.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <system_error>
#include <vector>

#include "runtime/base/library.hpp"
#include "transport/nccl/communicator.hpp"
#include "transport/nccl/paired.hpp"
#include "transport/nccl/staged.hpp"
#include "transport/nccl/status.hpp"
#include "transport/nccl/stream.hpp"

namespace simplescale::nccl {
namespace {

// The first communicator of a process on a GPU takes long: NCCL looks for networks and GPUs and
// loads its kernels (0.8 s on an H200; a later communicator takes 30 ms). So this creates one
// before it is needed.

Status make_and_end(int device_index, int timeout_ms) {
  const auto limit = Clock::now() + std::chrono::milliseconds(timeout_ms);
  SS_RETURN_IF_ERROR(SS_CUDA_STATUS(cudaSetDevice(device_index)));
  ncclUniqueId id;
  SS_RETURN_IF_ERROR(nccl_status(ncclGetUniqueId(&id), "identifier", nullptr));
  ncclComm_t comm = nullptr;
  const auto done = [&](ncclResult_t begun, const char* what) {
    if (is_error(begun)) return nccl_status(begun, what, comm);
    const Status status = poll(limit, [&]() -> Result<bool> {
      ncclResult_t state = ncclSuccess;
      SS_RETURN_IF_ERROR(nccl_status(ncclCommGetAsyncError(comm, &state), what, comm));
      SS_RETURN_IF_ERROR(nccl_status(state, what, comm));
      return state == ncclSuccess;
    });
    if (status.code() != Code::deadline) return status;
    return Status(Code::unavailable, std::string("NCCL: ") + what + " did not end within " +
                                         std::to_string(timeout_ms) + " ms");
  };
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  Status status = done(ncclCommInitRankConfig(&comm, 1, id, 0, &config), "init");
  if (status.ok()) status = done(ncclCommFinalize(comm), "finalize");
  if (status.ok()) return nccl_status(ncclCommDestroy(comm), "destroy", nullptr);
  if (comm) (void)ncclCommAbort(comm);
  return status;
}

/// Starts to create a communicator of this process alone on a GPU, which has a context, and to end
/// it. The future is ready when that is done; unavailable, with the reason: NCCL fails, or is not
/// done after timeout_ms. Runs on a detached thread, because some of NCCL's calls have no deadline:
/// the future may never be ready. Any thread.
std::shared_future<Status> prepare(int device_index, int timeout_ms) {
  std::promise<Status> result;
  std::shared_future<Status> future = result.get_future();
  try {
    std::thread([=, made = std::move(result)]() mutable {
      made.set_value(make_and_end(device_index, timeout_ms));
    }).detach();
  } catch (const std::system_error& error) {
    std::promise<Status> none;
    none.set_value(Status(Code::unavailable, std::string("no thread for NCCL: ") + error.what()));
    return none.get_future();
  }
  return future;
}

/// An address is one byte for the transport, then the host plane's address.
class DevicePlane final : public DataPlane {
 public:
  DevicePlane(std::unique_ptr<DataPlane> host, const DevicePlaneOptions& options)
      : host_(std::move(host)), options_(options) {}

  std::vector<uint8_t> address() const override {
    return device_plane_address(host_->address(), options_);
  }
  Result<std::unique_ptr<Collective>> join(const CommunicatorSpec& spec) override;
  void abort(uint64_t generation, const std::string& reason) override;
  void inject_network_fault(const NetworkFault& fault) override {
    host_->inject_network_fault(fault);
  }

 private:
  Result<CommunicatorSpec> host_spec(const CommunicatorSpec& spec) const;
  Result<std::unique_ptr<NcclCommunicator>> connect(const CommunicatorSpec& spec, const char* part,
                                                    std::shared_ptr<Collective> host,
                                                    std::unique_ptr<Stream> stream);

  std::unique_ptr<DataPlane> host_;
  const DevicePlaneOptions options_;
  const std::shared_ptr<Mirrors> mirrors_ = std::make_shared<Mirrors>();
  std::mutex lock_;  // guards the rest
  std::vector<NcclCommunicator*> communicators_;
  uint64_t fenced_ = 0;  // generations up to this one are aborted, unless fence_reason_ is empty
  std::string fence_reason_;
};

Result<CommunicatorSpec> DevicePlane::host_spec(const CommunicatorSpec& spec) const {
  CommunicatorSpec host = spec;
  for (size_t r = 0; r < host.members.size(); ++r) {
    std::vector<uint8_t>& member = host.members[r];
    if (spec.host_memory) {
      member = host_plane_address(std::move(member));  // an agent's has no transport
      continue;
    }
    if (member.empty() || member[0] != static_cast<uint8_t>(options_.transport))
      return Status(Code::bad_data, spec.name + ": rank " + std::to_string(r) +
                                        " uses another transport for device memory than this rank");
    member.erase(member.begin());
  }
  return host;
}

Result<std::unique_ptr<Collective>> DevicePlane::join(const CommunicatorSpec& spec) {
  SS_ASSIGN(const CommunicatorSpec on_host, host_spec(spec));
  if (spec.host_memory) return host_->join(on_host);
  SS_ASSIGN(auto stream, Stream::create(options_.device_index));
  SS_ASSIGN(auto host, host_->join(on_host));
  if (options_.transport == DeviceTransport::staged)
    return std::unique_ptr<Collective>(std::make_unique<StagedCommunicator>(
        std::move(host), std::move(stream), mirrors_, spec.timeout_ms));
  const std::shared_ptr<Collective> shared = std::move(host);
  SS_ASSIGN(auto sums, connect(spec, "", shared, std::move(stream)));
  if (!spec.separate_gathers) return std::unique_ptr<Collective>(std::move(sums));
  SS_ASSIGN(auto other, Stream::create(options_.device_index));
  auto gathers = connect(spec, ".gathers", shared, std::move(other));
  if (!gathers.ok()) {
    sums->abort(gathers.status().message());  // closing it would wait for peers
    return gathers.status();
  }
  return std::unique_ptr<Collective>(
      std::make_unique<PairedCommunicator>(std::move(sums), gathers.take()));
}

/// A communicator that abort() knows from before it connects.
Result<std::unique_ptr<NcclCommunicator>> DevicePlane::connect(const CommunicatorSpec& spec,
                                                               const char* part,
                                                               std::shared_ptr<Collective> host,
                                                               std::unique_ptr<Stream> stream) {
  auto communicator = std::make_unique<NcclCommunicator>(
      NcclCommunicator::Spec{.name = spec.name + part + "@" + std::to_string(spec.generation),
                             .generation = spec.generation,
                             .timeout_ms = spec.timeout_ms,
                             .native_sums = options_.native_sums},
      std::move(host), std::move(stream), [this](NcclCommunicator* gone) {
        std::lock_guard guard(lock_);
        std::erase(communicators_, gone);
      });
  {
    std::lock_guard guard(lock_);
    communicators_.push_back(communicator.get());
    if (!fence_reason_.empty() && spec.generation <= fenced_) communicator->abort(fence_reason_);
  }
  if (const Status connected = communicator->connect(); !connected.ok()) {
    communicator->abort(connected.message());
    return connected;
  }
  return communicator;
}

void DevicePlane::abort(uint64_t generation, const std::string& reason) {
  host_->abort(generation, reason);
  std::lock_guard guard(lock_);
  if (fence_reason_.empty() || generation >= fenced_) {
    fenced_ = generation;
    fence_reason_ = reason.empty() ? "aborted" : reason;
  }
  for (NcclCommunicator* communicator : communicators_)
    if (communicator->generation() <= generation) communicator->abort(reason);
}

/// Why no GPU can be used.
std::string reason_for(cudaError_t error) {
  std::string why = std::string("no GPU can be used: ") + cudaGetErrorString(error);
  int driver = 0;
  if (error != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess)
    return why;
  if (driver == 0) return "no GPU can be used: this host has no NVIDIA driver";
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  return why + ": this host's driver knows CUDA " + version(driver) + ", and the program needs " +
         version(CUDART_VERSION) + ": install a newer NVIDIA driver";
}

/// True for a part of a GPU (MIG): CUDA names it "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
bool is_slice(const cudaDeviceProp& gpu) {
  return std::string_view(gpu.name).find(" MIG ") != std::string_view::npos;
}

/// As CUDA_VISIBLE_DEVICES names it: GPU-8-4-4-4-12 hexadecimal digits.
std::string cuda_name(const cudaDeviceProp& gpu) {
  std::string text = is_slice(gpu) ? "MIG" : "GPU";
  for (int i = 0; i < 16; ++i) {
    constexpr const char* digits = "0123456789abcdef";
    const auto value = static_cast<unsigned char>(gpu.uuid.bytes[i]);
    if (i == 0 || (i >= 4 && i <= 10 && i % 2 == 0)) text += '-';
    text += {digits[value / 16], digits[value % 16]};
  }
  return text;
}

std::string pci_address(const cudaDeviceProp& gpu) {
  char text[32];  // cudaDeviceGetPCIBusId() writes upper case
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", static_cast<unsigned>(gpu.pciDomainID),
                static_cast<unsigned>(gpu.pciBusID), static_cast<unsigned>(gpu.pciDeviceID));
  return text;
}

Result<DevicePlaneOptions> choose_device(int index, int trainers) {
  SS_ASSERT(index >= 0 && index < trainers);
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) return Status(Code::unavailable, reason_for(error));
  DevicePlaneOptions options;
  options.device_index = index % devices;
  options.shared = trainers > devices;
  const auto most_on_a_gpu = static_cast<size_t>((trainers + devices - 1) / devices);
  const bool shares_by_nccl = std::getenv(kNcclOnSharedGpu);
  options.transport =
      options.shared && !shares_by_nccl ? DeviceTransport::staged : DeviceTransport::nccl;
  for (int device = 0; device < devices; ++device) {
    cudaDeviceProp properties{};
    SS_RETURN_IF_ERROR(SS_CUDA_STATUS(cudaGetDeviceProperties(&properties, device)));
    const bool suitable = properties.major >= kOldestGpuMajor;
    if (!suitable && device == options.device_index)
      return Status(Code::unavailable,
                    "GPU " + std::to_string(device) + " (" + properties.name +
                        ") is older than Ampere, which the program requires: leave it out of "
                        "CUDA_VISIBLE_DEVICES");
    options.uuids.push_back(suitable ? cuda_name(properties) : "");
    options.addresses.push_back(pci_address(properties));
    // NCCL refuses ranks on slices of one GPU, and a process may not see the other ranks' slices.
    if (is_slice(properties) && !shares_by_nccl) options.transport = DeviceTransport::staged;
    if (device == options.device_index)
      options.capability = 10 * properties.major + properties.minor;
    const uint64_t share = properties.totalGlobalMem / most_on_a_gpu;
    if (suitable && (options.memory_bytes == 0 || share < options.memory_bytes))
      options.memory_bytes = share;
  }
  return options;
}

Result<std::unique_ptr<DataPlane>> make_device_plane(std::unique_ptr<DataPlane> host,
                                                     const DevicePlaneOptions& options) {
  return std::unique_ptr<DataPlane>(std::make_unique<DevicePlane>(std::move(host), options));
}

}  // namespace
}  // namespace simplescale::nccl

extern "C" __attribute__((visibility("default"))) const simplescale::NcclLibrary*
simplescale_nccl_library() {
  static constexpr simplescale::NcclLibrary library{
      .choose_device = simplescale::nccl::choose_device,
      .make_device_plane = simplescale::nccl::make_device_plane,
      .prepare = simplescale::nccl::prepare};
  return &library;
}
