#include "tools/verify/verify_samples.hpp"

#include <algorithm>

namespace simplescale {

using nlohmann::json;

namespace {

/// Replaces the samples of runs by their places (skipped_samples.hpp). Returns "", or which run has
/// a skipped sample.
std::string to_places(std::vector<LedgerRun>& runs, const SkippedSamples& skipped) {
  if (skipped.empty()) return "";
  for (LedgerRun& run : runs) {
    if (skipped.in(run.first, run.count) > 0)
      return "has samples " + std::to_string(run.first) + " to " +
             std::to_string(run.first + run.count - 1) + ", but data.skip_samples = \"" +
             skipped.text() + "\" in config.toml leaves some of them out";
    run.first -= skipped.before(run.first);
  }
  return "";
}

}  // namespace

std::string check_cover(LedgerStep& step, uint64_t first, uint64_t global_batch,
                        const SkippedSamples& skipped) {
  if (std::string wrong = to_places(step.runs, skipped); !wrong.empty()) return wrong;
  std::sort(step.runs.begin(), step.runs.end());
  step.runs.erase(std::unique(step.runs.begin(), step.runs.end()), step.runs.end());
  uint64_t next = first;
  for (const auto& [begin, count, trainer] : step.runs) {
    if (count == 0) continue;
    if (begin > next)
      return "samples " + std::to_string(next) + " to " + std::to_string(begin - 1) +
             " are missing";
    if (begin < next && begin < first)
      return "sample " + std::to_string(begin) + " is not of this step";
    if (begin < next) return "sample " + std::to_string(begin) + " is there twice";
    next = count > UINT64_MAX - begin ? UINT64_MAX : begin + count;
  }
  const uint64_t end = first + global_batch;
  if (next < end)
    return "samples " + std::to_string(next) + " to " + std::to_string(end - 1) + " are missing";
  if (next > end) return "sample " + std::to_string(end) + " is not of this step";
  return "";
}

bool read_runs(const json& samples, size_t trainer, std::vector<LedgerRun>& runs) {
  if (!samples.is_array()) return false;
  for (const json& run : samples) {
    if (!run.is_array() || run.size() != 2 || !run[0].is_number_unsigned() ||
        !run[1].is_number_unsigned())
      return false;
    runs.push_back({run[0].get<uint64_t>(), run[1].get<uint64_t>(), trainer});
  }
  return true;
}

}  // namespace simplescale
