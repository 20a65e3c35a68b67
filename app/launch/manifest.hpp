// control/manifest.json: with config.toml all that it takes to make the run again. Versions of the
// program and its libraries, facts about the host, hashes of the data; an entry for each start, the
// newest last.
#pragma once

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// Version and commit of the program, and the libraries that it runs with: the same on all hosts of
/// a run.
std::string program_facts();

/// Adds this start. Token files of more than 256 MiB that were not prepared here are told by size
/// and time, without a hash. io; bad_data: the data is not that of the start before.
Status note_start(const RunFolder& run, const Config& config);

}  // namespace simplescale
