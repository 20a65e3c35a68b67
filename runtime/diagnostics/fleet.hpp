// Compares the checks of several machines: finds machines that are slow or that differ from the
// others, and prints a table. Pure functions, any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/diagnostics/diagnose.hpp"

namespace simplescale {

struct MachineReport {
  std::string name;
  std::vector<CheckResult> checks;
  std::string missing;  // not empty: it did not report; says how far it got
  /// Other nodes of the run share its host, so what they compute slows it.
  bool shares_host = false;
};

/// Fails checks (ok, detail) of `machines` that are out of line with the other machines:
///   a figure   if it is worse than the median of at least two others by more than a factor of 2
///              (arithmetic), 4 (memory) or 10 (disk and links, which may be shared)
///   a fact     (a check without a unit) if it differs from what most machines (two or more) report
/// A disk of at least 5 MB/s is never slow; figures in ms are not compared. The figures of a machine
/// that shares its host are not compared: they say what others compute there, not how fast the host
/// is. others: machines that were compared before; they count, but are not changed.
void compare(std::vector<MachineReport>& machines, const std::vector<MachineReport>& others = {});

/// True if the machine reported and all its checks passed.
bool is_fit(const MachineReport& machine);
/// Why the machine is not fit, in one line; "" if it is fit.
std::string complaint(const MachineReport& machine);

/// A table with a line per machine; failed figures are marked with "!". Control characters in names
/// are replaced by blanks here and in fleet_complaints().
std::string fleet_table(const std::vector<MachineReport>& machines);
/// A line for each machine that is not fit: "NAME: reason".
std::string fleet_complaints(const std::vector<MachineReport>& machines);

/// An array with {"name","ok","reason","checks"} for each machine.
nlohmann::json fleet_json(const std::vector<MachineReport>& machines);

}  // namespace simplescale
