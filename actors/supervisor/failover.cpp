#include "actors/supervisor/failover.hpp"

#include "runtime/run/term.hpp"

namespace simplescale {

Failover::Decision Failover::lost(const Reason& reason, bool has_state, int64_t now_ms) {
  if (lost_at_ms_) return {};
  lost_at_ms_ = now_ms;
  reason_ = reason;
  if (!has_state)
    return {Verdict::end,
            in_words("the supervisor was lost before it sent its state (" + reason.text + ")")};
  // Silence may be a network fault. A connection that the supervisor's host closed proves that the
  // process has ended.
  if (reason.kind == ReasonKind::process_ended || reason.kind == ReasonKind::connection_lost)
    return {Verdict::take_over, reason};
  return {};
}

Failover::Decision Failover::seen(const local::LeaderSeen& seen, uint64_t term, int64_t now_ms) {
  if (!seen.answered) return {};
  if (!seen.current) return {Verdict::end, in_words("the run was started again")};
  if (term > 0 && seen.newest > term)
    return {Verdict::end, in_words("term " + std::to_string(seen.newest) + " leads")};
  const bool gap = now_ms - answered_ms_ > kHeartbeatTimeoutMs;
  answered_ms_ = now_ms;
  if (!lost_at_ms_) return {};
  if (gap) lives_ms_.reset();
  if (!seen.lives) {
    lives_ms_.reset();
    if (!dead_ms_) dead_ms_ = now_ms;
    if (now_ms - *dead_ms_ < (dismissed_ ? kDismissedMs : 0)) return {};
    return {Verdict::take_over, reason_, true};
  }
  dead_ms_.reset();
  if (!lives_ms_) lives_ms_ = now_ms;
  dismissed_ = dismissed_ || now_ms - *lives_ms_ > kHeartbeatTimeoutMs;
  if (now_ms - *lives_ms_ > kUselessMs)
    return {Verdict::end, in_words("the supervisor lives, but this standby cannot reach it")};
  return {};
}

}  // namespace simplescale
