// The main function of a trainer process. A node agent starts it as `simplescale-compute trainer`.
#pragma once

#include <string>

namespace simplescale {

/// The agent also sets environment variables: its address in SIMPLESCALE_AGENT, the id of this
/// start of the run in SIMPLESCALE_INSTANCE, and CPU threads of a trainer in SIMPLESCALE_THREADS.
struct TrainerProcessOptions {
  std::string run;      // the run's folder
  std::string process;  // "n1/p2": node and number of the process; not a trainer's name
};

/// Serves the agent until the agent ends this process or is lost. Returns the exit code.
int run_trainer_process(const TrainerProcessOptions& options);

}  // namespace simplescale
