// What a node without a supervisor has seen of the run's supervisors, and whether it may leave the
// run. A function of what it has seen. Owned by the supervisor link, called on its thread. Sends no
// message and touches no file.
//
//   JOB-1  A node whose memory holds a state of training stays in the run, unless a user wants the
//          run to end: the state may be the only one.
//   JOB-4  A new term, and a living supervisor, are signs that the run continues. They no
//          longer count after kSuccessorsMax terms in a row without an answer of a supervisor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace simplescale {

class LeaderSearch {
 public:
  static constexpr int kSuccessorsMax = 20;
  enum class Verdict : unsigned char { wait, leave, stay };
  /// The supervisor is lost, or no supervisor has been found yet. now_ms: actor clock.
  void begin(int64_t now_ms) {
    since_ms_ = alive_ms_ = now_ms;
    successors_ = 0;
  }
  /// The newest term file is that of term `number`; 0: there is none. lives: its supervisor's
  /// heartbeat continues. Returns true if the term is new.
  bool seen(uint64_t number, bool lives, int64_t now_ms) {
    const bool is_new = number != std::exchange(newest_, number);
    if (is_new) since_ms_ = now_ms, ++successors_;
    if (number > 0 && lives && successors_ <= kSuccessorsMax) alive_ms_ = now_ms;
    return is_new;
  }
  /// leave or stay: no sign of a supervisor has been seen for more than limit_ms. holds_state: the
  /// node's memory holds a state of training. stop_asked: a user wants the run to end.
  Verdict verdict(int64_t limit_ms, bool holds_state, bool stop_asked, int64_t now_ms) const {
    if (now_ms - alive_ms_ <= limit_ms) return Verdict::wait;
    return holds_state && !stop_asked ? Verdict::stay : Verdict::leave;
  }
  /// JOB-4: the node was stopped for that time, as by `scontrol suspend`, and could not search.
  void stopped(int64_t ms, int64_t now_ms) { alive_ms_ = std::min(now_ms, alive_ms_ + ms); }
  uint64_t newest() const { return newest_; }
  /// When this node first saw the newest term, or began to search.
  int64_t since_ms() const { return since_ms_; }

 private:
  uint64_t newest_ = 0;
  int64_t since_ms_ = 0;
  int64_t alive_ms_ = 0;  // time of the last sign of a supervisor
  int successors_ = 0;    // terms that began during this search
};

}  // namespace simplescale
