// What the data, the tokenizer and the questions of a run are, as control/manifest.json records it at
// each start, and whether they are still the same. Files are known by their contents: where they lie
// does not matter. Blocks on the disk; any thread.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/data/data_files.hpp"

namespace simplescale {

/// Size, modification time and xxh3-128 of a file. before: the facts that were recorded of it, or
/// null; of a file above 256 MiB with the same name, size and time, the hash is taken from there. A
/// file that cannot be read has no hash.
nlohmann::json file_facts(const std::string& path, const nlohmann::json& before);

/// Of data.source; with data.blend: of each source by its name. before: what was recorded, or null.
nlohmann::json data_facts(const Config& config, const DataFiles& files,
                          const nlohmann::json& before);

/// The same without files: nothing is known of what the data was.
nlohmann::json data_places(const Config& config);

/// Compares the data of the previous start with that of now, of the sources that trained(name) is
/// true for; data.source has the name "". The same samples must be the same tokens. bad_data: files have changed,
/// were added, or are missing; bad_config: another place holds other data, or data that cannot be
/// compared.
Status same_data(const nlohmann::json& before, const nlohmann::json& now,
                 const std::function<bool(const std::string&)>& trained);

/// True if the recorded facts are of files with the same contents, whatever their names are.
bool same_contents(const nlohmann::json& before, const nlohmann::json& now);

}  // namespace simplescale
