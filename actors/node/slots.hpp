// Which process of a node is which trainer. A node has one slot for each trainer ("n1.0") and a few
// more processes than slots ("n1/p0", ...). A process without a slot is warm: it is started and
// idle, and gets the slot of a process that dies.
//
// Plain data, used only by the node actor. Starts and stops no process.
#pragma once

#include <caf/actor.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/protocol/messages.hpp"

namespace simplescale {

struct Process {
  int32_t pid = 0;     // 0: not started yet
  bool up = false;     // its TrainerHello has arrived
  bool dying = false;  // its lifeline has ended, but it is not reaped yet
  std::vector<uint8_t> data_address;
  std::string slot;                      // empty: warm
  caf::actor actor = {};                 // the process's trainer actor; set while `up`
  std::optional<Reason> kill_reason;     // why the node has killed it; nothing: the node has not
  bool unproven = false;                 // restarted, and no step was committed since
  int gpu = -1;                          // CUDA's index; -1: it uses none yet
  std::vector<uint64_t> told_gpus = {};  // the GPUs that the node has told the process
};

struct Slot {
  std::string process;      // empty: no process is free for the slot
  uint64_t generation = 0;  // that the trainer was ordered to join and has not left; 0: none
};

class SlotTable {
 public:
  SlotTable() = default;
  /// `slots` + `warm` processes; the first ones get the slots. node: "n1".
  SlotTable(const std::string& node, int slots, int warm);

  const std::map<std::string, Process>& processes() const { return processes_; }
  const std::map<std::string, Slot>& slots() const { return slots_; }
  /// nullptr if this node has no such process or slot.
  Process* process(const std::string& id);
  Slot* slot(const std::string& name);
  /// The process of a slot if it is up, else nullptr.
  const Process* trainer(const std::string& slot) const;
  /// The same, if `sender` is that process's actor; else null. A late message may come from a
  /// process that had the slot before: its pins are gone, and the new process has its own pins.
  const Process* trainer(const std::string& slot, const caf::strong_actor_ptr& sender) const;
  /// The GPUs of the trainers, ascending; empty until each trainer has a GPU.
  std::vector<uint64_t> gpus() const;
  /// The slot of a process, or the process's own id if it has none.
  std::string name_of(const std::string& process) const;
  /// The slot of the process with this pid; "" if it is warm. Also finds the last kEndedKept
  /// processes that ended. nullopt: no such process.
  std::optional<std::string> slot_of(int64_t pid) const;

  /// The process has ended; a process with the same id will be started. Empties its slot and
  /// returns the slot's name, "" if the process was warm.
  std::string process_ended(const std::string& process);
  /// Gives a free process to each empty slot: preferably one that is up, else one that was started,
  /// else any. Returns the slots that got a process.
  std::vector<std::string> fill_slots();

 private:
  static constexpr size_t kEndedKept = 64;
  std::map<std::string, Process> processes_;
  std::map<std::string, Slot> slots_;
  std::deque<std::pair<int64_t, std::string>> ended_;  // pid and slot, the newest last
};

}  // namespace simplescale
