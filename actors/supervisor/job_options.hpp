// What a supervisor begins with, and what follows from it. Pure functions of plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/checkpoint/checkpoint.hpp"
#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/leadership.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/run/run_folder.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct JobOptions {
  Config config;
  Plan plan;
  RunFolder run;
  std::string node;                         // on which it runs
  uint64_t last_generation = 0;             // of earlier starts of this run
  std::optional<uint64_t> checkpoint_step;  // newest valid checkpoint
  std::vector<uint64_t> older_checkpoints;  // the newest last
  std::vector<std::string> skipped;         // newer ones that are not, and why
  std::string tokenizer;                    // to keep with checkpoints; may be empty
  std::shared_ptr<Journal> journal;
  std::optional<uint64_t> recorded_step;  // newest in the records, if it takes a run over
  uint64_t recorded_generation = 0;       // that made it
  LeadershipOptions leadership;
  /// Blocks; told of a host that failed its diagnosis, it returns an event's kind and reason, or
  /// "".
  std::function<std::pair<std::string, std::string>(const std::string& host,
                                                    const std::string& reason)>
      diagnosis_failed;
};

/// The job as its configuration and its folder have it, before anything was heard of.
job::State initial_state(const JobOptions& options);
PublisherOptions publisher_options(const JobOptions& options);
/// Faults of the configuration for steps that are still to be made.
std::vector<InjectFault> planned_faults(const JobOptions& options);

}  // namespace simplescale
