// Tasks that were started together on several hosts find each other through a folder that all of
// them see, and tell each other how far they are, stage by stage. No task is needed by the others:
// whoever does not come, or does not get to a stage, is missed at a deadline.
//
//   FOLDER/control/key        of this rendezvous; who reads it may connect to the others (run_key.hpp)
//   FOLDER/STAGE/TASK         what a task told at a stage, in JSON
//   FOLDER/claimed            made by the one task that concludes
//   FOLDER/conclusion         what it said
//
// Blocking, one thread. A shared file system tells no changes, so waits poll: rarely if many do.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

class Rendezvous {
 public:
  /// Makes the folder with a fresh key in it, or waits for whoever does. folder: one that no other
  /// start uses. timeout_ms: of each wait. io: cannot be written; deadline: no key was made.
  static Result<Rendezvous> join(const std::string& folder, int task, int tasks,
                                 int64_t timeout_ms);

  /// Where the key lies.
  const RunFolder& folder() const { return folder_; }

  Status publish(const std::string& stage, const nlohmann::json& document) const;
  /// Waits until all who have come, which at the first stage is everybody, have told this one.
  /// Those who have, at the latest when patience is over. missing: told once, early in a long wait,
  /// who is waited for.
  std::set<int> wait(const std::string& stage,
                     const std::function<void(const std::set<int>&)>& missing = {}) const;
  /// What a task told; null if it did not, or nonsense.
  nlohmann::json read(const std::string& stage, int task) const;

  /// Whether it is this task that concludes; true for one.
  bool claim_conclusion() const;
  Status publish_conclusion(const nlohmann::json& document) const;
  /// deadline: nobody has concluded.
  Result<nlohmann::json> wait_conclusion() const;
  /// By everybody at the end; who has concluded waits a moment for those of `others` that are still
  /// to read what it said, and removes the folder.
  void leave(bool concluded, const std::set<int>& others) const;

 private:
  Rendezvous(std::string folder, int task, int tasks, int64_t timeout_ms);
  std::string path(const std::string& stage, int task) const;
  std::set<int> tasks_in(const std::string& stage) const;

  RunFolder folder_;
  int task_, tasks_;
  int64_t timeout_ms_, poll_ms_;
};

}  // namespace simplescale
