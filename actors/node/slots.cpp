#include "actors/node/slots.hpp"

#include "runtime/training/names.hpp"

namespace simplescale {

SlotTable::SlotTable(const std::string& node, int slots, int warm) {
  for (int i = 0; i < slots; ++i) slots_[trainer_name(node, i)];
  for (int i = 0; i < slots + warm; ++i) processes_[node + "/p" + std::to_string(i)];
  for (int i = 0; i < slots; ++i) {
    const std::string slot = trainer_name(node, i), id = node + "/p" + std::to_string(i);
    slots_[slot].process = id;
    processes_[id].slot = slot;
  }
}

Process* SlotTable::process(const std::string& id) {
  const auto found = processes_.find(id);
  return found == processes_.end() ? nullptr : &found->second;
}

Slot* SlotTable::slot(const std::string& name) {
  const auto found = slots_.find(name);
  return found == slots_.end() ? nullptr : &found->second;
}

const Process* SlotTable::trainer(const std::string& name) const {
  const auto slot = slots_.find(name);
  if (slot == slots_.end()) return nullptr;
  const auto process = processes_.find(slot->second.process);
  return process == processes_.end() || !process->second.up ? nullptr : &process->second;
}

std::string SlotTable::ended(const std::string& process) {
  const auto found = processes_.find(process);
  if (found == processes_.end()) return "";
  const std::string slot = found->second.slot;
  found->second = {};
  if (!slot.empty()) slots_[slot] = {};
  return slot;
}

std::vector<std::string> SlotTable::fill() {
  std::vector<std::string> filled;
  for (auto& [name, slot] : slots_) {
    if (!slot.process.empty()) continue;
    auto rank = [](const Process& p) { return p.up ? 2 : p.pid != 0 ? 1 : 0; };
    Process* best = nullptr;
    for (auto& [id, process] : processes_) {
      if (!process.slot.empty() || (best && rank(process) <= rank(*best))) continue;
      best = &process;
      slot.process = id;
    }
    if (!best) return filled;
    best->slot = name;
    filled.push_back(name);
  }
  return filled;
}

}  // namespace simplescale
