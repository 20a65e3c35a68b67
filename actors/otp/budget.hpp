// Restart budgets and back-off: how often and how soon a child may be restarted. Pure functions on
// plain data, any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>

namespace simplescale::supervision {

/// More than max_restarts within within_ms is too many (OTP's intensity and period, with OTP's
/// defaults). A restart exactly within_ms ago still counts, as in OTP. within_ms = kForever counts
/// all restarts since the last progress.
struct Intensity {
  enum class Scope : uint8_t { supervisor, child };
  uint32_t max_restarts = 1;
  int64_t within_ms = 5000;
  Scope scope = Scope::supervisor;  // one budget for all children (OTP) or for each
  bool operator==(const Intensity&) const = default;
};

/// The n-th restart of a child since its last progress waits min(max_ms, first_ms * factor^(n-1)),
/// minus a random part of at most `jitter` of it. first_ms = 0: no delay, as in OTP.
struct BackOff {
  int64_t first_ms = 0;
  double factor = 2.0;
  int64_t max_ms = 30000;
  double jitter = 0.5;  // 0 to 1
  uint64_t seed = 0;
  bool operator==(const BackOff&) const = default;
};

struct Budget {
  std::deque<int64_t> restarts_ms;  // at most max_restarts + 1, oldest first
  uint32_t attempts = 0;            // restarts since the last progress
  bool operator==(const Budget&) const = default;
};
using Budgets = std::map<std::string, Budget>;  // by child id

struct Spent {
  bool too_many;
  uint64_t count;     // restarts in the window, this one included
  uint32_t attempts;  // of this child since its last progress, this one included
};
/// Records a restart of child `id` at now_ms.
Spent spend(Budgets& budgets, const Intensity& intensity, const std::string& id, int64_t now_ms);

/// The delay before restart number `attempts`. draw: a counter that selects the random number; the
/// same arguments give the same delay.
int64_t back_off_ms(const BackOff& back_off, uint32_t attempts, uint64_t draw);

}  // namespace simplescale::supervision
