// A run that is alive already: a second `train` or `resume` shows its progress instead of starting
// it. A start waits for the agents of a launcher that died. One thread.
#pragma once

#include <optional>

#include "app/launch/run_start.hpp"

namespace simplescale {

/// True if a launcher or agents of the run live. False if this process may not write to the run's
/// lock: RunLock::take() then reports that.
bool can_attach(const RunFolder& run);

/// bad_config: the living run was started with another configuration.
Status check_same_config(const RunFolder& run, const Config& config);

/// For a run whose launcher or agents live: shows its progress until it has ended, and returns its
/// result or an error. bad_config: the run has another configuration than start.config; requeue:
/// agents without a launcher still run, but do nothing. Returns nothing if no process of the run is
/// left, so that the caller may start it: its launcher died before the run ended, or the run had
/// not begun or had already ended when this was called. detach: if the run trains, only prints how
/// to see it. Ctrl-C ends this process and not the run.
std::optional<Status> attach(const RunStart& start, bool detach);

/// Waits until no agent of an earlier start lives, and reports the wait on stderr. The agents of a
/// launcher that died save and end by themselves. requeue: the agents still live, but their
/// supervisor's heartbeat has not changed for join_timeout_ms.
Status wait_for_agents(const RunFolder& run, int64_t join_timeout_ms);

/// Prints "RUN <what>", and how to see and how to stop the run.
void print_hints(const RunFolder& run, const char* what);

}  // namespace simplescale
