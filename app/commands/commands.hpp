// What main() calls for each command. Every function prints its result to stdout and returns what
// went wrong.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.hpp"

namespace simplescale {

/// Inside an srun: one node agent of the job. Otherwise all nodes on this machine. run: the run's
/// folder, or "".
/// oversubscribe: also with more processes than this host seems to have room for.
Status train_command(const std::string& config, Overrides overrides, const std::string& run,
                     bool oversubscribe);
/// A node's agent; returns the process's exit code.
int agent_command(const std::string& run, const std::string& node);
/// A supervisor on node `node`, or the standby of the one at an address; returns the exit code.
int supervisor_command(const std::string& run, const std::string& node,
                       const std::string& standby_of);

Status prepare_command(const std::string& config, const Overrides& overrides);
Status config_show_command(const std::string& config, const Overrides& overrides);
Status config_validate_command(const std::string& config, const Overrides& overrides);
Status digest_text_command(const std::string& checkpoint);
Status export_text_command(const std::string& checkpoint, const std::string& folder,
                           const std::string& dtype);
Status import_text_command(const std::string& folder, const std::string& checkpoint);
Status verify_text_command(const std::string& run);
Status status_command(const std::string& run, bool json, bool watch);
/// The logs of a run's processes, merged by time. who: a node, a trainer, "supervisor"; "": all.
Status logs_command(const std::string& run, const std::string& who, bool follow,
                    const std::string& grep);
/// One file for Perfetto of the trace `name`, "": the newest. output: the file, "": in the run's
/// traces folder. list: only the names.
Status trace_command(const std::string& run, const std::string& name, const std::string& output,
                     bool list);
/// Asks the supervisor of a run; commands as in the console.
Status console_command(const std::string& run, const std::vector<std::string>& commands, bool json);
/// config: checks where its run would write; "": the current folder. run: the run's folder, or "".
/// In an allocation all of its hosts (fleet_doctor.hpp). Returns the exit code.
int doctor_command(const std::string& config, Overrides overrides, const std::string& run,
                   bool json);
/// Becomes simplescale-compute with these arguments.
Status compute_command(const std::string& command, const std::vector<std::string>& arguments);

}  // namespace simplescale
