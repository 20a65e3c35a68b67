// Incidents: an incident lasts from a failure to the first step after it. Makes the lines of
// events.jsonl, summarises each incident in a line of its own, and keeps the lines of incidents for
// the command `why`.
//
// Plain data; owned by the supervisor actor, called on its thread. Never touches a file.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/decision/sentence.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

class Incidents {
 public:
  /// before: how many incidents earlier starts of the run had; numbering continues from there.
  /// avoid: settings with which a lost node costs less (Risk::avoid).
  explicit Incidents(uint64_t before = 0, std::string avoid = "")
      : avoid_(std::move(avoid)), count_(before) {}

  /// Makes a line of events.jsonl. now_ms: actor clock. Lines of kind joined, layout_changed and
  /// took_over have the layout: a list of failure domains, each a list of nodes.
  nlohmann::json event_line(const job::State& job, const job::Record& record, int64_t now_ms) const;

  struct Recorded {
    nlohmann::json line;
    std::optional<nlohmann::json> summary;  // of the incident that ends with this record
    bool began = false;                     // an incident begins with this record
  };
  /// Takes records in order of time. The record's phase says what it means: "detect" begins an
  /// incident if there is none, "resume" ends it. extra: further fields of the line. stopped_ms:
  /// when the newest step was committed; an incident that begins now is counted from then on.
  /// Nothing: counted from now.
  Recorded record(const job::State& job, const job::Record& record, int64_t now_ms,
                  const nlohmann::json& extra = nlohmann::json::object(),
                  std::optional<int64_t> stopped_ms = {});
  /// A line of events.jsonl for a log line that matches a rule. If the rule names a root cause, it
  /// may become the cause of the current incident, or of one that begins within 10 s.
  nlohmann::json log_rule_line(const job::State& job, const LogFound& found, int64_t now_ms);

  /// Number of incidents of all starts; also the number of the newest one, counted from 1.
  uint64_t count() const { return count_; }
  /// The lines of an incident; nullptr if unknown.
  const nlohmann::json* explain(uint64_t incident) const;
  /// The newest incident, whether it is over or not: {"number", "over", "sentence"}; null if there
  /// is none.
  nlohmann::json newest() const;
  const std::string& avoid() const { return avoid_; }

  void save(SupervisorState& to) const;
  /// Continues a predecessor's incident and returns true. If it had none, the loss of the
  /// predecessor begins one. lost: why the predecessor is lost; lost_at_ms: when, actor clock;
  /// stood_by: this supervisor was its standby.
  bool resume(const SupervisorState& from, const Reason& lost, int64_t lost_at_ms, bool stood_by);

 private:
  struct Incident {
    int64_t since_ms = 0;
    job::IncidentFacts facts;
    std::vector<std::pair<std::string, int64_t>> phases;  // name, and when it was reached
  };
  struct Cause {
    LogFound found;
    int64_t at_ms = 0;
  };
  const LogFound* root_cause() const;
  nlohmann::json summary_line(const job::State& job, int64_t now_ms);
  void explain_with(const nlohmann::json& line);

  std::string avoid_, newest_;  // newest_: sentence of the newest incident that is over
  uint64_t count_ = 0;
  uint64_t undone_ = 0;  // steps, by a decision whose incident begins with its next record
  std::optional<Incident> current_;
  std::map<uint64_t, nlohmann::json> explained_;  // incident -> its lines
  std::deque<Cause> causes_;                      // root causes found in logs, the newest last
};

}  // namespace simplescale
