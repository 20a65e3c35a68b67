// A simulated cluster in virtual time: nodes with their agents and trainers, links that delay,
// block and break, a shared disk, and supervisors that run the real decide(). One thread. A history
// is a function of Options alone.
//
//   real       decisions, layouts and moves (actors/supervisor/decision)
//   simulated  agents, trainers, collectives, transfers, and the supervisor actor around decide():
//              small stand-ins with the same messages in the same order
//
// A copy of a shard's state is a hash of its content: a function of (shard, step, generation that
// made it), unless a fault damaged it. A step that is made again has other bits.
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

#include "actors/supervisor/decision/decide.hpp"
#include "tests/simulation/options.hpp"

namespace simplescale::simulation {

class Invariants;

using Time = int64_t;  // us
constexpr Time ms = 1000, second = 1'000'000;
constexpr Time silence = second;  // after which a silent process counts as lost
constexpr Time collective_timeout = 8 * second;
constexpr uint64_t rows = 64;  // samples of a step
constexpr uint64_t peer_every = 5, disk_every = 10;

/// The correct content of a shard's state after `step`, as generation `made` makes it.
uint64_t content_of(uint32_t shard, uint64_t step, uint64_t made);

struct StateCopy {
  uint32_t shard = 0;
  uint64_t step = 0;
  uint64_t content = 0, checksum = 0;
  uint64_t generation = 0;  // the label of the copy, as in HeldStep
  uint64_t made = 0;        // the generation that made it; known to the invariants alone
  bool good() const { return content == content_of(shard, step, made); }
  HeldStep held() const { return {step, generation}; }
};

struct Trainer {
  std::string name;
  bool up = false;
  int32_t pid = 0;
  Time hung_until = 0;            // a hung process handles messages afterwards
  std::vector<StateCopy> copies;  // in the node's memory; the oldest first, two at most
  uint32_t shard = 0;
  bool writing = false;     // the next step replaces the older of two copies
  uint64_t generation = 0;  // that it is in; 0: none
  uint64_t fenced = 0;      // it joins no older generation
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

struct Node {
  std::string name;
  bool up = false;
  int32_t pid = 0;
  Time hung_until = 0;
  int slow = 1;       // its steps take this many times as long
  bool sick = false;  // a diagnosis finds a fault
  std::map<uint32_t, StateCopy> peer;
  Link link;
  uint64_t epoch = 0, generation = 0;       // the newest that the agent knows
  uint64_t ended = 0;                       // newest generation that a trainer which dies has left
  bool run_over = false;                    // it knows that the run is over
  Time alone_since = 0;                     // when it lost its supervisor
  std::deque<StepReport> reports;           // the last ones, for a new supervisor
  std::optional<job::NodeChecked> checked;  // the result of its last diagnosis
};

/// A generation, from the order to join it to its end.
struct Generation {
  struct Member {
    int trainer = 0;
    int32_t pid = 0;
    uint32_t group = 0, shard = 0;
    bool helper = false;                // only sends copies, then leaves
    std::optional<StateCopy> incoming;  // received
    bool is_source = false;             // sends from its own memory
  };
  uint64_t number = 0, epoch = 0;
  job::Source source = job::Source::initialize;
  uint64_t begun_at = 0, step = 0;  // steps: the first and the newest state
  uint32_t groups = 0;
  std::vector<Member> members;  // helpers last
  std::map<int, int> index;     // trainer -> member
  std::vector<job::Move> moves;
  size_t trainers = 0;               // number of members without helpers
  size_t joined = 0, applied = 0;    // number of members that have joined, applied the step
  bool leave = false, stop = false;  // ordered by the supervisor
  bool leaves_now = false, stops_now = false;  // agreed on in the vote of the step
  bool over = false, restored = false;
  Time stalled_since = -1;
};

/// The process of a supervisor and that of its standby.
struct Supervisor {
  uint64_t epoch = 0;
  int host = 0;
  bool up = true;
  Time hung_until = 0;
  job::State job;
  job::State shadow;              // gets the same events: decide() must be a function (JOB-5)
  std::map<int, uint64_t> links;  // nodes that report to it -> id of the link
  std::set<int> expected;         // nodes that have not reported to it yet
  std::map<uint64_t, std::set<int>> step_reports;  // step -> trainers that have reported it
  uint64_t recorded = 0;                           // the newest step that all have reported
  std::deque<job::Event> deferred;                 // received while pending_actions wait
  std::vector<job::Action> pending_actions;        // wait until the standby has the decision
  uint64_t sequence = 0, acted = 0;                // numbers of decisions: made, acted on
  int standby = -1;                                // node of the standby; -1: none
  bool standby_requested = false;
  std::optional<job::State> replica;  // the state that the standby has
  uint64_t replica_sequence = 0;
};

/// The shared file system.
struct Disk {
  Time failing_until = 0, hung_until = 0;
  uint64_t generation = 0;  // the newest number that was used
  uint64_t newest_epoch = 0;
  std::shared_ptr<job::State> state;                         // after the last decision
  uint64_t sequence = 0;                                     // its number
  std::map<uint64_t, std::map<uint32_t, StateCopy>> shards;  // step -> shard -> copy
  std::set<uint64_t> published;                              // steps of complete checkpoints
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
  void damage_peer_copy(int node);
  /// Cuts the node off while a step is applied. The other nodes become slow, and trainers fail
  /// again about when it is back.
  void cut_off_during_step(int node);
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
  std::map<std::string, int> node_index, trainer_index;
  std::unique_ptr<Invariants> invariants;
  uint64_t events = 0;
  bool mismatch_due = false;   // one trainer computes the next step wrongly
  uint64_t wrong_made = 0;     // number of steps computed wrongly
  bool cut_off_due = false;    // a node is cut off during the next step
  int transit_damage_due = 0;  // number of transfers that will arrive damaged
  std::set<std::pair<std::string, uint64_t>> rejected;  // (source node, step) of damaged transfers
  std::optional<job::Shutdown> ended;
  std::deque<std::string> log;  // the last events

  /// Runs `what` at now + delay.
  void after(Time delay, Message what);
  void log_line(const std::string& text);
  bool logging() const { return options.remember || options.verbose; }
  /// The supervisor of the newest epoch; null if its process is not up.
  Supervisor* leader();
  bool reachable(int from, int to) const;
  bool hung(const Node& node) const { return node.hung_until > now; }
  int node_of(int trainer) const { return trainer / options.trainers; }
  /// The node reports to this supervisor.
  bool connected(const Supervisor& supervisor, int node) const;

 private:
  // cluster.cpp: links, agents
  void send(int node, int direction, Message what);
  void deliver_next(int node, int direction, uint64_t id);
  void break_link(int node, bool supervisor_knows_at_once);
  void notice_loss(int node, Supervisor* supervisor, uint64_t id);
  void notice_death(int trainer, int32_t agent);
  void check_links();
  void find_supervisor(int node);
  void report_to_supervisor(int node);
  void start_agent(int node);
  void start_trainer(int trainer, Time delay);
  void to_supervisor(int node, const job::Event& event);
  void report_idle(int trainer, job::TrainerIdle idle);
  void report_step(int node, StepReport report);
  void to_trainer(int trainer, Time delay, Message what);
  /// fence: that this answers; 0: none.
  void report_peer_copies(int node, uint64_t fence = 0);
  void report_memory(int trainer);

  // training.cpp: generations
  void join_members(int node, const std::shared_ptr<Generation>& g);
  void transfer(std::shared_ptr<Generation> g);
  const StateCopy* copy_of_node(int node, const job::Move& move) const;
  bool send_copies(Generation& g);
  bool load_states(Generation& g);
  void end_transfer(const std::shared_ptr<Generation>& g);
  void commit_restored_state(Generation& g, Generation::Member& m);
  void begin_step(std::shared_ptr<Generation> g);
  void vote(std::shared_ptr<Generation> g);
  void apply(std::shared_ptr<Generation> g, size_t first, size_t count);
  bool write_step(Trainer& trainer, Generation& g);
  bool compare_replicas(Generation& g);
  void step_applied(const std::shared_ptr<Generation>& g);
  void store_copies(Generation& g, const Generation::Member& m, uint64_t step);
  /// generation: that made the state; 0: of a last step, on which replicas have agreed.
  void save_shard(const StateCopy& copy, int node, uint64_t generation, int tries);
  void finish(const std::shared_ptr<Generation>& g);
  void abort_generation(Generation& g, job::Fault fault, const std::string& suspect);
  void leave(int trainer, uint64_t generation, job::Fault fault, const std::string& suspect,
             uint64_t step);
  void fence(int trainer, uint64_t generation);
  bool all_members_up(const Generation& g, bool& hung) const;

  // supervisors.cpp: the supervisor around decide()
  void start_supervisor(int host, std::optional<job::State> from, uint64_t sequence);
  void notice_supervisor_loss(Supervisor& supervisor, bool silent);
  void tick(Supervisor& supervisor);
  void handle(Supervisor& supervisor, const job::Event& event);
  void submit(Supervisor& supervisor, std::vector<job::Action> actions);
  void act(Supervisor& supervisor, uint64_t sequence);
  void carry_out(Supervisor& supervisor, const job::Action& action);
  void send_fence(Supervisor& supervisor, int node, uint64_t generation);
  void begin_generation(Supervisor& supervisor, const job::Join& order);
  void check_node(Supervisor& supervisor, int node);
  void command(Supervisor& supervisor, int node, const char* what, std::function<void()> effect);
  void node_connected(Supervisor& supervisor, int node, uint64_t link, int32_t pid);
  void step_done(Supervisor& supervisor, const StepReport& report);
  void publish_if_complete(uint64_t step);
  void plant_bug(Supervisor& supervisor, const job::Event& event, job::Decision& decision);

  struct Due {
    Time time;
    uint64_t order;
    uint32_t slot;
    bool operator>(const Due& o) const { return time != o.time ? time > o.time : order > o.order; }
  };
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::vector<Message> slots_;
  std::vector<uint32_t> free_;
  uint64_t order_ = 0, links_ = 0;
  int32_t pids_ = 100;
  std::vector<uint8_t> blocked_;  // matrix [from][to]
  int blocks_ = 0;
  std::deque<job::Event> old_events_;  // for replay_stale()
};

/// An event or action in one line, for the log and for comparing decisions.
std::string text_of(const job::Event& event);
std::string text_of(const job::Action& action);

}  // namespace simplescale::simulation
