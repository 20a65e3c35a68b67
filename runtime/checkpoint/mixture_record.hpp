// What a checkpoint records of its run's mixture (data.blend): member "mixture" of its "resume".
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/training/mixture.hpp"

namespace simplescale {

struct MixtureRecord {
  Mixture mixture;
  std::vector<uint64_t> trained;  // samples of each source up to the checkpoint's step
  std::vector<uint64_t> epoch;    // samples of each source
  bool operator==(const MixtureRecord&) const = default;
};

/// The JSON object `facts` with the member "mixture".
std::string resume_text(const MixtureRecord& record, const std::string& facts = "{}");
/// The record in CheckpointInfo::resume; none: it has none, or it is damaged.
std::optional<MixtureRecord> mixture_in(const std::string& resume);

}  // namespace simplescale
