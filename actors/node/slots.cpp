#include "actors/node/slots.hpp"

#include <set>

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

const Process* SlotTable::trainer(const std::string& slot,
                                  const caf::strong_actor_ptr& sender) const {
  const Process* process = trainer(slot);
  return process && sender && process->actor == sender ? process : nullptr;
}

std::vector<uint64_t> SlotTable::gpus() const {
  std::set<uint64_t> used;
  for (const auto& [name, slot] : slots_) {
    const Process* process = trainer(name);
    if (!process || process->gpu < 0) return {};
    used.insert(static_cast<uint64_t>(process->gpu));
  }
  return {used.begin(), used.end()};
}

std::string SlotTable::name_of(const std::string& id) const {
  const auto found = processes_.find(id);
  return found == processes_.end() || found->second.slot.empty() ? id : found->second.slot;
}

std::optional<std::string> SlotTable::slot_of(int64_t pid) const {
  for (const auto& [id, process] : processes_)
    if (process.pid == pid) return process.slot;
  for (const auto& [ended, slot] : ended_)
    if (ended == pid) return slot;
  return std::nullopt;
}

std::string SlotTable::process_ended(const std::string& id) {
  Process* found = process(id);
  if (!found) return "";
  const std::string slot = found->slot;
  ended_.emplace_back(found->pid, slot);
  if (ended_.size() > kEndedKept) ended_.pop_front();
  *found = Process{.unproven = true};
  if (!slot.empty()) slots_[slot] = {};
  return slot;
}

std::vector<std::string> SlotTable::fill_slots() {
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
