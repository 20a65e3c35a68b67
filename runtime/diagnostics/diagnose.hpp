// runtime/diagnostics: checks whether machines are fit to train, alone and compared with each
// other.
//
// Checks of one machine before it trains: arithmetic, memory, disk, clock. They take seconds and
// need no other machine. They block and use the machine fully, so run them on a thread of their
// own.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace simplescale {

struct CheckResult {
  std::string check;  // "arithmetic", "memory", "disk", "clock"; "link", "link_rtt" (actors/node)
  bool ok = false;
  double value = 0;    // the measured figure, in `unit`
  std::string unit;    // "GFLOP/s", "GB/s", "MB/s", "ms", "us"; "": no figure, `detail` is a fact
  std::string detail;  // what is wrong, or what was checked
};

/// Multiplies matrices of small integers in fp32 and compares with integer arithmetic, which is
/// exact, for ms_per_core on each core that this process may use. value: of each core the fastest
/// product, of those the slowest, in GFLOP/s. Fails naming the cores with wrong results.
CheckResult check_arithmetic(int ms_per_core = 100);

/// Writes two patterns over `bytes` of memory and reads them back. value: GB/s of the fastest copy
/// of a part.
CheckResult check_memory(size_t bytes = size_t{64} << 20);

/// Writes a temporary file in `folder`, syncs it and reads it back. value: MB/s until it was
/// synced.
CheckResult check_disk(const std::string& folder, size_t bytes = size_t{8} << 20);

/// Sleeps 5 ms `times` times. value: the largest delay of a wake-up in ms, large on an overloaded
/// or suspended machine. Never fails.
CheckResult check_clock(int times = 20);

/// Runs all checks, in this order.
std::vector<CheckResult> check_machine(const std::string& folder);

bool all_ok(const std::vector<CheckResult>& results);
/// The failed checks and why they failed, in one line; "" if all passed.
std::string complaints(const std::vector<CheckResult>& results);
/// Parses what to_json() made; skips malformed entries.
std::vector<CheckResult> from_json(const nlohmann::json& report);
nlohmann::json to_json(const std::vector<CheckResult>& results);
/// A table for a terminal: one line per check.
std::string table(const std::vector<CheckResult>& results);

}  // namespace simplescale
