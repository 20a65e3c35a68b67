// Leader election: the run folder on the shared file system decides which supervisor leads. The
// number of a supervisor within one start of the run is its term.
//
//   control/instance                    names the current start of the run (instance); files of
//                                       other instances have no effect
//   control/term-<instance>-<n>        created exclusively by the process that becomes
//                                       supervisor n of the instance; the highest n leads
//   control/vote-<instance>-<n>-<node>  the node's vote against supervisor n
//   control/room-<instance>-<node>-<pid>
//                                       becomes the term file if that standby claims: a standby
//                                       has room for it, so it can claim on a full disk
//
// The leader touches its term file twice a second as a heartbeat, so that a node without messages
// can tell a broken link from a dead leader. A node that sees the heartbeat but cannot reach the
// leader votes against it, and touches its vote file equally often. A leader that cannot go on, and
// has more votes against it than nodes that it reaches, is cut off and resigns
// (actors/supervisor/leadership.hpp).
//
//   LEAD-1  At most one supervisor acts: a supervisor that is not the highest term of the current
//           instance is deposed (TermView::deposed) and stops acting, even after it was suspended
//           for hours.
//
// TermFiles blocks as long as the file system does. TermWatch uses it on a thread of its own, so
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

struct Term {
  uint64_t number = 0;  // the term, from 1; 0: there is none
  std::string node;
  int32_t pid = 0;
  std::string address;      // of the supervisor's transport
  uint64_t generation = 0;  // the supervisor uses only greater generation numbers (GEN-2)
  bool operator==(const Term&) const = default;
};

/// The term files. Any thread; every call may block on the file system. Errors: io.
class TermFiles {
 public:
  TermFiles(RunFolder run, std::string instance);
  /// Called by the launcher before it starts any agent. Makes this instance the current one, with a
  /// new run key, and removes files of older instances. unavailable: an agent of an older one
  /// lives.
  Status begin() const;
  /// True if the start before this one wrote control/end.json: it did not die.
  bool previous_ended() const;
  /// False if another start of the run has begun. io: control/instance cannot be read.
  Result<bool> current() const;
  /// LEAD-1: true while supervisor `number` has the highest term of the current instance. io: that
  /// cannot be read now.
  Result<bool> leads(uint64_t number) const;
  /// The highest term of this instance; number 0 if there is none. A damaged file counts, but only
  /// its number is known. io: also if that file exists and cannot be read.
  Result<Term> newest() const;
  /// Preallocates the next term file: keeps room on the disk for a claim by this process of the
  /// node. Frees the room that older processes of the node kept.
  Status keep_room(const std::string& node, int32_t pid) const;
  /// Claims a term: creates the file of term.number, in the room that the process keeps, if any.
  /// False: another process has created it.
  Result<bool> claim(const Term& term) const;
  /// The leader's heartbeat.
  Status touch(uint64_t number) const;
  /// Time of the leader's last heartbeat in ns, by the file system's clock. 0: the leader has
  /// resigned, or the file does not exist. io: the file cannot be read, so the leader may be alive.
  Result<int64_t> touched_ns(uint64_t number) const;
  /// Resigns: nodes need not wait for the leader's heartbeat to time out.
  Status resign(uint64_t number) const;
  /// Creates or touches a node's vote against supervisor `number`.
  Status vote(uint64_t number, const std::string& node) const;
  Status withdraw_vote(uint64_t number, const std::string& node) const;
  /// The nodes that vote against supervisor `number`, with the times of their last touch in ns.
  /// Leaves out votes that cannot be read.
  Result<std::map<std::string, int64_t>> votes(uint64_t number) const;

 private:
  std::string path(uint64_t number) const;
  std::string vote_prefix(uint64_t number) const;
  std::string room_prefix(const std::string& node) const;
  RunFolder run_;
  std::string instance_, prefix_;
};

/// A leader counts as dead if its heartbeat has not changed for this time, three times its
/// interval.
inline constexpr int64_t kHeartbeatTimeoutMs = 1'500;

/// The result of one poll of the folder.
struct TermView {
  bool answered = false;  // false: the folder could not be read; ignore `current` and `newest`
  bool current = true;    // this instance is the current start of the run
  Term newest;
  int64_t heartbeat_age_ms = 0;  // since the newest heartbeat changed, by the local clock
  bool resigned = false;
  std::set<std::string> votes;  // nodes that vote against `newest`; only set for lead()'s term
  /// LEAD-1: true if supervisor `number` does not lead, or no longer leads.
  bool deposed(uint64_t number) const { return answered && (!current || newest.number != number); }
  /// True if the newest leader has not resigned and its heartbeat has not timed out.
  bool leader_alive() const { return !resigned && heartbeat_age_ms < kHeartbeatTimeoutMs; }
};

/// Polls the term files on a thread of its own. The thread is detached, so the destructor does not
/// wait for a file system that hangs. Any thread may call.
class TermWatch {
 public:
  /// on_view is called on the watch's thread after every poll. It may be empty.
  TermWatch(TermFiles files, std::function<void(const TermView&)> on_view);
  ~TermWatch();  // once this returns, on_view is not running and is not called again
  TermWatch(const TermWatch&) = delete;
  TermWatch& operator=(const TermWatch&) = delete;
  /// Polls every `ms` from now on, first at once. 0: polls only on poll().
  void poll_every(int64_t ms);
  /// Polls once, soon; `done` is called on the watch's thread, unless the file system hangs.
  void poll(std::function<void(const TermView&)> done);
  /// From now on, each poll also touches this term's file if 450 ms have passed, and reads the
  /// votes against it. 0: stops this.
  void lead(uint64_t number);
  /// From now on, each poll also renews this node's vote against term `number`, at the same
  /// interval. 0: withdraws the vote at once.
  void vote(uint64_t number, const std::string& node);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace simplescale
