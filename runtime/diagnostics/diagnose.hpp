// Is this machine fit to train? Checks that take seconds and need nothing but the machine.
//
// Blocking; call them from a thread of their own. They use the machine fully while they run.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace simplescale {

struct CheckResult {
  std::string check;  // "arithmetic", "memory", "disk", "clock"; "link", "link_rtt" (actors/node)
  bool ok = false;
  double value = 0;    // the figure, in `unit`
  std::string unit;    // "GFLOP/s", "GB/s", "MB/s", "ms", "us"; "": detail is a fact, no figure
  std::string detail;  // what is wrong, or what was done
};

/// Products of integer matrices in fp32, whose exact result integer arithmetic knows, on each core
/// that this process may use, for `ms_per_core`. value: the slowest core's
/// fastest product. Names the cores that are wrong.
CheckResult check_arithmetic(int ms_per_core = 100);

/// Writes patterns over `bytes` of memory, reads them back; value: GB/s of the fastest
/// plain copy of a part.
CheckResult check_memory(size_t bytes = size_t{64} << 20);

/// Writes a file into `folder`, syncs, reads it back, removes it; value: MB/s until synced.
CheckResult check_disk(const std::string& folder, size_t bytes = size_t{8} << 20);

/// How late a sleep of 5 ms wakes up at worst: a starved or suspended machine; value: ms.
CheckResult check_clock(int times = 20);

/// All of them, in order.
std::vector<CheckResult> check_machine(const std::string& folder);

bool all_ok(const std::vector<CheckResult>& results);
/// What is wrong, in a line; "" if nothing is.
std::string complaints(const std::vector<CheckResult>& results);
/// What to_json() gave; entries that make no sense are left out.
std::vector<CheckResult> from_json(const nlohmann::json& report);
nlohmann::json to_json(const std::vector<CheckResult>& results);
/// For people: one line a check.
std::string table(const std::vector<CheckResult>& results);

}  // namespace simplescale
