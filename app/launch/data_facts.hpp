// Identifies the data, the tokenizer and the questions of a run. control/manifest.json records
// these facts at each start, and a later start compares them. Files are identified by their
// contents; their places do not matter. Blocks on the disk; any thread.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/data/data_files.hpp"

namespace simplescale {

/// Size, modification time and xxh3-128 of a file. before: the facts that were recorded of it, or
/// null. If a file above 256 MiB has the same name, size and time as in `before`, its hash is taken
/// from there. A file that cannot be read has no hash.
nlohmann::json file_facts(const std::string& path, const nlohmann::json& before);

/// The facts of data.source; with data.blend: of each source by its name. before: the recorded
/// facts, or null.
nlohmann::json data_facts(const Config& config, const DataFiles& files,
                          const nlohmann::json& before);

/// The same without files, if no facts were recorded.
nlohmann::json data_places(const Config& config);

/// Compares the data of the previous start with the present data, for the sources for which
/// trained(name) is true; data.source has the name "". The same samples must have the same tokens.
/// bad_data: files have changed, were added, or are missing; bad_config: another place has other
/// data, or data that cannot be compared.
Status same_data(const nlohmann::json& before, const nlohmann::json& now,
                 const std::function<bool(const std::string&)>& trained);

/// True if the recorded facts are of files with the same contents; names do not matter.
bool same_contents(const nlohmann::json& before, const nlohmann::json& now);

}  // namespace simplescale
