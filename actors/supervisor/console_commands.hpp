// The supervisor actor carries out a console's command and replies. Functions on the supervisor
// actor's state, run by that actor.
#pragma once

#include "actors/supervisor/carry_out.hpp"

namespace simplescale::supervisor {

/// Sent to the supervisor by the journal's thread or by a timeout: whether a command's event is in
/// the file.
struct CommandRecorded {
  uint64_t number;  // of the command
  bool written;
};

/// Message handlers. The reply to a command that acts is sent once the command's event is in
/// events.jsonl, so that no console sees "done" from a supervisor whose records are lost. After 2 s
/// it is sent in any case.
void command(Self* self, const Command& command);
void command_recorded(Self* self, const CommandRecorded& recorded);

}  // namespace simplescale::supervisor

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervisor::CommandRecorded)
