// A simulated cluster in virtual time: nodes with their agents and trainers, links that delay,
// block and break, a shared disk, and supervisors that run the real decide(). One thread. A history
// is a function of Options alone.
//
//   real       decisions, layouts and moves (actors/supervisor/decision)
//   simulated  agents, trainers, collectives, transfers, and the supervisor actor around decide():
//              small stand-ins with the same messages in the same order
//
// A copy of a shard's state is a hash of its content: a function of (shard, cut, step, generation
// that made it), unless a fault damaged it. A step that is made again has other bits. A cut is the
// number of shards of a state. Shards of another cut are made of all old shards that have some of
// their elements, here those at the same part of the whole.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "actors/node/leader_search.hpp"
#include "actors/supervisor/anomalies.hpp"
#include "actors/supervisor/copy_plan.hpp"
#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/decision/rollback.hpp"
#include "actors/supervisor/failover.hpp"
#include "actors/supervisor/records_end.hpp"
#include "actors/supervisor/state_codec.hpp"
#include "actors/supervisor/unpublished_shards.hpp"
#include "runtime/training/sharding.hpp"
#include "tests/simulation/options.hpp"

namespace simplescale::simulation {

class Invariants;

using Time = int64_t;  // us
constexpr Time ms = 1000, second = 1'000'000;
constexpr Time silence = second;  // after which a silent process counts as lost
constexpr Time collective_timeout = 8 * second;
constexpr int64_t join_timeout_ms = 30'000;
constexpr Time tick_time = 100 * ms;  // of a supervisor
constexpr uint64_t rows = 64;         // samples of a step
/// Leaves of a step: more than any layout divides evenly.
inline uint64_t leaves_of(const Options& o) {
  return rows * static_cast<uint64_t>(o.trainers * o.domain_nodes) + 1;
}
constexpr uint64_t peer_every = 5, disk_every = 10;

/// One shard of a cut.
struct Shard {
  uint32_t shard = 0, shards = 1;
  auto operator<=>(const Shard&) const = default;
};
/// True if the shards are the same or have elements in common. blocks: as Options::blocks.
bool overlap(const Shard& a, const Shard& b, uint32_t blocks);

/// The correct content of a shard's state after `step`, as generation `made` makes it.
uint64_t content_of(const Shard& of, uint64_t step, uint64_t made);

/// A copy with its content.
struct StoredCopy {
  Shard of;
  uint64_t step = 0;
  uint64_t content = 0, checksum = 0;
  uint64_t generation = 0;  // the label of the copy, as in StateVersion
  uint64_t made = 0;        // the generation that made it; known to the invariants alone
  bool begun = false;       // as in StateCopy
  /// 0: the content is correct.
  uint64_t difference() const { return content ^ content_of(of, step, made); }
  bool good() const { return difference() == 0; }
  StateCopy label() const { return {of.shard, step, generation, of.shards, begun}; }
};

struct Trainer {
  std::string name;
  bool up = false;
  int32_t pid = 0;
  Time hung_until = 0;             // a hung process handles messages afterwards
  std::vector<StoredCopy> copies;  // in the node's memory; the committed one last, two at most
  std::vector<StoredCopy> staged;  // by its agent, for peer nodes
  Shard place;                     // in its newest generation
  bool writing = false;            // the next step replaces the older of two copies
  uint64_t generation = 0;         // that it is in; 0: none
  uint64_t fenced = 0;             // it joins no older generation
  Time no_restart_until = 0, last_message = 0;
  // Known to its agent.
  bool known = false;                    // it has been started
  uint64_t told_generation = 0;          // that it was last ordered to join
  std::optional<job::TrainerIdle> idle;  // its last report
};

struct StepReport {
  uint64_t generation = 0, step = 0;
  std::vector<int> trainers;
};

/// The step and generation of a checkpoint's shards.
struct SavedStep {
  uint64_t step = 0, generation = 0;
  auto operator<=>(const SavedStep&) const = default;
};

/// A line of the run's records: `generation` has committed `step`. Lines are ordered by history.
struct RecordLine {
  uint64_t generation = 0, step = 0;
  auto operator<=>(const RecordLine&) const = default;
};

/// The trainers of a step have one line together in the simulated ledger.
inline constexpr const char* all_trainers = "all";

struct Supervisor;
/// The effect of a message on its receiver.
using Message = std::function<void()>;
struct Link {
  Supervisor* supervisor = nullptr;  // that the agent reports to
  uint64_t id = 0;
  bool up = false;
  // [0] to the supervisor, [1] to the agent:
  Time last[2] = {0, 0};  // when the last message arrives
  std::deque<Message> queue[2];
};

/// Until when reads of the state page, or of records and checkpoints, fail with an error.
struct Unreadable {
  Time page = 0, records = 0;
};

struct Node {
  std::string name;
  bool up = false;
  bool named = false;    // a command that lives has this name
  uint64_t command = 0;  // the newest that took the name
  int32_t pid = 0;
  Time hung_until = 0;
  // The best of its host, and those of the run, once its agent knows them.
  InstructionSet instructions = InstructionSet::avx512,
                 run_instructions = InstructionSet::automatic;
  int slow = 1;                                   // its steps take this many times as long
  bool sick = false;                              // a diagnosis finds a fault
  std::map<Shard, std::vector<StoredCopy>> peer;  // of two steps each, the newest last
  std::pair<uint64_t, uint64_t> ordered;          // generation and step of the newest copy order
  Time receives_until = 0;                        // one copy at a time
  Link link;
  uint64_t term = 0, generation = 0;  // the newest that the agent knows
  uint64_t ended = 0;                 // newest generation that a trainer which dies has left
  bool run_over = false;              // it knows that the run is over
  Time alone_since = 0;               // when it lost its supervisor
  LeaderSearch search;
  uint64_t unreachable = 0, voted = 0;  // terms that live but cannot be reached from here
  Time unreachable_since = 0;
  // Its newest vote, and from when until when the supervisor reads it: late, and after its end.
  uint64_t vote_read = 0;
  Time read_from = 0, read_until = 0;
  std::deque<StepReport> reports;           // not recorded yet, for a new supervisor
  std::deque<ShardSaved> saved;             // the last ones, for a new supervisor
  Time folder_hung_until = 0;               // the run folder hangs on this host alone
  Unreadable unreadable;                    // the same for reads that fail
  std::optional<job::NodeChecked> checked;  // the result of its last diagnosis
  // The state page that a process of this host finds instead of the newest one, and until when.
  std::shared_ptr<const SupervisorState> old_page;
  Time finds_old_until = 0;
};

/// A generation, from the order to join it to its end.
struct Generation {
  struct Member {
    int trainer = 0;
    int32_t pid = 0;
    uint32_t group = 0, shard = 0;
    std::vector<uint32_t> weights = {};       // that its node has passed on
    bool helper = false;                      // only sends copies, then leaves
    std::vector<StoredCopy> taken = {};       // received: its shard, or shards of another cut
    std::optional<StoredCopy> incoming = {};  // its shard, not committed yet
    bool has_room = false;                    // the copy in its other side is gone
    bool ready = false;                       // it has restored the state
    int32_t agent = 0;                        // the pid of its node's agent
  };
  uint64_t number = 0, term = 0;
  job::Source source = job::Source::initialize;
  uint64_t begun_at = 0, step = 0;  // steps: the first and the newest state
  uint32_t groups = 0;
  uint32_t cut = 1;             // shards of a group
  std::vector<Member> members;  // helpers last
  std::map<int, int> index;     // trainer -> member
  struct Agent {
    int32_t pid = 0;
    bool ordered = false;  // the order has reached it
  };
  std::map<int, Agent> agents;  // by node: those that send copies
  std::vector<job::Move> moves;
  InstructionSet instructions = InstructionSet::automatic;
  std::vector<uint32_t> weights;     // of the order, as JoinGeneration's
  bool by_agents = false;            // as job::Join::by_agents
  size_t trainers = 0;               // number of members without helpers
  size_t joined = 0, applied = 0;    // number of members that have joined, applied the step
  bool leave = false, stop = false;  // ordered by the supervisor
  bool leaves_now = false, stops_now = false;  // agreed on in the vote of the step
  bool received = false;                       // all members have what they were sent
  size_t committed = 0, ready = 0;             // number of members
  bool over = false, restored = false;
  Time stalled_since = -1;
  /// Trainers make their shards of those of another cut.
  bool reshapes() const { return !moves.empty() && moves.front().shards != cut; }
};

/// What a publisher does, in this order. take: gives the folder of the shards a name of its own and
/// writes the manifest. replace: renames step-N to step-N.replaced. place: renames its folder to
/// step-N. clean: removes step-N.replaced.
enum class PublishStep : unsigned char { take, replace, place, clean };

/// A message to the publisher: steps are undone, or a shard is written.
struct PublisherJob {
  enum class Kind : unsigned char { collect, undo, prune };
  SavedStep saved;  // undo: the generation that begins, and its step; prune: the newest known step
  uint64_t shard = 0;
  uint32_t shards = 1;
  std::string error;
  Kind kind = Kind::collect;
};

/// The publisher of a supervisor (actors/checkpoint/checkpoint.cpp). It does one thing at a time.
struct Publisher {
  struct Pending {
    std::set<uint64_t> shards;
    bool failed = false;
  };
  std::deque<PublisherJob> jobs;
  bool busy = false;
  uint64_t generation = 0;
  std::map<uint64_t, Pending> pending;  // by step, of this generation
};

/// The journal of a supervisor (actors/supervisor/journal.cpp).
struct Journal {
  struct File {
    std::vector<RecordLine> lines;  // not known to be on the disk
    size_t written = 0;             // number of `lines` that are in the file
    bool half = false;              // and half of the next one
  };
  File ledger, metrics;
  std::shared_ptr<const SupervisorState> page;  // that the disk has not taken yet
  uint64_t generation = 0;                      // the newest number; perhaps not on the disk yet
  std::optional<uint64_t> mark;                 // to be set after the next sync
  uint64_t marked = 0;                          // lines up to this step are on the disk
  bool running = false, stopped = false;
};
enum class JournalStep : unsigned char { look, write, sync };

/// The process of a supervisor and that of its standby.
struct Supervisor {
  uint64_t term = 0;
  int host = 0;
  bool up = true;
  Time hung_until = 0;
  job::State job;
  job::State shadow;              // gets the same events: decide() must be a function (JOB-5)
  std::map<int, uint64_t> links;  // nodes that report to it -> id of the link
  std::set<int> expected;         // nodes that have not reported to it yet
  Time joined_at = 0;             // a node has joined last
  Time seen = 0;                  // its clock, at the last event
  Time beat = 0;                  // its last heartbeat in the run folder
  bool elected = false;           // its predecessor resigned, and no step was made since
  // As in StepLedger: the generation whose steps are recorded, the reports of each step, the newest
  // recorded step, and lines of later steps that are in the records already.
  uint64_t ledger_generation = 0;
  std::map<uint64_t, std::set<int>> step_reports;
  std::optional<uint64_t> recorded;
  std::optional<uint64_t> first_after;  // as in StepLedger
  uint64_t recorded_generation = 0;     // as in StepLedger
  std::optional<StateVersion> undone;   // as in StepLedger
  std::set<StepLine> beyond;
  Journal journal;
  std::vector<ShardSaved> unpublished;
  WrittenShards written;
  job::CopyRounds rounds{peer_every};
  Anomalies anomalies;
  size_t tasks_left = 0;  // of the round; for a planted bug
  Publisher publisher;
  std::deque<job::Event> deferred;  // received while pending_actions wait
  // They wait until the standby has the decision, and until the term files are read.
  std::vector<job::Action> pending_actions;
  Time decided_at = 0;
  bool stored = false;               // the standby has the decision
  uint64_t sequence = 0;             // of the state that the standby is to store
  uint64_t decision = 0, acted = 0;  // numbers of decisions: made, acted on by it
  int standby = -1;                  // node of the standby; -1: none
  bool room = false;                 // the standby has room on the disk for its claim
  bool standby_requested = false;
  std::shared_ptr<const SupervisorState> replica;  // the state that the standby has
};

/// A standby that has lost its supervisor.
struct Standby {
  int host = 0;
  int32_t pid = 0;      // of its agent
  bool silent = false;  // the loss was noticed by silence
  bool room = false;    // on the disk, for its claim
  std::shared_ptr<const SupervisorState> state;
  Failover failover = {};
  Time beat = 0, beat_at = 0;  // the newest heartbeat that it knows, and since when
};

/// A folder step-N, or step-N.replaced.
struct Checkpoint {
  uint64_t generation = 0;
  std::map<uint32_t, StoredCopy> shards;
  bool readable = true;  // false: damaged
};

/// The shared file system.
struct Disk {
  Time failing_until = 0, hung_until = 0;
  Unreadable unreadable;        // on all hosts
  bool number_damaged = false;  // the file of the number that follows holds none, for ever
  uint64_t generation = 0;      // the newest number that was used
  uint64_t claimed_above = 0;   // of the newest term file: its supervisor uses greater numbers
  uint64_t newest_term = 0, resigned_term = 0;
  Time claimed_at = 0;                           // the newest term
  std::shared_ptr<const SupervisorState> state;  // the newest page
  struct Folder {
    uint64_t owner = 0;  // term of the publisher whose name it has; 0: none, shards are written
    std::map<uint32_t, StoredCopy> shards;
  };
  struct Line {
    RecordLine line;
    uint64_t term = 0;  // of its writer
    bool whole = true;  // false: half of a line, or garbage
    bool ended = true;  // false: what is written next continues it
    bool synced = false;
  };
  std::vector<Line> metrics, ledger;  // in the order of the file
  InstructionSet instructions = InstructionSet::automatic;
  std::map<SavedStep, Folder> folders;             // not published
  std::map<uint64_t, Checkpoint> steps, replaced;  // step-N, step-N.replaced
  bool ever_published = false;                     // those that were set aside stay on the disk
};

class Cluster {
 public:
  explicit Cluster(const Options& options);
  ~Cluster();
  /// Runs the history to its end. Throws Violation.
  void run();

  // --- Faults (faults.cpp) ---
  void kill_trainer(int trainer, Time no_restart_for);
  void hang_trainer(int trainer, Time how_long);
  /// Like hang_trainer(), but its process shows signs of life, so that its node does not kill it.
  void stall_trainer(int trainer, Time how_long);
  void kill_node(int node, Time back_after);
  void hang_node(int node, Time how_long);
  /// Holds back, or lets pass, messages from node `from` to node `to`; -1: all nodes.
  void block(int from, int to, bool blocked);
  void kill_supervisor();
  void hang_supervisor(Time how_long);
  void kill_standby();
  /// Stops all processes, as `scontrol suspend` does. They wake within a second of each other.
  void stop_all(Time how_long);
  /// A process claims a term although another supervisor leads.
  void start_twice(int host);
  /// The launcher of the run has died, and a user starts the run again.
  void train_again();
  void damage_peer_copy(int node);
  /// Makes the newest checkpoint unreadable.
  void damage_checkpoint();
  /// For some time, processes of this host find the state page as it is now. Does nothing before the
  /// first generation.
  void keep_old_page(int node, Time how_long);
  /// Cuts the node off while a step is applied. The other nodes become slow, and trainers fail
  /// again about when it is back.
  void cut_off_during_step(int node);
  /// A host joins the run, and is cut off from all others at first for so long.
  void join_host(Time cut_off);
  /// Sends a user's request to the leading supervisor, if there is one.
  void request(const job::Event& event);
  /// Delivers an event of an older generation once more.
  void replay_stale();

  Options options;
  Random random;
  Time now = 0, quiet_at = 0;  // quiet_at: nothing fails any more
  Time slow_links_until = 0, step_time = 0;
  Disk disk;
  std::vector<Node> nodes;
  std::vector<Trainer> trainers;
  std::vector<std::unique_ptr<Supervisor>> supervisors;
  std::map<uint64_t, std::shared_ptr<Generation>> generations;
  std::map<std::string, uint64_t> faults;  // by kind
  size_t causes = 0;                       // how often these may have made one node fail
  std::map<std::string, int> node_index, trainer_index;
  std::unique_ptr<Invariants> invariants;
  uint64_t events = 0;
  bool mismatch_due = false;             // one trainer computes the next step wrongly
  uint64_t wrong_made = 0;               // number of steps computed wrongly
  bool cut_off_due = false;              // a node is cut off during the next step
  bool interrupt_due = false;            // something dies while the next moves are carried out
  bool freeze_publisher_due = false;     // the leader hangs between two acts of its publisher
  bool freeze_journal_due = false;       // the leader hangs between two acts of its journal
  bool freeze_claim_due = false;         // a supervisor hangs between its claim and its first act
  bool stop_due = false;                 // all processes are stopped after the next fence
  Time stopped_at = 0, stopped_for = 0;  // the newest such stop
  std::optional<Unreadable> unreadable_due;  // for how long reads fail after the next claim
  bool refused = false;                      // a supervisor has ended the run before its first act
  int transit_damage_due = 0;                // number of transfers that will arrive damaged
  std::set<std::pair<std::string, uint64_t>> rejected;  // (source node, step) of damaged transfers
  std::optional<job::Shutdown> ended;
  std::deque<std::string> log;  // the last events

  /// Runs `what` at now + delay.
  void after(Time delay, Message what);
  void log_line(const std::string& text);
  bool logging() const { return options.remember || options.verbose; }
  /// The supervisor of the newest term; null if its process is not up.
  Supervisor* leader();
  bool reachable(int from, int to) const;
  bool hung(const Node& node) const { return node.hung_until > now; }
  int node_of(int trainer) const { return trainer / options.trainers; }
  /// A fault keeps trainers of the node from starting.
  bool kept_down(int node) const;
  /// When the run folder answers on this host.
  Time folder_works_at(int host) const;
  /// The node reports to this supervisor.
  bool connected(const Supervisor& supervisor, int node) const;
  /// What a trainer finds when it opens the checkpoint of a step; null: nothing.
  const Checkpoint* checkpoint_of(uint64_t step) const;
  /// The steps in the records, as readers and new supervisors find them.
  RecordedSteps recorded_steps() const;

 private:
  // cluster.cpp: links, agents
  void send(int node, int direction, Message what);
  void deliver_next(int node, int direction, uint64_t id);
  void break_link(int node, bool supervisor_knows_at_once);
  void notice_loss(int node, Supervisor* supervisor, uint64_t id);
  void notice_end(int node, Supervisor* supervisor, int32_t pid);
  void notice_death(int trainer, int32_t agent);
  void check_links();
  void leave_deposed_leader(int node);
  void find_supervisor(int node);
  void report_to_supervisor(int node);
  /// Spares may run on older hosts, and come back on others.
  void choose_host(int node);
  void start_agent(int node);
  void end_agent(int node);
  void start_trainer(int trainer, Time delay);
  void to_supervisor(int node, const job::Event& event);
  void report_idle(int trainer, job::TrainerIdle idle);
  void report_step(int node, StepReport report);
  void to_trainer(int trainer, Time delay, Message what);
  /// fence: that this answers; 0: none.
  void report_peer_copies(int node, uint64_t fence = 0);
  void report_memory(int trainer);

  // training.cpp: generations
  double slowness(const Generation& g) const;
  void join_members(int node, const std::shared_ptr<Generation>& g);
  bool all_answer(const std::shared_ptr<Generation>& g,
                  void (Cluster::*again)(std::shared_ptr<Generation>));

  // restore.cpp: the state that a generation begins with
  void transfer(std::shared_ptr<Generation> g);
  int sender_of(const job::Move& move) const;
  const StoredCopy* copy_of_node(int node, const job::Move& move, const Generation& g) const;
  bool send_copies(Generation& g);
  bool take_room(const Generation& g, Generation::Member& m);
  bool load_states(Generation& g);
  std::optional<StoredCopy> shard_of(const Generation& g, const Generation::Member& m,
                                     const StoredCopy& like);
  void end_transfer(std::shared_ptr<Generation> g);
  using RankAct = void (Cluster::*)(const std::shared_ptr<Generation>&, Generation::Member&);
  void each_rank(const std::shared_ptr<Generation>& g, RankAct act);
  void at_rank(const std::shared_ptr<Generation>& g, size_t rank, RankAct act);
  void commit_rank(const std::shared_ptr<Generation>& g, Generation::Member& m);
  void end_commit(std::shared_ptr<Generation> g);
  void free_rank(const std::shared_ptr<Generation>& g, Generation::Member& m);
  void rank_ready(const std::shared_ptr<Generation>& g, Generation::Member& m);
  void interrupt_restore(const Generation& g);

  // training.cpp: steps
  void begin_step(std::shared_ptr<Generation> g);
  void vote(std::shared_ptr<Generation> g);
  void apply(std::shared_ptr<Generation> g, size_t first, size_t count);
  bool write_step(Trainer& trainer, Generation& g);
  bool compare_replicas(Generation& g);
  void step_applied(const std::shared_ptr<Generation>& g);
  void store_copies(Generation& g, const Generation::Member& m, uint64_t step);
  void finish(const std::shared_ptr<Generation>& g);
  void abort_generation(Generation& g, job::Fault fault, const std::string& suspect);
  void leave(int trainer, uint64_t generation, job::Fault fault, const std::string& suspect,
             uint64_t step);
  void fence(int trainer, uint64_t generation);
  bool all_members_up(const Generation& g, bool& hung) const;

  // leaving.cpp: nodes that leave a run without a supervisor
  bool holds_state(int node) const;
  void leave_if_alone(int node);
  void leave_run(int node, const std::string& reason);

  // votes.cpp: nodes that cannot reach a supervisor which lives
  void vote(Node& node, const Supervisor& against);
  bool votes(const Node& node, uint64_t term) const;
  void withdraw_vote(Node& node);
  bool others_vote(const Node& node) const;
  bool resigns(const Supervisor& supervisor) const;
  void resign(Supervisor& supervisor);

  // copies.cpp: copies on peer nodes
  void stage_copy(int trainer);
  void copy_to_peers(Supervisor& by, uint64_t step);
  void hear_copies(Supervisor& by);
  void take_order(int node, const CopyToPeers& order);
  void send_copy(int node, const CopyToPeers& order, const CopyTask& task, StoredCopy copy);
  void copy_sent(int node, const CopyToPeers& order, const CopyTask& task,
                 const std::string& error);

  // disk.cpp: checkpoints
  void save_shard(const StoredCopy& copy, int node);
  void save_from_memory(int node, const Generation& g);
  void forget_damaged(int node, const job::Move& move);
  void shard_saved(int node, ShardSaved saved);
  void publish_shards(Supervisor& by);
  void run_publisher(Supervisor& by);
  void collect(Supervisor& by, const PublisherJob& job);
  void publish(Supervisor& by, const SavedStep& saved, PublishStep step, bool looked);
  bool publish_step(Supervisor& by, const SavedStep& saved, PublishStep step);
  void prune(Supervisor& by, uint64_t until_step, bool looked);
  bool remove_one(uint64_t until_step);
  std::vector<uint64_t> checkpoint_steps() const;
  void end_publishing(Supervisor& by, const SavedStep& saved, const std::string& error);
  void undo_published(Supervisor& by, const SavedStep& undone,
                      const std::optional<std::set<SavedStep>>& found);
  void revoke_publishers();
  std::vector<uint64_t> find_checkpoints(const job::State* job);
  bool may_rename(const Supervisor& by) const;
  Time wakes_at(const Supervisor& supervisor) const;

  // claims.cpp: supervisors that begin
  struct Claim {
    int host = 0;
    int32_t agent = 0;  // its pid
    uint64_t term = 0;
    std::shared_ptr<const SupervisorState> from;  // the state that the standby has
    std::pair<size_t, size_t> lines;              // of ledger and metrics when it was made
    Time claimed = 0;
    bool page_read = false;                  // of the predecessor
    std::optional<Time> failing_since = {};  // reads have failed since then
    bool stood_by = false;
  };
  /// The process that prepares to lead.
  struct Preparing {
    uint64_t term = 0;
    int host = 0;
    int32_t agent = 0;
  };
  void succeed(Supervisor& lost, std::shared_ptr<Standby> standby);
  void claim(int host, std::shared_ptr<const SupervisorState> from, bool room = false);
  void read_state(Claim& claim) const;
  void prepare(Claim claim);
  bool unreadable(int host, Time Unreadable::*what) const;
  bool prepares() const;
  bool reads(Claim& claim, Time Unreadable::*what);
  void step_down(const Claim& claim);
  void refuse(Code code, const std::string& reason);
  void start_supervisor(const Claim& claim);
  void take_over(Supervisor& by, const SupervisorState& from, const RecordsEnd& records);

  // records.cpp: lines of committed steps
  void record_step(Supervisor& by, uint64_t generation, uint64_t step);
  void set_mark(Supervisor& by, uint64_t step);
  void use_generation(Supervisor& by, uint64_t generation);
  void run_journal(Supervisor& by, Time delay);
  void journal(Supervisor& by, JournalStep step);
  bool write_line(const Supervisor& by, Journal::File& own, std::vector<Disk::Line>& file);
  void mend_records(const Claim& claim);
  void settle_journal(Supervisor& by);
  void mark(Supervisor& by, uint64_t step);
  void forget_reports(Node& node, uint64_t step);
  void lose_unsynced(uint64_t term);

  // supervisors.cpp: the supervisor around decide()
  std::shared_ptr<const SupervisorState> snapshot(const Supervisor& by) const;
  void notice_supervisor_loss(Supervisor& supervisor, bool silent);
  void tick(Supervisor& supervisor);
  bool behind(const Supervisor& supervisor, int node) const;
  void tell_decided(Supervisor& supervisor, int node);
  void node_connected(Supervisor& supervisor, int node, uint64_t link, int32_t pid);
  void step_done(Supervisor& supervisor, const StepReport& report);
  void measure(Supervisor& supervisor, uint64_t step);
  void notice_stop(Supervisor& supervisor);
  void handle(Supervisor& supervisor, const job::Event& event);
  void submit(Supervisor& supervisor, std::vector<job::Action> actions);
  std::shared_ptr<const SupervisorState> number_state(Supervisor& supervisor);
  void replicate(Supervisor& supervisor, std::shared_ptr<const SupervisorState> kept);
  bool may_act_unseen(const Supervisor& supervisor) const;
  void act(Supervisor& supervisor, uint64_t sequence);

  // orders.cpp: what its decisions make nodes do
  void command(Supervisor& supervisor, int node, const char* what, std::function<void()> effect);
  void send_fence(Supervisor& supervisor, int node, uint64_t generation);
  void record_up_to(Supervisor& by, uint64_t step);
  void record_committed(Supervisor& by, const job::Join& order);
  void begin_generation(Supervisor& supervisor, const job::Join& order);
  void check_node(Supervisor& supervisor, int node);
  void carry_out(Supervisor& supervisor, const job::Action& action);

  // bugs.cpp
  void plant_bug(Supervisor& supervisor, const job::Event& event, job::Decision& decision);

  struct Due {
    Time time;
    uint64_t order;
    uint32_t slot;
    bool operator>(const Due& o) const { return time != o.time ? time > o.time : order > o.order; }
  };
  struct Queue : std::priority_queue<Due, std::vector<Due>, std::greater<>> {
    void delay(Time by) {
      for (Due& due : c) due.time += by;
    }
  };
  Queue due_;
  std::vector<Message> slots_;
  std::vector<uint32_t> free_;
  uint64_t order_ = 0, links_ = 0;
  int32_t pids_ = 100;
  Preparing preparing_;
  std::vector<uint8_t> blocked_;  // matrix [from][to]
  int blocks_ = 0;
  std::deque<job::Event> old_events_;  // for replay_stale()
};

/// An event or action in one line, for the log and for comparing decisions.
std::string text_of(const job::Event& event);
std::string text_of(const job::Action& action);

}  // namespace simplescale::simulation
