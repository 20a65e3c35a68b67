// Leader election: the run folder on the shared file system decides which supervisor leads.
//
//   control/instance                    names the current start of the run (instance); files of
//                                       other instances have no effect
//   control/epoch-<instance>-<n>        created exclusively by the process that becomes
//                                       supervisor n of the instance; the highest n leads
//   control/vote-<instance>-<n>-<node>  the node's vote against supervisor n
//   control/room-<instance>-<node>-<pid>
//                                       becomes the epoch file if that standby claims: a standby
//                                       has room for it, so it can claim on a full disk
//
// The leader touches its epoch file twice a second as a heartbeat, so that a node that hears
// nothing can tell a broken link from a dead leader. A node that sees the heartbeat but cannot
// reach the leader votes against it, and touches its vote as often. A leader that cannot go on and
// has more votes against it than nodes it reaches is cut off, so it resigns
// (actors/supervisor/leadership.hpp).
//
//   LEAD-1  At most one supervisor acts: a supervisor that is not the highest epoch of the current
//           instance is deposed (EpochView::deposed) and stops acting, even after it was suspended
//           for hours.
//
// EpochFiles blocks as long as the file system does. EpochWatch uses it on a thread of its own, so
// that no other thread waits for a file system that hangs.
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
  uint64_t number = 0;  // from 1; 0: there is no epoch
  std::string node;
  int32_t pid = 0;
  std::string address;      // of the supervisor's transport
  uint64_t generation = 0;  // its generations have greater numbers (GEN-2)
  bool operator==(const Epoch&) const = default;
};

/// The files. Any thread; every call may block on the file system. Errors: io.
class EpochFiles {
 public:
  EpochFiles(RunFolder run, std::string instance);
  /// Called by the launcher before it starts any agent: makes this instance the current one, with a
  /// new run key, and removes files of older ones. unavailable: an agent of an older one lives.
  Status begin() const;
  /// True if the start before this one wrote control/end.json: it did not die.
  bool previous_ended() const;
  /// False if another start of the run has begun. io: control/instance cannot be read.
  Result<bool> current() const;
  /// LEAD-1: true while supervisor `number` is the highest epoch of the current instance. io: that
  /// cannot be read now.
  Result<bool> leads(uint64_t number) const;
  /// The highest epoch of this instance; number 0 if there is none. A damaged file counts: only its
  /// number is known then. io: also if that file is there and cannot be read.
  Result<Epoch> newest() const;
  /// Keeps room on the disk for a claim by this process of the node, and none for its older ones.
  Status keep_room(const std::string& node, int32_t pid) const;
  /// Creates the file of epoch.number, in the room that its process keeps, if any. False: another
  /// process has created it.
  Result<bool> claim(const Epoch& epoch) const;
  /// The leader's heartbeat.
  Status touch(uint64_t number) const;
  /// Time of the last heartbeat in ns, by the file system's clock. 0: the leader has resigned, or
  /// there is no such file. io: it cannot be read, which says nothing about the leader.
  Result<int64_t> touched_ns(uint64_t number) const;
  /// The leader steps down: no node needs to wait for its heartbeat to time out.
  Status resign(uint64_t number) const;
  /// Creates or touches a node's vote against supervisor `number`.
  Status vote(uint64_t number, const std::string& node) const;
  Status withdraw_vote(uint64_t number, const std::string& node) const;
  /// The nodes that vote against supervisor `number`, with the times of their last touch in ns. A
  /// vote that cannot be read is left out.
  Result<std::map<std::string, int64_t>> votes(uint64_t number) const;

 private:
  std::string path(uint64_t number) const;
  std::string vote_prefix(uint64_t number) const;
  std::string room_prefix(const std::string& node) const;
  RunFolder run_;
  std::string instance_, prefix_;
};

/// A leader whose heartbeat has not changed for this time, three times its interval, counts as
/// dead.
inline constexpr int64_t kHeartbeatTimeoutMs = 1'500;

/// Result of one poll of the folder.
struct EpochView {
  bool answered = false;  // false: the folder could not be read; `current` and `newest` say nothing
  bool current = true;    // this instance is the current start of the run
  Epoch newest;
  int64_t heartbeat_age_ms = 0;  // time since its heartbeat last changed, by the local clock
  bool resigned = false;
  std::set<std::string> votes;  // nodes that vote against it; only set for its own lead() epoch
  /// LEAD-1: true if supervisor `number` is not the leader, or not any more.
  bool deposed(uint64_t number) const { return answered && (!current || newest.number != number); }
  /// True if the newest leader has not resigned and its heartbeat has not timed out.
  bool leader_alive() const { return !resigned && heartbeat_age_ms < kHeartbeatTimeoutMs; }
};

/// Polls the epoch files on a thread of its own. The thread is detached: if the file system hangs,
/// the destructor does not wait for it. Any thread may call.
class EpochWatch {
 public:
  /// on_view is called on the watch's thread after every poll. It may be empty.
  EpochWatch(EpochFiles files, std::function<void(const EpochView&)> on_view);
  ~EpochWatch();  // on_view has returned, and is not called again, once this returns
  EpochWatch(const EpochWatch&) = delete;
  EpochWatch& operator=(const EpochWatch&) = delete;
  /// Polls every `ms` from now on, the first time at once. 0: only on poll().
  void poll_every(int64_t ms);
  /// Polls once, soon; `done` is called on the watch's thread, unless the file system hangs.
  void poll(std::function<void(const EpochView&)> done);
  /// From now on, each poll also touches this epoch's file if 450 ms have passed, and reads the
  /// votes against it. 0: no more.
  void lead(uint64_t number);
  /// From now on, each poll also renews this node's vote against epoch `number`, as often. 0:
  /// withdraws the vote at once.
  void vote(uint64_t number, const std::string& node);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace simplescale
