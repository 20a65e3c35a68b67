// A node's agent as a function of where and who it is.
#pragma once

#include <string>

namespace simplescale {

struct AgentOptions {
  std::string run;       // the run's folder; its config.toml says the rest
  int node = 0;          // "n<node>"
  std::string instance;  // names this start of the run; all its agents share it
};

/// Runs until the job ends; returns the process's exit code. Blocks signals, so it must be called
/// before any thread starts.
int run_agent_process(const AgentOptions& options);

}  // namespace simplescale
