// control/manifest.json: with config.toml, what is needed to reproduce the run. It has versions of
// the program and its libraries, facts about the host, and hashes of the data: one entry for each
// start, the newest last.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/signature.hpp"
#include "runtime/data/data_files.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// Version and commit of the program and versions of its libraries, as one line. All hosts of a run
/// should show the same line.
std::string program_facts();

/// A change of the configuration of a run that is started again.
struct ConfigChange {
  std::string key;     // "": the schedule
  std::string reason;  // "was 900 and is now 950"
  std::string text() const { return key.empty() ? reason : key + " " + reason; }
};

/// Compares what this start reads with what the manifest records. trained: as in same_data(). Errors
/// as same_data(); bad_data: the tokenizer or the file train.tasks differs from the previous start's.
Status check_same_inputs(const RunFolder& run, const Config& config, const DataFiles& files,
                         const std::function<bool(const std::string&)>& trained);
/// Adds an entry for this start, which begins at `step`, with its signature, its changes and its parent
/// (run.from). Errors as check_same_inputs(); io: the file cannot be written.
Status record_start(const RunFolder& run, const Config& config, const DataFiles& files,
                    uint64_t step, const Signature& signature,
                    const std::vector<ConfigChange>& changes,
                    const std::function<bool(const std::string&)>& trained);
/// identity_of_parent() of run.from when the run began; "": not recorded.
std::string recorded_parent(const RunFolder& run);
/// The numerics signature of the newest start, as far as it knew it. Nothing: an earlier version began
/// it, or the manifest cannot be read.
std::optional<Signature> recorded_signature(const RunFolder& run);
/// The changes of the newest start. Empty if the manifest cannot be read.
std::vector<ConfigChange> recorded_changes(const RunFolder& run);

}  // namespace simplescale
