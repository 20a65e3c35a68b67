// The supervisor's process as a function of where and who it is; also its standby's.
#pragma once

#include <string>

namespace simplescale {

struct SupervisorOptions {
  std::string run;         // the run's folder; its config.toml says the rest
  std::string node;        // "n<index>", on which it runs
  std::string instance;    // names this start of the run
  std::string standby_of;  // the address of the supervisor to stand by for; empty: claim to be one
};

/// Runs until the run is over, somebody else leads, or no agent has been there for long; returns
/// the process's exit code. Blocks signals, so it must be called before any thread starts.
int run_supervisor_process(const SupervisorOptions& options);

}  // namespace simplescale
