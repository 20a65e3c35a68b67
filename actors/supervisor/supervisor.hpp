// The supervisor actor. It receives what nodes report, calls decide() on it, carries out the
// decisions, and keeps the run's records (metrics, events, ledger, status). It runs in a process of
// its own on one of the nodes. Other actors reach it by an ordinary handle.
//
// Its state consists of parts without actors: each takes what happened and returns what has to be
// done. supervisor.cpp has one function for each message; carry_out.cpp does what the parts return.
// Runs on the transport thread or a CAF worker. Never blocks: the journal's thread writes files,
// the publisher actor publishes checkpoints.
#pragma once

#include <caf/all.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/agent_registry.hpp"
#include "actors/supervisor/anomalies.hpp"
#include "actors/supervisor/copy_plan.hpp"
#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/decision/stall.hpp"
#include "actors/supervisor/diagnosis.hpp"
#include "actors/supervisor/health_history.hpp"
#include "actors/supervisor/incidents.hpp"
#include "actors/supervisor/job_options.hpp"
#include "actors/supervisor/leadership.hpp"
#include "actors/supervisor/step_ledger.hpp"
#include "actors/supervisor/trace_plan.hpp"
#include "actors/supervisor/unpublished_shards.hpp"

namespace simplescale {

struct JobSupervisorState {
  static inline const char* name = "supervisor";
  JobOptions options;
  job::State job;                             // what decide() knows
  AgentRegistry agents;                       // by node
  std::map<std::string, caf::actor> handles;  // of connected agents, by node
  caf::actor standby, publisher;
  std::shared_ptr<std::atomic<bool>> prune_replaced;  // of the newest order to prune
  caf::actor uploader;                                // invalid without checkpoint.upload
  Leadership lead;
  uint64_t announced_step = 0;  // newest recorded step that this supervisor has sent to all nodes
  StepLedger steps;
  Incidents incidents;
  Diagnosis diagnosis;
  std::vector<ShardSaved> unpublished;  // shards of checkpoints on disk that are not published yet
  WrittenShards written;                // shards that the publisher has
  job::CopyRounds copy_rounds;
  Anomalies anomalies;
  job::StallWatch stalls;
  std::optional<job::Stall> stall;  // as of the newest status document
  HealthHistory health;
  TracePlan traces;
  std::vector<InjectFault> planned;  // faults to inject while a given step is made
  job::Rates stored_rates;           // in control/learning_rates.json
  InstructionSet stored_instructions = InstructionSet::automatic;  // in control/instructions
  /// A console's command that is answered once its event is in events.jsonl.
  struct PendingReply {
    caf::response_promise promise;
    CommandReply reply;
    bool dies = false;  // the command ends this process, after the reply
  };
  std::map<uint64_t, PendingReply> replies;  // by number of the command
  uint64_t commands = 0;
  int64_t seen_ms = 0;      // when notice_stop() was called last, actor clock
  int64_t status_ms = 0;    // when the newest status document was written, actor clock
  bool status_due = false;  // the state has changed since the newest status document
};

caf::behavior job_supervisor(caf::stateful_actor<JobSupervisorState>* self, JobOptions options);

}  // namespace simplescale
