// Rendezvous of tasks that were started together on several hosts. They meet in a folder on a
// shared file system, and each publishes a JSON document at each stage. No task depends on another:
// after a timeout, a task that never joins, or never reaches a stage, is left out.
//
//   FOLDER/control/key    the key with which the tasks connect to each other (run_key.hpp)
//   FOLDER/STAGE/TASK     the document of a task at a stage; the first stage is "here"
//   FOLDER/claimed        created by the one task that writes the conclusion
//   FOLDER/conclusion     the conclusion
//
// Blocks; one thread. A shared file system reports no changes, so waits poll. The interval is 2 ms
// times the number of tasks, but at least 20 ms and at most 2 s.
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
  /// Creates the folder and the key in it, if they do not exist; a task may have died after it had
  /// created the folder. folder: in an existing folder, and not used by any other start.
  /// timeout_ms: of each wait. io; bad_data: another user has created it.
  static Result<Rendezvous> join(const std::string& folder, int task, int tasks,
                                 int64_t timeout_ms);

  /// The folder. It has the key at the same place as a run folder.
  const RunFolder& folder() const { return folder_; }

  /// Writes this task's document of a stage. io.
  Status publish(const std::string& stage, const nlohmann::json& document) const;
  /// Waits until every task has published its document of `stage`, or until the timeout. At later
  /// stages, waits only for tasks that have published at the first stage. Returns the tasks that
  /// have published. missing: called once, after 3 s, with the tasks that have not. enough: true
  /// ends the wait.
  std::set<int> wait(const std::string& stage,
                     const std::function<void(const std::set<int>&)>& missing = {},
                     const std::function<bool()>& enough = {}) const;
  /// The tasks that have published their document of `stage`.
  std::set<int> tasks_in(const std::string& stage) const;
  /// The document of a task at a stage; null if it does not exist or is damaged.
  nlohmann::json read(const std::string& stage, int task) const;

  /// Claims the right to write the conclusion: true for the first task that calls this, else false.
  bool claim_conclusion() const;
  Status publish_conclusion(const nlohmann::json& document) const;
  /// Waits for the conclusion. deadline: no task has published it; bad_data: it is damaged.
  Result<nlohmann::json> wait_conclusion() const;
  /// Called by every task at the end. The task that has written the conclusion (concluded) waits up
  /// to 5 s until the tasks `others` leave, so that they can read it. Then it removes the folder.
  void leave(bool concluded, const std::set<int>& others) const;

 private:
  Rendezvous(std::string folder, int task, int tasks, int64_t timeout_ms);
  std::string path(const std::string& stage, int task) const;

  RunFolder folder_;
  int task_, tasks_;
  int64_t timeout_ms_, poll_ms_;
};

}  // namespace simplescale
