// The supervisor actor's part in a console's command: it carries the command out and replies.
// Functions on the supervisor actor's state, run by that actor.
#pragma once

#include "actors/supervisor/carry_out.hpp"

namespace simplescale::supervisor {

/// The journal's thread, or a timeout -> supervisor: a command's event is in the file, or not.
struct CommandRecorded {
  uint64_t number;  // of the command
  bool written;
};

/// Message handlers. The reply to a command that acts is sent once the command's event is in
/// events.jsonl, so that no console sees "done" from a supervisor whose records are lost; after 2 s
/// it is sent in any case.
void command(Self* self, const Command& command);
void command_recorded(Self* self, const CommandRecorded& recorded);

}  // namespace simplescale::supervisor

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(simplescale::supervisor::CommandRecorded)
