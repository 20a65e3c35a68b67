#include "runtime/base/host_memory.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using Fields = std::map<std::string, uint64_t>;

/// "NAME NUMBER" of each line. Of /proc/meminfo in KiB, without the colon.
Fields fields_of(const fs::path& path) {
  Fields fields;
  std::ifstream file(path);
  for (std::string name, rest; file >> name; std::getline(file, rest)) {
    if (name.ends_with(':')) name.pop_back();
    uint64_t value = 0;
    if (file >> value) fields[name] = value;
    file.clear(file.rdstate() & ~std::ios::failbit);
  }
  return fields;
}

/// 0: without a number, as "max".
uint64_t number_in(const fs::path& path) {
  uint64_t value = 0;
  std::ifstream(path) >> value;
  return value;
}

/// What a control group allows, and what it uses.
struct Group {
  uint64_t limit, used;
};

/// A folder of version 1 or 2; limit 0: none.
Group group_at(const fs::path& folder) {
  const uint64_t first = number_in(folder / "memory.limit_in_bytes");  // version 1
  const std::string total = first > 0 ? "total_" : "";                 // with groups below
  const uint64_t used =
      number_in(folder / (first > 0 ? "memory.usage_in_bytes" : "memory.current"));
  Fields stat = fields_of(folder / "memory.stat");
  const uint64_t cache = stat[total + "inactive_file"] + stat[total + "active_file"];
  return {first > 0 ? first : number_in(folder / "memory.max"), used - std::min(used, cache)};
}

/// The control groups that limit this process's memory: its own and those that hold it, also as a
/// container sees them, where the path of its group may not exist.
std::vector<Group> memory_groups(const fs::path& root) {
  std::vector<fs::path> folders{root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"};
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();  // version 2
    if (!unified && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const fs::path top = root / (unified ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    for (fs::path at = fs::path(line.substr(second + 1)).relative_path();; at = at.parent_path()) {
      folders.push_back(top / at);
      if (at.empty()) break;
    }
  }
  std::vector<Group> limits;
  for (const fs::path& folder : folders)
    if (const Group group = group_at(folder); group.limit > 0) limits.push_back(group);
  return limits;
}

}  // namespace

uint64_t memory_of_host(const std::string& root) {
  uint64_t bytes = fields_of(fs::path(root) / "proc/meminfo")["MemTotal"] << 10;
  for (const Group& group : memory_groups(root)) bytes = std::min(bytes, group.limit);
  return bytes;
}

uint64_t memory_left(const std::string& root) {
  Fields host = fields_of(fs::path(root) / "proc/meminfo");
  uint64_t bytes =
      host.contains("MemAvailable") ? (host["MemAvailable"] + host["SwapFree"]) << 10 : UINT64_MAX;
  for (const Group& group : memory_groups(root))
    bytes = std::min(bytes, group.limit - std::min(group.limit, group.used));
  return bytes;
}

}  // namespace simplescale
