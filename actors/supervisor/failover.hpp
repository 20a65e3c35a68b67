// Failover: decides when a standby claims the next term, and when it ends, from what it has
// seen. Owned by the standby actor, called on its thread. Sends no message and touches no file.
//
//   - The supervisor's process has ended (its connection broke): take over at once.
//   - The supervisor is silent: take over once its heartbeat in the run folder has stopped as well,
//     so that a broken link alone deposes no supervisor (LEAD-1). If the heartbeat continues for
//     kUselessMs, the standby ends, and the supervisor appoints another one.
//   - The run folder hangs or fails: the standby keeps its state and waits. If the supervisor died
//     meanwhile, its old heartbeat still looks new at the first answer, so kUselessMs begins again.
//   - The supervisor's heartbeat continued after the link broke: the supervisor has probably
//     dismissed this standby and appointed another, which has the newer state. To let that standby
//     claim first, this one waits kDismissedMs more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "transport/protocol/reason.hpp"

namespace simplescale {

namespace local {
/// The term watch sends this to the standby: what the term files show.
struct LeaderSeen {
  bool answered;    // the run folder could be read
  bool current;     // this start of the run is the current one
  uint64_t newest;  // term
  bool lives;       // the newest term's heartbeat continues
};
}  // namespace local

class Failover {
 public:
  static constexpr int64_t kUselessMs = 4'000;
  static constexpr int64_t kDismissedMs = 2'000;
  enum class Verdict : unsigned char { wait, take_over, end };
  struct Decision {
    Verdict verdict = Verdict::wait;
    Reason reason = {};
    bool silent = false;  // the supervisor stopped answering; its process may be alive
  };
  /// The connection to the supervisor is lost. has_state: the standby has received the supervisor's
  /// state. now_ms: actor clock.
  Decision lost(const Reason& reason, bool has_state, int64_t now_ms);
  /// The term files have been read, or could not be read. term: the term of the standby's state;
  /// 0: it has none.
  Decision seen(const local::LeaderSeen& seen, uint64_t term, int64_t now_ms);
  bool is_lost() const { return lost_at_ms_.has_value(); }

 private:
  std::optional<int64_t> lost_at_ms_;
  Reason reason_;
  int64_t answered_ms_ = 0;          // of the last answer
  std::optional<int64_t> lives_ms_;  // since when all answers say that the supervisor lives
  std::optional<int64_t> dead_ms_;   // since when all answers say that it does not
  bool dismissed_ = false;           // the heartbeat continued after the link broke
};

}  // namespace simplescale
