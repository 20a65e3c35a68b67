// What a reader of a run's records must know: that they are old, that the disk refuses them, or
// that the newest state is not saved. The terminal, `status`, the console and the page show it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// status.json is written every second. After this many seconds it counts as old, for every reader.
constexpr int64_t kStatusStaleS = 5;

/// Seconds since control/status.json was last written; -1: it does not exist. Compares the clock of
/// this host with that of the file system.
int64_t status_age_s(const RunFolder& run);

/// A sentence about the records of a run that is under way; "" if there is nothing to report.
/// status: its status document, from the file or from the supervisor. Any thread; reads the disk.
std::string notice_of(const RunFolder& run, const nlohmann::json& status);

/// The same as a pure function. run: the path of its folder. disk: what is wrong with the disk, as
/// "it is full", or "".
std::string notice_text(const std::string& run, int64_t age_s, const std::string& disk,
                        const nlohmann::json& status);

}  // namespace simplescale
