// Reads events.jsonl of a run that may be training. Blocks on the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// Bytes of events.jsonl now; 0 without the file.
int64_t size_of_events(const RunFolder& run);
/// The events from byte `from` on. Lines that are no events are skipped.
std::vector<nlohmann::json> events_from(const RunFolder& run, int64_t from);
/// The newest events, from the last bytes_max bytes of the file.
std::vector<nlohmann::json> events_of(const RunFolder& run, int64_t bytes_max);
/// The last `count` of the events.
std::vector<nlohmann::json> newest(std::vector<nlohmann::json> events, size_t count);

}  // namespace simplescale
