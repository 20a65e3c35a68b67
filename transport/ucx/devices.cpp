#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
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

/// The key's index in the table of the port in folder `keys`; nothing: it is not there. The highest
/// bit only says who may talk to whom in the partition.
std::optional<int> index_of(const std::string& key, const fs::path& keys) {
  const auto number = [](const std::string& text) {
    return std::strtoul(text.c_str(), nullptr, 16) & 0x7fff;
  };
  for (int i = 0; fs::exists(keys / std::to_string(i)); ++i)
    if (number(word_of(keys / std::to_string(i))) == number(key)) return i;
  return std::nullopt;
}

}  // namespace

Result<RdmaPorts> rdma_ports(const std::vector<std::string>& interfaces, const std::string& sys) {
  std::set<std::string> names, partitions;
  std::set<int> indices;
  for (const std::string& interface : interfaces) {
    const fs::path folder = fs::path(sys) / interface;
    const std::string key = word_of(folder / "pkey");
    if (!key.empty()) partitions.insert(key);
    const std::string port = std::to_string(std::atoi(word_of(folder / "dev_port").c_str()) + 1);
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder / "device" / "infiniband", error)) {
      names.insert(entry.path().filename().string() + ":" + port);
      if (const auto index = index_of(key, entry.path() / "ports" / port / "pkeys"); !key.empty())
        indices.insert(index.value_or(0));
    }
  }
  if (partitions.size() > 1 || indices.size() > 1)
    return Status(Code::bad_config,
                  "the trusted interfaces are of several InfiniBand partitions, and UCX and NCCL "
                  "use one; name the interfaces of one partition");
  return RdmaPorts{{names.begin(), names.end()},
                   partitions.empty() ? "" : *partitions.begin(),
                   indices.empty() ? 0 : *indices.begin()};
}

Result<Devices> devices_of(const std::vector<std::string>& interfaces, const std::string& sys) {
  SS_ASSIGN(const RdmaPorts ports, rdma_ports(interfaces, sys));
  std::set<std::string> names(interfaces.begin(), interfaces.end()), allowed;
  names.insert(ports.names.begin(), ports.names.end());
  const char* variable = std::getenv("UCX_NET_DEVICES");
  std::istringstream wanted(variable ? variable : "");
  for (std::string name; std::getline(wanted, name, ',');) allowed.insert(name);
  if (allowed.contains("all")) allowed.clear();
  Devices devices{"", ports.partition};
  for (const std::string& name : names)
    if (allowed.empty() || allowed.contains(name))
      devices.names += (devices.names.empty() ? "" : ",") + name;
  if (!devices.names.empty()) return devices;
  return Status(Code::bad_config, std::string("UCX_NET_DEVICES = ") + (variable ? variable : "") +
                                      " names no device of a trusted network");
}

}  // namespace simplescale::ucx
