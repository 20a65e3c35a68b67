// What a node without a supervisor has seen of the run's supervisors, and whether it may leave the
// run: a function of what it is told. Owned by the supervisor link, called on its thread. Sends no
// message and touches no file.
//
//   JOB-1  A node whose memory holds a state of training stays in the run, unless a user wants the
//          run to end: the state may be the only one.
//   JOB-4  A new epoch, and a supervisor that lives, are signs that the run goes on. After
//          kSuccessorsMax epochs in a row none of which has answered they are no signs any more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace simplescale {

class LeaderSearch {
 public:
  static constexpr int kSuccessorsMax = 20;
  enum class Verdict : unsigned char { wait, leave, stay };
  /// The supervisor is lost, or none has been found yet. now_ms: actor clock.
  void begin(int64_t now_ms) {
    since_ms_ = alive_ms_ = now_ms;
    successors_ = 0;
  }
  /// The epoch files name epoch `number`; 0: there is none. lives: its heartbeat continues. Returns
  /// true if the epoch is new.
  bool seen(uint64_t number, bool lives, int64_t now_ms) {
    const bool is_new = number != std::exchange(newest_, number);
    if (is_new) since_ms_ = now_ms, ++successors_;
    if (number > 0 && lives && successors_ <= kSuccessorsMax) alive_ms_ = now_ms;
    return is_new;
  }
  /// leave, stay: there has been no sign of a supervisor for more than limit_ms. holds_state: the
  /// node's memory holds a state of training. stop_asked: a user wants the run to end.
  Verdict verdict(int64_t limit_ms, bool holds_state, bool stop_asked, int64_t now_ms) const {
    if (now_ms - alive_ms_ <= limit_ms) return Verdict::wait;
    return holds_state && !stop_asked ? Verdict::stay : Verdict::leave;
  }
  /// JOB-4: the node was stopped for so long, as by `scontrol suspend`, and could not search.
  void stopped(int64_t ms, int64_t now_ms) { alive_ms_ = std::min(now_ms, alive_ms_ + ms); }
  uint64_t newest() const { return newest_; }
  /// Since when this node has known the newest epoch, or has searched.
  int64_t since_ms() const { return since_ms_; }

 private:
  uint64_t newest_ = 0;
  int64_t since_ms_ = 0;
  int64_t alive_ms_ = 0;  // of the last sign of a supervisor
  int successors_ = 0;    // epochs that began during this search
};

}  // namespace simplescale
