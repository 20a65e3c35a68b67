// The options of the supervisor actor, and values derived from them. Plain data and pure functions;
// any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/checkpoint/checkpoint.hpp"
#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/records_end.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/run/run_folder.hpp"
#include "runtime/run/term.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// The supervisor's term, and its predecessor.
struct LeadershipOptions {
  uint64_t term = 1;
  std::string address;   // of this supervisor's transport
  std::string instance;  // of this start of the run
  std::shared_ptr<TermWatch> watch;
  std::optional<SupervisorState> state;  // of the predecessor; none: the run starts
  Reason lost;                           // why the predecessor is lost
  int64_t lost_at_ms = 0;                // when it was lost, actor clock
  bool silent = false;    // it stopped answering, so nodes may notice the loss as late
  bool elected = false;   // the predecessor resigned
  bool stood_by = false;  // this supervisor was the predecessor's standby
  /// Called once, at the end. resigns: another supervisor has to lead.
  std::function<void(int exit_code, std::string reason, bool resigns)> finished;
};

struct JobOptions {
  Config config;
  Plan plan;
  RunFolder run;
  std::string node;               // on which this supervisor runs
  uint64_t last_generation = 0;   // the newest of earlier starts of this run
  uint64_t generation_floor = 0;  // this supervisor uses greater numbers (GEN-2)
  /// LEAD-1: returns true while this supervisor leads. Called on the publisher's thread before it
  /// renames anything; blocks.
  std::function<bool()> leads;
  std::optional<uint64_t> checkpoint_step;  // newest valid checkpoint
  std::vector<uint64_t> older_checkpoints;  // the newest last
  bool had_checkpoint = false;              // checkpoints existed, but none is usable
  std::string parent;  // whose weights the checkpoint holds, if the run has made no step yet
  std::vector<std::pair<std::string, std::string>> changes;  // of the configuration: key, reason
  // With which the run computes; automatic: not chosen yet, or on GPUs; and the recorded one.
  InstructionSet instructions = InstructionSet::automatic;
  InstructionSet recorded_instructions = InstructionSet::automatic;
  job::Rates rates;                     // that users have set in earlier starts of this run
  std::vector<std::string> skipped;     // why newer checkpoints are invalid, a line for each
  std::string signature;                // hash of signature_of_run(), as far as it is known
  std::string tokenizer;                // tokenizer to keep with checkpoints; may be empty
  std::vector<uint64_t> epoch_samples;  // of each source of data.blend, to keep with checkpoints
  std::optional<double> padding;        // padding_share(); none without data.pack
  std::string resume_facts =
      "{}";  // a JSON object to keep with checkpoints: CheckpointInfo::resume
  std::shared_ptr<Journal> journal;
  std::optional<uint64_t> recorded_step;  // newest in the records, if there is a predecessor
  uint64_t recorded_generation = 0;       // the generation that made it
  std::set<StepLine> recorded_beyond;     // lines of later steps that the records already have
  std::map<uint64_t, nlohmann::json> validations;  // in the records, of the newest validated steps
  uint64_t incidents = 0;  // how many the records of earlier starts and supervisors have
  /// The start before this one: all its processes died, so its records have no end.
  struct Died {
    double newest_time = 0;  // the newest in the records, seconds since the epoch
    uint64_t step = 0;       // the newest one in the records
  };
  std::optional<Died> died;
  LeadershipOptions leadership;
  /// Names the places of samples in the token files (places_text()). Null: unknown.
  std::function<std::string(const std::vector<uint64_t>& runs)> sample_places;
  /// Reports a host that failed its diagnosis to the scheduler. Returns the kind and the reason of
  /// an event, or kind "" for no event. Blocks.
  std::function<std::pair<std::string, std::string>(const std::string& host,
                                                    const std::string& reason)>
      diagnosis_failed;
  /// Called with the line of events.jsonl at the end of every incident and at the run's failure.
  /// Does not block. May be null.
  std::function<void(const nlohmann::json& event)> notify;
};

/// The longest time that a trainer may take to leave its generation. A trainer on a GPU may first
/// copy its newest state, state_bytes, to pages that it has not used yet (at 12 GB/s or more). Then
/// it waits for NCCL's abort (docs/benchmarks.md).
int64_t fence_timeout_ms(const Config& config, uint64_t state_bytes);

/// The job before any node has reported, derived from its configuration and its run folder.
job::State initial_state(const JobOptions& options);
PublisherOptions publisher_options(const JobOptions& options);
/// The configuration's faults for steps after the newest checkpoint.
std::vector<InjectFault> planned_faults(const JobOptions& options);

}  // namespace simplescale
