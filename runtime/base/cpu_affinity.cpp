#include "runtime/base/cpu_affinity.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "runtime/base/files.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/process.hpp"

namespace simplescale {

namespace {

constexpr int kCpusMax = 1 << 16;  // above any real CPU number

bool number(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 && value < kCpusMax;
}

/// False if the list is empty or a CPU number does not fit into a cpu_set_t (1,024 CPUs).
bool to_set(const CpuList& cpus, cpu_set_t& set) {
  CPU_ZERO(&set);
  for (int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
    CPU_SET(static_cast<size_t>(cpu), &set);
  }
  return !cpus.empty();
}

}  // namespace

std::optional<CpuList> parse_cpu_list(const std::string& text) {
  std::set<int> cpus;
  std::string plain = text.substr(0, text.find('\n'));
  std::istringstream parts(plain);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    int first = 0, last = 0;
    if (!number(std::string_view(part).substr(0, dash), first)) return std::nullopt;
    last = first;
    if (dash != std::string::npos && !number(std::string_view(part).substr(dash + 1), last))
      return std::nullopt;
    if (last < first) return std::nullopt;
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return CpuList(cpus.begin(), cpus.end());
}

std::string cpu_list_text(const CpuList& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(cpus[i]);
    if (end - i > 1) text += "-" + std::to_string(cpus[end - 1]);
    i = end;
  }
  return text;
}

std::vector<CpuList> numa_nodes(const std::string& folder) {
  std::map<int, CpuList> nodes;
  std::set<int> seen;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    int node = 0;
    if (!name.starts_with("node") || !number(std::string_view(name).substr(4), node)) continue;
    const auto text = read_text(entry.path().string() + "/cpulist");
    const auto cpus = text.ok() ? parse_cpu_list(*text) : std::nullopt;
    if (!cpus) return {};
    for (int cpu : *cpus)
      if (!seen.insert(cpu).second) return {};
    if (!cpus->empty()) nodes[node] = *cpus;  // a node with memory only has no CPUs
  }
  std::vector<CpuList> list;
  for (auto& [node, cpus] : nodes) list.push_back(std::move(cpus));
  return list;
}

std::vector<CpuList> numa_nodes() {
  const char* other = std::getenv("SIMPLESCALE_NUMA");
  return numa_nodes(other ? other : "/sys/devices/system/node");
}

CpuList cpu_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CpuList cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) cpus.push_back(cpu);
  return cpus;
}

std::vector<CpuList> trainer_cpus(const CpuList& mask, const std::vector<CpuList>& nodes,
                                  int trainers) {
  std::vector<CpuList> result(static_cast<size_t>(std::max(0, trainers)));
  std::vector<CpuList> parts;   // for each NUMA node: its CPUs that are in the mask
  std::vector<size_t> part_of;  // for each CPU of the mask, in the order of parts: its part
  for (const CpuList& node : nodes) {
    CpuList part;
    std::ranges::set_intersection(node, mask, std::back_inserter(part));
    if (part.empty()) continue;
    part_of.insert(part_of.end(), part.size(), parts.size());
    parts.push_back(std::move(part));
  }
  if (parts.size() < 2 || part_of.size() != mask.size()) return result;
  const size_t cpus = part_of.size(), all = result.size();
  for (size_t i = 0; i < all; ++i) {
    size_t first = cpus * (2 * i + 1) / (2 * all), last = first;  // the middle of its share
    if (all < parts.size()) first = cpus * i / all, last = cpus * (i + 1) / all - 1;
    for (size_t part = part_of[first]; part <= part_of[last]; ++part)
      result[i].insert(result[i].end(), parts[part].begin(), parts[part].end());
    std::ranges::sort(result[i]);
  }
  return result;
}

Status set_affinity(pid_t pid, const CpuList& cpus) {
  cpu_set_t set;
  if (!to_set(cpus, set)) return {};
  return for_each_thread(pid, "sched_setaffinity", [&set](pid_t thread) {
    return sched_setaffinity(thread, sizeof set, &set);
  });
}

ScopedAffinity::ScopedAffinity(const CpuList& cpus) {
  cpu_set_t set;
  if (!to_set(cpus, set)) return;
  before_ = cpu_mask();
  if (sched_setaffinity(0, sizeof set, &set) == 0) return;
  log::warn("cannot run on CPUs {}: {}", cpu_list_text(cpus), std::strerror(errno));
  before_.clear();
}

ScopedAffinity::~ScopedAffinity() {
  cpu_set_t set;
  if (to_set(before_, set)) sched_setaffinity(0, sizeof set, &set);
}

}  // namespace simplescale
