// A console's connection to the supervisor of a run. It finds the supervisor through the run's
// folder and connects again after the supervisor has changed. The run never waits for it. Used from
// one thread.
#pragma once

#include <atomic>
#include <caf/actor.hpp>
#include <functional>
#include <memory>
#include <string>

#include "app/processes/actor_process.hpp"
#include "runtime/run/run_folder.hpp"
#include "transport/caf/message_types.hpp"

namespace simplescale {

class SupervisorClient {
 public:
  /// cancelled: called several times a second during ask(); true ends the wait.
  SupervisorClient(RunFolder run, Config config, std::function<bool()> cancelled)
      : run_(std::move(run)), config_(std::move(config)), cancelled_(std::move(cancelled)) {}
  ~SupervisorClient();
  SupervisorClient(const SupervisorClient&) = delete;
  SupervisorClient& operator=(const SupervisorClient&) = delete;

  /// Waits at most ten seconds for the answer, across a change of supervisor. A question (acts =
  /// false) that was lost with its supervisor is sent once more; an action is not. Errors:
  /// unavailable: the supervisor was lost, and it is unknown whether it did the action; deadline:
  /// no answer; aborted: cancelled; not_found: nothing trains in the folder.
  Result<CommandReply> ask(const Command& command, bool acts);

 private:
  /// Connects to the supervisor that the run's folder names now.
  Status connect();
  /// sent: set if the command may have reached the supervisor.
  Result<CommandReply> ask_once(const Command& command, int64_t timeout_ms, bool& sent);

  const RunFolder run_;
  const Config config_;
  const std::function<bool()> cancelled_;
  std::unique_ptr<ActorProcess> process_;
  std::string instance_, address_;  // id of the start of the run; address of its supervisor
  caf::actor supervisor_;
  std::shared_ptr<std::atomic<bool>> lost_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace simplescale
