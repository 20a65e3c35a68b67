// Who is supervisor: the run folder on the shared file system is the arbiter.
//
// control/epoch-<instance>-<n> is created exclusively by whoever becomes supervisor n of this start
// of the run; the highest number leads. The leader touches its file twice a second, so that others
// can tell a silent link from a dead leader. control/instance names the current start; files of
// others have no effect.
//
// A node that sees supervisor n's heartbeat but cannot reach it votes against it, in
// control/vote-<instance>-<n>-<node>, touched as often. A leader that cannot go on and is
// outvoted is the one that is cut off; it resigns (leadership.hpp).
//
//   LEAD-1 At most one supervisor acts: whoever is not the highest epoch of the current instance is
//      deposed (EpochView::deposed) and stops acting, also after being stopped for hours.
//
// EpochFiles touches files and may block for as long as the file system does. EpochWatch does so on
// a thread of its own, so that nobody else waits for a file system that hangs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "runtime/run/run_folder.hpp"

namespace simplescale {

struct Epoch {
  uint64_t number = 0;  // from 1; 0: none
  std::string node;
  int32_t pid = 0;
  std::string address;      // of the supervisor's transport
  uint64_t generation = 0;  // the newest one given out when the epoch began
  bool operator==(const Epoch&) const = default;
};

class EpochFiles {
 public:
  EpochFiles(RunFolder run, std::string instance);
  /// Makes this instance the current one and removes what older ones left. By the launcher, before
  /// any agent starts.
  Status begin() const;
  /// False if another start of the run has begun. True also where nobody said which is current.
  bool current() const;
  /// The highest epoch of this instance; number 0 if there is none. A file that is damaged counts
  /// by its number.
  Result<Epoch> newest() const;
  /// Creates the file of epoch.number: true if it is ours now, false if somebody was faster.
  Result<bool> claim(const Epoch& epoch) const;
  /// The leader's sign of life.
  Status touch(uint64_t number) const;
  /// Time of the last touch in ns, by the file system's clock; 0 if it has resigned, or there is no
  /// such file.
  int64_t touched_ns(uint64_t number) const;
  /// The leader gives up: others need not wait until its heartbeat is missed.
  Status resign(uint64_t number) const;
  /// A node's sign that it lives, and cannot reach the supervisor of this epoch.
  Status vote(uint64_t number, const std::string& node) const;
  Status withdraw_vote(uint64_t number, const std::string& node) const;
  /// Who votes against an epoch, and the time of their last touch in ns.
  Result<std::map<std::string, int64_t>> votes(uint64_t number) const;

 private:
  std::string path(uint64_t number) const;
  std::string vote_prefix(uint64_t number) const;
  RunFolder run_;
  std::string instance_, prefix_;
};

/// A heartbeat that has been the same for so long, three times what lies between two, is over.
inline constexpr int64_t kHeartbeatTimeoutMs = 1'500;

/// What a look at the folder has shown.
struct EpochView {
  bool answered = false;  // false: the folder could not be read
  bool current = true;    // this instance is the current one
  Epoch newest;
  int64_t heartbeat_age_ms = 0;  // how long its heartbeat has been the same, by our own clock
  bool resigned = false;
  std::set<std::string> votes;  // nodes that vote against it; only a leader is told
  /// True: number is not (any more) who leads.
  bool deposed(uint64_t number) const { return answered && (!current || newest.number != number); }
  /// Whether who leads lives, as far as its heartbeat tells.
  bool leader_alive() const { return !resigned && heartbeat_age_ms < kHeartbeatTimeoutMs; }
};

/// Looks at the epoch files on a thread of its own. The thread is never waited for.
class EpochWatch {
 public:
  /// on_view is called on the thread after every look.
  EpochWatch(EpochFiles files, std::function<void(const EpochView&)> on_view);
  ~EpochWatch();  // on_view is not called any more once this returns
  EpochWatch(const EpochWatch&) = delete;
  EpochWatch& operator=(const EpochWatch&) = delete;
  /// Looks every `ms` from now on, the first time at once; 0: only when asked.
  void poll_every(int64_t ms);
  /// Looks once, soon; `done` is called on the thread, unless the file system hangs.
  void poll(std::function<void(const EpochView&)> done);
  /// Also touches this epoch's file, every 500 ms.
  void lead(uint64_t number);
  /// Also votes against this epoch, every 500 ms; 0: takes that back.
  void vote(uint64_t number, const std::string& node);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace simplescale
