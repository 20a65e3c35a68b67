// The supervisor actor: hears all nodes, asks decide() (decide.hpp), carries out what it says, and
// keeps the run's records (metrics, events, ledger, status document). It lives in a process of its own,
// on some node; everybody else knows it by an ordinary handle. Leading, deposing and the standby
// are in leadership.hpp, examining nodes in diagnosis.hpp.
//
// Runs on the transport thread or a CAF worker; file writing is the journal's thread, publishing
// checkpoints an actor's.
#pragma once

#include <caf/all.hpp>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/local.hpp"
#include "actors/supervisor/anomalies.hpp"
#include "actors/supervisor/copy_plan.hpp"
#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/diagnosis.hpp"
#include "actors/supervisor/health_history.hpp"
#include "actors/supervisor/job_options.hpp"
#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/leadership.hpp"
#include "actors/supervisor/trace_plan.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

struct JobState {
  static inline const char* name = "supervisor";
  struct Node {
    caf::actor handle;
    std::string host;
    int32_t pid = 0;
    std::string address;  // of its agent's transport
  };
  struct Step {
    StepDone any;
    std::map<std::string, std::vector<uint64_t>> samples;  // by trainer
    std::map<std::string, double> busy_ms;
    double first_time = 0;  // when the first trainer was done with it
  };
  JobOptions options;
  job::State job;
  Leadership lead;
  std::map<std::string, Node> nodes;
  std::map<uint64_t, Step>
      pending;  // steps of the current generation that not all trainers have reported
  std::vector<job::Place> members;  // of the current generation, and their groups
  uint64_t groups = 0, members_generation = 0;
  std::vector<ShardSaved> unpublished;  // of steps that the records do not have yet
  /// States that differed: redoing the step tells who was wrong.
  struct Disputed {
    uint64_t step, hash;
  };
  std::map<std::string, Disputed> disputed;  // by trainer
  std::optional<uint64_t> recorded_step;     // newest in metrics and ledger
  Anomalies anomalies;
  job::CopyRounds copy_rounds;
  Diagnosis diagnosis;
  HealthHistory health;
  caf::actor publisher;
  uint64_t incidents = 0;
  struct Incident {
    int64_t since_ms = 0;
    std::string what, decision;
    uint64_t undone = 0;                                  // steps
    std::vector<std::pair<std::string, int64_t>> phases;  // and when they were reached
  };
  std::optional<Incident> incident;
  struct Finding {
    LogFound found;
    int64_t at_ms = 0;
  };
  std::deque<Finding> causes;                    // root causes that logs told of, the newest last
  std::map<uint64_t, nlohmann::json> explained;  // incident -> its phases and reasons, for `why`
  std::vector<InjectFault> planned;              // each to be injected while its step is made
  int64_t committed_at_ms = 0, training_since_ms = 0;
  double committed_time = 0;  // of the newest step, by its trainers; 0: none in this generation
  uint64_t training_since_step = 0;
  TracePlan traces;
  double loss = std::numeric_limits<double>::quiet_NaN();  // none yet in this start of the run
  double tokens_per_second = 0;
  int64_t status_at_ms = 0;  // of the newest document
  bool status_due = false;   // there is something newer
  struct Answer {
    caf::response_promise promise;
    CommandReply reply;
    bool dies = false;  // this supervisor, as was asked for
  };
  std::map<uint64_t, Answer> answers;  // to actions whose events are being written
  uint64_t asked = 0;
};

caf::behavior job_supervisor(caf::stateful_actor<JobState>* self, JobOptions options);

}  // namespace simplescale
