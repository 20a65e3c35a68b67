// A console's line to whoever supervises a run. It finds the supervisor through the run's folder,
// keeps the connection, and finds the next one when that is lost. Nothing in the run waits for it.
// One thread, the caller's.
#pragma once

#include <atomic>
#include <caf/actor.hpp>
#include <functional>
#include <memory>
#include <string>

#include "app/processes/actor_process.hpp"
#include "runtime/run/run_folder.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

class SupervisorClient {
 public:
  /// cancelled: asked several times a second while an answer is waited for.
  SupervisorClient(RunFolder run, Config config, std::function<bool()> cancelled)
      : run_(std::move(run)), config_(std::move(config)), cancelled_(std::move(cancelled)) {}
  ~SupervisorClient();
  SupervisorClient(const SupervisorClient&) = delete;
  SupervisorClient& operator=(const SupervisorClient&) = delete;

  /// Waits at most ten seconds for an answer, through a change of supervisor. A question that was
  /// lost with its supervisor is asked once more; an action is not, and unavailable says that
  /// nobody knows. deadline: nobody answers; aborted: cancelled; not_found: nothing runs there.
  Result<CommandReply> ask(const Command& command, bool acts);

 private:
  /// The supervisor that the folder names now, if it can be reached.
  Status connect();
  /// sent: whether it may have arrived.
  Result<CommandReply> ask_once(const Command& command, int64_t timeout_ms, bool& sent);

  const RunFolder run_;
  const Config config_;
  const std::function<bool()> cancelled_;
  std::unique_ptr<ActorProcess> process_;
  std::string instance_, address_;  // of the start of the run, of its supervisor
  caf::actor supervisor_;
  std::shared_ptr<std::atomic<bool>> lost_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace simplescale
