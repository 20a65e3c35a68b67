// The main function of a node's agent. app/processes has the main functions of all processes of a
// run: agent, supervisor (and standby), trainer, HTTP.
#pragma once

#include <string>

namespace simplescale {

struct AgentOptions {
  std::string run;       // the run's folder, with config.toml
  int node = 0;          // index of the node: "n<node>"
  std::string instance;  // id of this start of the run, the same for all its agents
};

/// Returns the process's exit code when the run ends. Blocks signals: call it before any thread
/// starts.
int run_agent_process(const AgentOptions& options);

}  // namespace simplescale
