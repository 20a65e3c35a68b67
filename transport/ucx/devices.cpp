#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "transport/ucx/ucx.hpp"

namespace simplescale::ucx {
namespace {

namespace fs = std::filesystem;

std::string word_of(const fs::path& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

/// UCX's names for the device behind an interface: those of its ports.
std::vector<std::string> rdma_devices(const fs::path& interface) {
  std::vector<std::string> found;
  std::error_code error;
  const std::string port = word_of(interface / "dev_port");  // from 0
  for (const auto& entry : fs::directory_iterator(interface / "device" / "infiniband", error))
    found.push_back(entry.path().filename().string() + ":" +
                    std::to_string(std::atoi(port.c_str()) + 1));
  return found;
}

}  // namespace

Result<Devices> devices_of(const std::vector<std::string>& interfaces, const std::string& sys) {
  std::set<std::string> names, allowed, partitions;
  for (const std::string& interface : interfaces) {
    names.insert(interface);
    for (std::string& device : rdma_devices(fs::path(sys) / interface))
      names.insert(std::move(device));
    if (std::string key = word_of(fs::path(sys) / interface / "pkey"); !key.empty())
      partitions.insert(std::move(key));
  }
  if (partitions.size() > 1)
    return Status(Code::bad_config,
                  "the trusted interfaces are of several InfiniBand partitions, and UCX uses one; "
                  "name the interfaces of one partition");
  const char* variable = std::getenv("UCX_NET_DEVICES");
  std::istringstream wanted(variable ? variable : "");
  for (std::string name; std::getline(wanted, name, ',');) allowed.insert(name);
  if (allowed.contains("all")) allowed.clear();
  Devices devices{"", partitions.empty() ? "" : *partitions.begin()};
  for (const std::string& name : names)
    if (allowed.empty() || allowed.contains(name))
      devices.names += (devices.names.empty() ? "" : ",") + name;
  if (!devices.names.empty()) return devices;
  return Status(Code::bad_config, std::string("UCX_NET_DEVICES = ") + (variable ? variable : "") +
                                      " names no device of a trusted network");
}

}  // namespace simplescale::ucx
