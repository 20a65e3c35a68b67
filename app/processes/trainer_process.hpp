// The trainer process: main() of simplescale-compute when a node agent starts it.
#pragma once

#include <string>

namespace simplescale {

/// The agent passes its address and the run's instance in the environment, as SIMPLESCALE_AGENT and
/// SIMPLESCALE_INSTANCE.
struct TrainerProcessOptions {
  std::string run;      // the run's folder
  std::string process;  // "n1/p2"
};
/// Serves the node's agent until the agent ends this process or is gone. Returns the exit code.
int run_trainer_process(const TrainerProcessOptions& options);

}  // namespace simplescale
