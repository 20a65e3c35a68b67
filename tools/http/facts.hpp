// What the page shows beside the run's records: starts, checkpoints, configuration, logs. Reads the
// run's folder, also of a run that is over. Any thread.
#pragma once

#include <string>

#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// {"starts":[{"time","version","host"}],"checkpoints":[{"step","time","bytes"}],"logs":[names]} as
/// text; the newest last. checkpoints: their folder.
std::string run_facts(const RunFolder& run, const std::string& checkpoints);

/// config.toml without the values of secret keys.
std::string shown_config(const RunFolder& run);

/// The log of a node, trainer or supervisor; "" for any other name, and if there is no such file.
std::string log_path(const RunFolder& run, const std::string& of);

/// The text without the run's key, as bytes or as hex digits.
std::string without_key(const RunFolder& run, std::string text);

/// The page as one file with this run's data in it, which works without a server. status: the
/// status document. Bounded: of long files it has a part.
std::string report_page(const RunFolder& run, const std::string& checkpoints,
                        const std::string& status);

}  // namespace simplescale
