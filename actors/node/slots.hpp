// Which process of a node is which trainer. A node has L slots, which are its trainers ("n1.0"),
// and a few more processes than slots ("n1/p0", ...): those without a slot are warm, and take at
// once the place of one that dies. Plain data, used by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace simplescale {

struct Process {
  int32_t pid = 0;  // 0: being started
  bool up = false;  // has presented itself
  std::vector<uint8_t> data_address;
  std::string slot;  // empty: warm
};

struct Slot {
  std::string process;      // empty: none can be had now
  uint64_t generation = 0;  // told to join, and not heard to have left
};

class SlotTable {
 public:
  SlotTable() = default;
  /// The first processes get the slots.
  SlotTable(const std::string& node, int slots, int warm);

  const std::map<std::string, Process>& processes() const { return processes_; }
  const std::map<std::string, Slot>& slots() const { return slots_; }
  /// nullptr: none of this node.
  Process* process(const std::string& id);
  Slot* slot(const std::string& name);
  /// The slot's process, if it is up.
  const Process* trainer(const std::string& name) const;

  /// The process has ended; the same id will be started again. Returns its slot, which has lost it,
  /// or "".
  std::string ended(const std::string& process);
  /// Gives processes to slots that have none: one that is up, else one that starts. Returns the
  /// slots that have one now.
  std::vector<std::string> fill();

 private:
  std::map<std::string, Process> processes_;
  std::map<std::string, Slot> slots_;
};

}  // namespace simplescale
