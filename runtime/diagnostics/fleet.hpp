// The checks of several machines side by side: who is slower than the others, who differs, and a
// table of all. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/diagnostics/diagnose.hpp"

namespace simplescale {

struct MachineReport {
  std::string name;
  std::vector<CheckResult> checks;
  std::string missing;  // not empty: it did not report, and how far it came
};

/// A machine is slow if a figure is several times worse than the others' median: twice for
/// arithmetic, four times for memory, ten times for disk and links, which others use at the same
/// time. A check without a unit is a fact that is to be alike everywhere; who differs from what
/// most others have is not. Needs at least two others; changes ok and detail of `machines`.
/// others: have been judged before, and are only compared with.
void compare(std::vector<MachineReport>& machines, const std::vector<MachineReport>& others = {});

/// It reported, and nothing is wrong.
bool is_fit(const MachineReport& machine);
/// Why it is not fit, in a line; "" if it is.
std::string complaint(const MachineReport& machine);

/// A line for each machine with its figures, those that fail marked with "!". Nothing in it moves a
/// terminal's cursor; nor here:
std::string fleet_table(const std::vector<MachineReport>& machines);
/// A line for each machine that is not fit: "NAME: why".
std::string fleet_complaints(const std::vector<MachineReport>& machines);

/// {"name","ok","reason","checks"} for each.
nlohmann::json fleet_json(const std::vector<MachineReport>& machines);

}  // namespace simplescale
