#include "runtime/diagnostics/fleet.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace simplescale {

namespace {

/// A disk at least this fast is not slow, whatever the others measured: a shared disk may be busy.
constexpr double kDiskEnoughMbPerS = 5;

/// A figure that is worse than the median by more than this factor is slow. Links and disks are
/// shared, so their figures vary more.
int tolerance(const std::string& check) {
  return check == "arithmetic" ? 2 : check == "memory" ? 4 : 10;
}

/// The reports of all machines on one check.
struct Known {
  std::vector<double> figures;            // sorted
  std::map<std::string, size_t> details;  // facts, and how many machines report each
};

std::map<std::string, Known> known_of(const std::vector<const MachineReport*>& machines) {
  std::map<std::string, Known> all;
  for (const MachineReport* machine : machines)
    for (const CheckResult& r : machine->checks) {
      if (r.unit.empty())
        ++all[r.check].details[r.detail];
      else if (r.value > 0 && !machine->shares_host)
        all[r.check].figures.push_back(r.value);
    }
  for (auto& [check, known] : all) std::ranges::sort(known.figures);
  return all;
}

/// The median of the other machines' figures; of the two middle ones the worse. -1: fewer than two.
double median_without(const std::vector<double>& sorted, double own, bool less_is_better) {
  const auto at = std::ranges::find(sorted, own);
  const size_t mine = static_cast<size_t>(at - sorted.begin());
  const size_t others = sorted.size() - (at == sorted.end() ? 0 : 1);
  if (others < 2) return -1;
  const size_t middle = less_is_better ? others / 2 : (others - 1) / 2;
  return sorted[middle + (at != sorted.end() && mine <= middle ? 1 : 0)];
}

void compare_figure(CheckResult& r, const Known& known) {
  const bool less_is_better = r.unit == "us";
  const double median = median_without(known.figures, r.value, less_is_better);
  const int times = tolerance(r.check);
  if (median < 0 || (r.check == "disk" && r.value >= kDiskEnoughMbPerS)) return;
  if (less_is_better ? r.value <= times * median : r.value >= median / times) return;
  r.ok = false;
  r.detail += fmt::format("; {:.2f} {} is more than {} times worse than the median {:.2f}", r.value,
                          r.unit, times, median);
}

void compare_fact(CheckResult& r, const Known& known) {
  const auto most =
      std::ranges::max_element(known.details, {}, [](const auto& entry) { return entry.second; });
  if (most == known.details.end() || most->first == r.detail) return;
  const auto mine = known.details.find(r.detail);
  if (most->second < 2 || (mine != known.details.end() && mine->second == most->second)) return;
  r.ok = false;
  r.detail += "; most others have " + most->first;
}

std::string plain(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = ' ';
  return text;
}

std::string cell(const MachineReport& machine, const std::string& check) {
  const auto found = std::ranges::find(machine.checks, check, &CheckResult::check);
  if (found == machine.checks.end()) return "-";
  const std::string figure =
      found->unit.empty() ? (found->ok ? "same" : "other") : fmt::format("{:.2f}", found->value);
  return found->ok ? figure : figure + "!";
}

}  // namespace

void compare(std::vector<MachineReport>& machines, const std::vector<MachineReport>& others) {
  std::vector<const MachineReport*> all;
  for (const MachineReport& machine : machines) all.push_back(&machine);
  for (const MachineReport& machine : others) all.push_back(&machine);
  const std::map<std::string, Known> known = known_of(all);
  for (MachineReport& machine : machines)
    for (CheckResult& r : machine.checks) {
      // The figure of a failed check means nothing; a late wake-up depends on the moment.
      if (!r.ok || r.unit == "ms") continue;
      const auto found = known.find(r.check);
      if (found == known.end()) continue;
      if (r.unit.empty())
        compare_fact(r, found->second);
      else if (!machine.shares_host)
        compare_figure(r, found->second);
    }
}

bool is_fit(const MachineReport& machine) {
  return machine.missing.empty() && all_ok(machine.checks);
}

std::string complaint(const MachineReport& machine) {
  const std::string wrong = complaints(machine.checks);
  return machine.missing + (machine.missing.empty() || wrong.empty() ? "" : "; ") + wrong;
}

std::string fleet_table(const std::vector<MachineReport>& machines) {
  std::vector<std::pair<std::string, std::string>> columns;  // check, unit
  size_t widest = 4;
  for (const MachineReport& machine : machines) {
    widest = std::max(widest, machine.name.size());
    for (const CheckResult& r : machine.checks)
      if (std::ranges::find(columns, r.check, &std::pair<std::string, std::string>::first) ==
          columns.end())
        columns.emplace_back(r.check, r.unit);
  }
  std::string text = fmt::format("{:<{}}", "node", widest), units(widest, ' ');
  for (const auto& [check, unit] : columns) {
    text += fmt::format(" {:>10}", plain(check));
    units += fmt::format(" {:>10}", plain(unit));
  }
  text += "\n" + units + "\n";
  for (const MachineReport& machine : machines) {
    text += fmt::format("{:<{}}", plain(machine.name), widest);
    for (const auto& [check, unit] : columns) text += fmt::format(" {:>10}", cell(machine, check));
    text += is_fit(machine) ? "  pass\n" : "  FAIL\n";
  }
  return text;
}

std::string fleet_complaints(const std::vector<MachineReport>& machines) {
  std::string text;
  for (const MachineReport& machine : machines)
    if (!is_fit(machine)) text += plain(machine.name + ": " + complaint(machine)) + "\n";
  return text;
}

nlohmann::json fleet_json(const std::vector<MachineReport>& machines) {
  nlohmann::json list = nlohmann::json::array();
  for (const MachineReport& machine : machines)
    list.push_back({{"name", machine.name},
                    {"ok", is_fit(machine)},
                    {"reason", complaint(machine)},
                    {"checks", to_json(machine.checks)}});
  return list;
}

}  // namespace simplescale
