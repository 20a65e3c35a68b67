// The inputs of a simulated history: its seed, the size of the cluster, and a planted bug, if any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/splitmix64.hpp"

namespace simplescale::simulation {

/// Classic mistakes: small changes of the supervisor or of the simulated world that the invariants
/// must find.
enum class Bug : unsigned char {
  none,
  no_fencing,             // reports of older generations count for the current one
  early_commit,           // a step counts when all but one trainer have reported it
  budget_by_uptime,       // failures are forgotten after seconds, not after steps
  stale_snapshot,         // a copy is labelled with the step that its source has when it arrives
  unverified_copy,        // receivers do not check the checksum of a copy
  lost_node_kept,         // the layout keeps a node that is lost
  two_shards,             // a node has two places in the layout
  generation_reused,      // a new supervisor uses the number of an older generation again
  acts_unreplicated,      // a decision is acted on before the standby has it
  waits_for_the_dead,     // no time limit for trainers that do not answer a fence
  waits_for_the_missing,  // no time limit for trainers that do not start after a pause
  growth_without_leave,   // a larger layout joins while the smaller one is in a step
  ceiling_dropped,        // steps that replicas do not agree on are trusted
  two_supervisors,        // terms are ignored
  applied_before_vote,    // trainers apply a step without waiting for the other trainers
  undone_copies,          // copies of undone steps are used as if they were the new ones
  silent_decision,        // a decision without a reason
  memory_forgotten,       // the memory of a node does not count while its trainers are not up
  memory_discarded,       // a run that gives up with too few nodes for a group saves nothing
  claims_once,            // a standby whose claim fails on a full disk ends, with its state
  answers_not_awaited,    // a generation begins before all agents have said what they hold
  copies_after_answer,    // an agent takes copies of a generation whose end it has reported
  undone_copy_sent,       // a trainer sends a copy of its node that an undone generation made
  publisher_goes_on,  // a deposed publisher goes on in the same folder; trainers open step-N alone
  replaced_not_read,  // trainers open step-N alone, not step-N.replaced
  disk_not_read,      // a successor does not look for checkpoints on the disk
  undone_checkpoint,  // the checkpoint of an undone step counts
  begins_again,       // a run without a readable checkpoint begins at step 0 by itself
  unrecorded_published,   // a checkpoint is published before its step is in the records
  read_before_claim,      // a new supervisor reads the state, then claims its term
  prepares_unfenced,      // a supervisor that prepares does not ask whether it was replaced
  mark_without_line,      // a step counts as recorded although writing its line failed
  half_line_left,         // a successor appends to half a line
  half_line_continued,    // a journal appends to half a line of a deposed one
  records_cut,            // a successor cuts lines that its predecessor's state does not know
  mark_unsynced,          // a step counts as recorded before its lines are synced
  reports_forgotten,      // agents keep no reports of steps for a new supervisor
  committed_unrecorded,   // steps that no supervisor heard of have no line when a generation begins
  undone_lines_count,     // a new supervisor takes lines of undone steps for committed ones
  pruned_early,           // the newest checkpoint is pruned, too
  pruned_unheard,         // checkpoints are pruned for one that does not count
  pruned_for_later,       // checkpoints are pruned for published ones that do not count yet
  published_unheard,      // a generation begins while a newer checkpoint is being published
  undone_marked,          // the mark of undone steps counts for the steps made again
  undone_lines_regained,  // lines that an earlier rollback made void count when steps are regained
  planned_early,          // a generation is planned although later events are known
  restarted_memory_skipped,  // the memory of a trainer that has just been restarted is not sent
  agents_send_nothing,       // the memory of a node is lost if none of its trainers starts
  round_ends_when_sent,      // a round of copies is over before its keepers have told
  stop_forgotten,            // a stop that the disk did not take is forgotten with its supervisor
  pages_not_compared,        // a state that was left by a standby that could not compare it counts
  state_not_left,            // a supervisor that steps down keeps the newest state to itself
  refuses_nobody,            // a supervisor that cannot go on ends without a word
  leaves_with_memory,        // an agent without a supervisor leaves, whatever its memory holds
  second_start_deposes,      // a second `train` deposes agents that still save
  number_adopted,     // a successor takes the newest number in the files for its state's generation
  acts_unseen,        // a supervisor that cannot read the term files acts while a node is away
  ends_unseen,        // such a supervisor ends the run
  orders_overtake,    // a node gets orders before the supervisor decides that it has come back
  agents_never_look,  // an agent that has a supervisor does not read the term files
  unknown_shards_published,  // shards of unknown generations are published instead of known ones
  gone_checkpoints_kept,     // a successor keeps checkpoints of its state that the disk has not
  effects_counted,           // each failure that one cause brings counts for the restart budget
  stop_counted,              // time in which all processes were stopped counts as waiting
  hosts_taken_for_equal,     // every host counts as one that has all instructions
  instructions_forgotten,    // a successor chooses the run's instructions again
  weights_lost,              // only one node passes the weights of the shares on to its trainers
  shares_flap,               // there is no pause between generations that begin for other shares
  reserved_vote,             // names that no node has taken yet count as absent nodes
  removed_return,            // an agent that was removed joins again, in an old generation
  name_taken_twice,          // a host looks which names are free, and takes one later
  range_moved_twice,         // elements of another cut are taken from two versions of a shard
  padding_awaited,           // a trainer whose new shard is all padding waits for its elements
  range_not_sent,            // nobody sends one of the old shards to trainers of another cut
  old_cut_joined,            // a trainer takes its copy of the old cut for its shard of the new one
  old_side_freed,            // trainers free the old cut before all have committed the new one
  cuts_mixed,                // shards of all cuts count as those of one
  shape_by_rate,  // the layout with the most nodes counts as the best, or the safest does
  away_is_ended,  // an agent that cannot be reached counts as one whose process has ended
};
inline constexpr uint64_t kSeldom = 20'000, kRare = 1'000'000;
struct BugName {
  Bug bug;
  const char* name;
  uint64_t within = 1'000;  // it is found in so many histories; --bugs leaves it out below that
};
inline constexpr BugName bug_names[] = {
    {Bug::no_fencing, "no_fencing"},
    {Bug::early_commit, "early_commit"},
    {Bug::budget_by_uptime, "budget_by_uptime"},
    {Bug::stale_snapshot, "stale_snapshot"},
    {Bug::unverified_copy, "unverified_copy"},
    {Bug::lost_node_kept, "lost_node_kept"},
    {Bug::two_shards, "two_shards"},
    {Bug::generation_reused, "generation_reused"},
    {Bug::acts_unreplicated, "acts_unreplicated"},
    {Bug::waits_for_the_dead, "waits_for_the_dead"},
    {Bug::waits_for_the_missing, "waits_for_the_missing"},
    {Bug::growth_without_leave, "growth_without_leave"},
    {Bug::ceiling_dropped, "ceiling_dropped"},
    {Bug::two_supervisors, "two_supervisors"},
    {Bug::applied_before_vote, "applied_before_vote"},
    {Bug::undone_copies, "undone_copies"},
    {Bug::silent_decision, "silent_decision"},
    {Bug::memory_forgotten, "memory_forgotten"},
    {Bug::memory_discarded, "memory_discarded"},
    {Bug::claims_once, "claims_once", kRare},
    {Bug::answers_not_awaited, "answers_not_awaited"},
    {Bug::copies_after_answer, "copies_after_answer", kRare},
    {Bug::undone_copy_sent, "undone_copy_sent", kRare},
    {Bug::publisher_goes_on, "publisher_goes_on", kSeldom},
    {Bug::replaced_not_read, "replaced_not_read", kSeldom},
    {Bug::disk_not_read, "disk_not_read"},
    {Bug::undone_checkpoint, "undone_checkpoint", kSeldom},
    {Bug::begins_again, "begins_again"},
    {Bug::unrecorded_published, "unrecorded_published"},
    {Bug::read_before_claim, "read_before_claim"},
    {Bug::prepares_unfenced, "prepares_unfenced"},
    {Bug::mark_without_line, "mark_without_line"},
    {Bug::half_line_left, "half_line_left"},
    {Bug::half_line_continued, "half_line_continued", kRare},
    {Bug::records_cut, "records_cut"},
    {Bug::mark_unsynced, "mark_unsynced"},
    {Bug::reports_forgotten, "reports_forgotten"},
    {Bug::committed_unrecorded, "committed_unrecorded"},
    {Bug::undone_lines_count, "undone_lines_count"},
    {Bug::pruned_early, "pruned_early"},
    {Bug::pruned_unheard, "pruned_unheard", kRare},
    {Bug::pruned_for_later, "pruned_for_later", kRare},
    {Bug::published_unheard, "published_unheard", kSeldom},
    {Bug::undone_marked, "undone_marked", kRare},
    {Bug::undone_lines_regained, "undone_lines_regained", kRare},
    {Bug::planned_early, "planned_early", kRare},
    {Bug::restarted_memory_skipped, "restarted_memory_skipped", kRare},
    {Bug::agents_send_nothing, "agents_send_nothing"},
    {Bug::round_ends_when_sent, "round_ends_when_sent"},
    {Bug::stop_forgotten, "stop_forgotten", kRare},
    {Bug::pages_not_compared, "pages_not_compared", kSeldom},
    {Bug::state_not_left, "state_not_left"},
    {Bug::refuses_nobody, "refuses_nobody"},
    {Bug::leaves_with_memory, "leaves_with_memory"},
    {Bug::second_start_deposes, "second_start_deposes"},
    {Bug::number_adopted, "number_adopted", kRare},
    {Bug::acts_unseen, "acts_unseen", kSeldom},
    {Bug::ends_unseen, "ends_unseen", kSeldom},
    {Bug::orders_overtake, "orders_overtake", kSeldom},
    {Bug::agents_never_look, "agents_never_look"},
    {Bug::unknown_shards_published, "unknown_shards_published", kRare},
    {Bug::gone_checkpoints_kept, "gone_checkpoints_kept", kRare},
    {Bug::effects_counted, "effects_counted", kSeldom},
    {Bug::stop_counted, "stop_counted"},
    {Bug::hosts_taken_for_equal, "hosts_taken_for_equal"},
    {Bug::instructions_forgotten, "instructions_forgotten"},
    {Bug::weights_lost, "weights_lost"},
    {Bug::shares_flap, "shares_flap"},
    {Bug::reserved_vote, "reserved_vote"},
    {Bug::removed_return, "removed_return"},
    {Bug::name_taken_twice, "name_taken_twice"},
    {Bug::range_moved_twice, "range_moved_twice"},
    {Bug::padding_awaited, "padding_awaited"},
    {Bug::range_not_sent, "range_not_sent"},
    {Bug::old_cut_joined, "old_cut_joined"},
    {Bug::old_side_freed, "old_side_freed"},
    {Bug::cuts_mixed, "cuts_mixed"},
    {Bug::shape_by_rate, "shape_by_rate"},
    {Bug::away_is_ended, "away_is_ended"},
};

struct Options {
  uint64_t seed = 1;
  int nodes = 4;     // spares included, and the names for nodes that join
  int trainers = 2;  // of each node
  int domain_nodes = 1;
  int spares = 0;
  int joining = 0;              // the last names: nodes that join the running job may take them
  std::vector<int> sizes = {};  // other numbers of nodes that a failure domain may have, ascending
  bool rate_first = false;      // as LayoutRules::rate_first
  int useless_size = 0;         // of these sizes: its trainers lack memory for a step; 0: none
  uint32_t blocks = 5040;       // of the state; shards have whole blocks, the last may be padding
  uint64_t steps = 100;
  Bug bug = Bug::none;
  bool verbose = false;                          // print every event
  bool remember = false;                         // keep the text of the last events
  int first() const { return nodes - joining; }  // nodes with which the run begins
  bool large() const { return nodes * trainers > 200; }
};

/// The same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * splitmix64_increment + 1) {}
  uint64_t next() { return splitmix64_mix(state_ += splitmix64_increment); }
  /// 0 .. n-1
  int pick(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return pick(100) < percent; }

 private:
  uint64_t state_;
};

/// Thrown by Invariants: this history violates one of them.
struct Violation {
  std::string invariant, text;
};

}  // namespace simplescale::simulation
