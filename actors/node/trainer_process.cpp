#include "actors/node/trainer_process.hpp"

#include <signal.h>

#include "runtime/base/log.hpp"

namespace simplescale {

namespace {
/// The process watcher's thread sends this to trainer_process.
struct Reaped {
  ExitStatus status;
};
}  // namespace

}  // namespace simplescale

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::Reaped)

namespace simplescale {

caf::behavior trainer_process(caf::stateful_actor<TrainerProcessState>* self, caf::actor node,
                              std::shared_ptr<ProcessWatcher> watcher, std::string id,
                              SpawnOptions command) {
  auto me = caf::actor_cast<caf::actor>(self);
  auto started = watcher->spawn(
      command, [me](pid_t, ExitStatus status) { caf::anon_send(me, Reaped{status}); });
  if (!started.ok()) {
    self->send(node, local::ProcessEnded{id, 0, {started.status().message()}});
    self->quit(caf::make_error(caf::sec::runtime_error, started.status().message()));
    return {};
  }
  self->state.pid = *started;
  log::info("{} is process {}", id, *started);
  self->send(node, local::ProcessStarted{id, *started});
  // SIGKILL is safe: the state that must survive is in the node's shared memory.
  self->set_exit_handler([self](caf::exit_msg& message) {
    if (!self->state.ended) kill(self->state.pid, SIGKILL);
    self->quit(message.reason);
  });
  return {
      [self, node, id](const Reaped& end) {
        self->state.ended = true;
        self->send(node, local::ProcessEnded{id, self->state.pid, reason_of(end.status)});
        if (end.status.ok())
          self->quit();
        else
          self->quit(caf::make_error(caf::sec::runtime_error, end.status.text()));
      },
  };
}

}  // namespace simplescale
