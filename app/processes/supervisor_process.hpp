// The main function of a supervisor's process, and of a standby's.
#pragma once

#include <string>

namespace simplescale {

struct SupervisorOptions {
  std::string run;         // the run's folder, with config.toml
  std::string node;        // "n<index>": the node that the process runs on
  std::string instance;    // id of this start of the run
  std::string standby_of;  // address of the supervisor to stand by for; "": become supervisor
};

/// Returns the process's exit code when the run is over, when another process leads, or when no
/// agent has joined for a long time. Blocks signals: call it before any thread starts.
int run_supervisor_process(const SupervisorOptions& options);

}  // namespace simplescale
