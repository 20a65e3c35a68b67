// The commands of the program: app/commands has one file per command, and main() calls these
// functions. Every function prints its result to stdout and returns the error, which main() prints.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.hpp"

namespace simplescale {

struct HostRank;  // app/hosts/hosts.hpp

/// As a task of srun, or as one of several hosts (rank): runs one node agent. Otherwise: runs all
/// nodes on this machine, or attaches to the run if it trains already.
/// run: overrides run.folder unless it is "". oversubscribe: skips the check that this host has
/// room for all processes. detach: returns once the run has started, in the background.
Status train_command(const std::string& config, Overrides overrides, const std::string& run,
                     bool oversubscribe, bool detach, const HostRank& rank);
/// `train --join RUN`: this host becomes a node of the run, which trains. bad_config: it does not
/// train, has all nodes that it may have, or this program would compute other bits. Returns only if
/// the host does not join; else exits the process, with 0 if the node has left the run.
Status join_command(const std::string& run, bool oversubscribe);
/// `train` with the run's own config.toml. bad_data: `run` holds no run.
Status resume_command(const std::string& run, Overrides overrides, bool oversubscribe, bool detach,
                      const HostRank& rank);
/// The process of a node's agent. Returns its exit code.
int agent_command(const std::string& run, const std::string& node);
/// The process of a supervisor on node `node`, or of a standby of the supervisor at the address
/// standby_of. Returns its exit code.
int supervisor_command(const std::string& run, const std::string& node,
                       const std::string& standby_of);

Status prepare_command(const std::string& config, const Overrides& overrides, int jobs);
/// changed: only the keys that have another value than their default.
Status config_show_command(const std::string& config, const Overrides& overrides, bool changed,
                           bool signature);
/// Prints the tasks of a step of the trainers of the first group.
Status config_program_command(const std::string& config, const Overrides& overrides);
/// Prints every error in the values on a line of its own; without one, the first error of
/// check_before_start().
Status config_validate_command(const std::string& config, const Overrides& overrides);
/// key: as train.max_steps, or a section.
Status config_explain_command(const std::string& key);
Status digest_text_command(const std::string& checkpoint);
Status export_text_command(const std::string& checkpoint, const std::string& folder,
                           const std::string& dtype, bool ema);
Status import_text_command(const std::string& folder, const std::string& checkpoint,
                           const std::string& upcycle);
Status verify_text_command(const std::string& run);
/// Writes the run's page with its data to the file `output`.
Status report_command(const std::string& run, const std::string& output);
Status status_command(const std::string& run, bool json, bool watch);
struct LogsOptions {
  std::string process;  // a node, a trainer or "supervisor"; "": all
  std::string grep;     // only records with a matching line; "": all
  std::string level;    // only records of this level or a worse one; "": all
  bool follow = false;  // until Ctrl-C
};
/// Prints the logs of a run's processes, merged by time.
Status logs_command(const std::string& run, const LogsOptions& options);
/// Writes one file for Perfetto from the trace `name`; "": the newest. output: the file; "":
/// RUN/traces/NAME.json. list: only prints the names of all traces.
Status trace_command(const std::string& run, const std::string& name, const std::string& output,
                     bool list);
/// Runs console commands, or an interactive console if there are none. json: prints answers as
/// JSON.
Status console_command(const std::string& run, const std::vector<std::string>& commands, bool json);
/// Checks this machine; in a Slurm allocation, or as one of several hosts, all of them
/// (fleet_doctor.hpp). config, run: name the run to whose folder this writes a test file; both "":
/// it writes to the current folder. Returns the exit code.
int doctor_command(const std::string& config, Overrides overrides, const std::string& run,
                   bool json, const HostRank& rank);
/// Replaces this process by simplescale-compute with these words. Returns only on failure.
Status compute_command(const std::vector<std::string>& words);

}  // namespace simplescale
