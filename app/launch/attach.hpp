// A run that lives already: a second `train` or `resume` shows its progress instead of starting it,
// and a start waits for the agents of a launcher that died. One thread.
#pragma once

#include <optional>

#include "app/launch/run_start.hpp"

namespace simplescale {

/// True if a launcher or agents of the run live. False if this process may not write to the run's
/// lock: RunLock::take() then says so.
bool can_attach(const RunFolder& run);

/// bad_config: the run that lives was started with another configuration.
Status check_same_config(const RunFolder& run, const Config& config);

/// For a run whose launcher or agents live: shows its progress until it has ended, and returns its
/// result, or an error (bad_config: it trains with another configuration than start.config;
/// requeue: agents without a launcher still run, but do nothing). Nothing: no process of the run is
/// left, and the caller may start it, since its launcher died before the run had ended, or since
/// the run had not begun or had ended already when this was called.
/// detach: if the run trains, only prints how to see it. Ctrl-C ends this process and leaves the
/// run alone.
std::optional<Status> attach(const RunStart& start, bool detach);

/// Waits until no agent of an earlier start lives, and says so on stderr. The agents of a launcher
/// that died save and end by themselves. requeue: the heartbeat of their supervisor has not changed
/// for join_timeout_ms, and they still live.
Status wait_for_agents(const RunFolder& run, int64_t join_timeout_ms);

/// Prints "RUN <what>", and how to see and how to stop the run.
void print_hints(const RunFolder& run, const char* what);

}  // namespace simplescale
