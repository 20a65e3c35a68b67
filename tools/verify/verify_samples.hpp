// The samples of a step, as the lines of ledger.jsonl tell them, and whether they are complete. Pure
// functions, any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/training/skipped_samples.hpp"

namespace simplescale {

struct LedgerRun {
  uint64_t first = 0, count = 0;  // samples
  size_t trainer = 0;             // a hash of its name
  auto operator<=>(const LedgerRun&) const = default;
};

struct LedgerStep {
  uint64_t generation = 0;
  std::vector<LedgerRun> runs;  // of that generation
};

/// Appends the runs of samples of a line: [[first, count], ...]. trainer: as in LedgerRun. False: it
/// is something else.
bool read_runs(const nlohmann::json& samples, size_t trainer, std::vector<LedgerRun>& runs);

/// Checks that the samples of a step cover the places [first, first + global_batch) exactly once. A
/// run of the same trainer that is there twice is a repeated line. Returns "" or a text that says
/// where they do not.
std::string check_cover(LedgerStep& step, uint64_t first, uint64_t global_batch,
                        const SkippedSamples& skipped);

}  // namespace simplescale
