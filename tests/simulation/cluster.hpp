// A simulated cluster in virtual time: nodes with their agents and trainers, links that delay,
// block and break, a shared disk, and supervisors that run the real decide() (actors/job). One
// thread; a history is a function of Options alone.
//
// What is simulated and what is not: agents, trainers, collectives, transfers and the supervisor
// actor around decide() are small stand-ins of the real ones with the same messages in the same
// order; decisions, layouts and moves are the real code. A copy of a shard's state is its content's
// hash, a function of (shard, step, the generation that made it) unless something went wrong with
// it: a step that is made again comes out differently.
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
constexpr Time silence = second;  // until somebody silent counts as lost
constexpr Time collective_timeout = 8 * second;
constexpr uint64_t rows = 64;  // of a step
constexpr uint64_t peer_every = 5, disk_every = 10;

/// The true content of a shard's state after a step, as generation `made` made it.
uint64_t content_of(uint32_t shard, uint64_t step, uint64_t made);

struct StateCopy {
  uint32_t shard = 0;
  uint64_t step = 0;
  uint64_t content = 0, checksum = 0;
  uint64_t generation = 0;  // what it is marked with
  uint64_t made = 0;        // the truth, which nobody in the cluster knows
  bool good() const { return content == content_of(shard, step, made); }
  HeldStep held() const { return {step, generation}; }
};

struct Trainer {
  std::string name;
  bool up = false;
  int32_t pid = 0;
  Time hung_until = 0;
  std::vector<StateCopy> copies;  // oldest first, two at most; in its node's memory
  uint32_t shard = 0;
  bool writing = false;  // the next step, over the older of two copies
  uint64_t generation = 0, fenced = 0;
  Time no_restart_until = 0, last_message = 0;
  // What its agent knows.
  bool known = false;
  uint64_t told_generation = 0;
  std::optional<job::TrainerIdle> idle;
};

struct StepReport {
  uint64_t generation = 0, step = 0;
  std::vector<int> trainers;
};

struct Supervisor;
using Message = std::function<void()>;
struct Link {
  Supervisor* supervisor = nullptr;  // as the agent sees it
  uint64_t id = 0;
  bool up = false;
  Time last[2] = {0, 0};  // to the supervisor, to the agent
  std::deque<Message> queue[2];
};

struct Node {
  std::string name;
  bool up = false;
  int32_t pid = 0;
  Time hung_until = 0;
  int slow = 1;
  bool sick = false;  // its diagnosis fails
  std::map<uint32_t, StateCopy> peer;
  Link link;
  uint64_t epoch = 0, generation = 0;
  bool run_over = false;  // it was told that the run is
  Time alone_since = 0;
  std::deque<StepReport> reports;
  std::optional<job::NodeChecked> checked;
};

/// One order to join, and what becomes of it.
struct Generation {
  struct Member {
    int trainer = 0;
    int32_t pid = 0;
    uint32_t group = 0, shard = 0;
    bool helper = false;
    std::optional<StateCopy> incoming;
    bool is_source = false;
  };
  uint64_t number = 0, epoch = 0;
  job::Source source = job::Source::initialize;
  uint64_t begun_at = 0, step = 0;
  uint32_t groups = 0;
  std::vector<Member> members;  // helpers last
  std::map<int, int> index;     // trainer -> member
  std::vector<job::Move> moves;
  size_t trainers = 0;  // members without helpers
  size_t joined = 0, applied = 0;
  bool leave = false, stop = false, leaves_now = false, stops_now = false;
  bool over = false, restored = false;
  Time stalled_since = -1;
};

/// A supervisor's process and the standby's of it.
struct Supervisor {
  uint64_t epoch = 0;
  int host = 0;
  bool up = true;
  Time hung_until = 0;
  job::State job, shadow;  // shadow: fed with the same, to see that decide() is a function (JOB-5)
  std::map<int, uint64_t> links;  // nodes it hears -> link
  std::set<int> expected;         // nodes that have not come to it yet
  std::map<uint64_t, std::set<int>> step_reports;
  uint64_t recorded = 0;
  std::deque<job::Event> deferred;
  std::vector<job::Action> pending_actions;
  uint64_t sequence = 0, acted = 0;
  int standby = -1;  // its node
  bool standby_requested = false;
  std::optional<job::State> replica;
  uint64_t replica_sequence = 0;
};

struct Disk {
  Time failing_until = 0, hung_until = 0;
  uint64_t generation = 0;  // the newest that was written down
  uint64_t newest_epoch = 0;
  std::shared_ptr<job::State> state;  // what was decided last, and its number
  uint64_t sequence = 0;
  std::map<uint64_t, std::map<uint32_t, StateCopy>> shards;
  std::set<uint64_t> published;
};

class Cluster {
 public:
  explicit Cluster(const Options& options);
  ~Cluster();
  /// The whole history. Throws Violation.
  void run();

  // --- Faults (faults.cpp) ---
  void kill_trainer(int trainer, Time no_restart_for);
  void hang_trainer(int trainer, Time how_long);
  void kill_node(int node, Time back_after);
  void hang_node(int node, Time how_long);
  /// Messages from `from` to `to` do not pass; -1: nobody's.
  void block(int from, int to, bool blocked);
  void kill_supervisor();
  void hang_supervisor(Time how_long);
  void kill_standby();
  void damage_peer_copy(int node);
  /// Cut off while a step is applied; the others get on slowly and fail again about when it is
  /// back.
  void cut_off_during_step(int node);
  void request(const job::Event& event);  // somebody's wish, to whoever is supervisor
  void replay_stale();

  Options options;
  Random random;
  Time now = 0, quiet_at = 0;
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
  bool mismatch_due = false;  // the next step applied is computed wrongly by one
  uint64_t wrong_made = 0;
  bool cut_off_due = false;                             // somebody is left behind in the next step
  int transit_damage_due = 0;                           // transfers that arrive damaged
  std::set<std::pair<std::string, uint64_t>> rejected;  // sources of transfers that arrived damaged
  std::optional<job::Shutdown> ended;
  std::deque<std::string> log;  // the last events

  void after(Time delay, Message what);
  void log_line(const std::string& text);
  bool logging() const { return options.remember || options.verbose; }
  Supervisor* leader();  // of the highest epoch, if its process is up
  bool reachable(int from, int to) const;
  bool hung(const Node& node) const { return node.hung_until > now; }
  int node_of(int trainer) const { return trainer / options.trainers; }
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
  void report_peer_copies(int node);

  // training.cpp: generations
  void join_members(int node, const std::shared_ptr<Generation>& g);
  void transfer(std::shared_ptr<Generation> g);
  void commit_restored_state(Generation& g, Generation::Member& m);
  void begin_step(std::shared_ptr<Generation> g);
  void vote(std::shared_ptr<Generation> g);
  void apply(std::shared_ptr<Generation> g, size_t first, size_t count);
  bool write_step(Trainer& trainer, Generation& g);
  bool compare_replicas(Generation& g);
  void step_applied(const std::shared_ptr<Generation>& g);
  void store_copies(Generation& g, const Generation::Member& m, uint64_t step);
  /// generation: in which it was made; 0: replicas have agreed on it, and finish.
  void save_shard(const StateCopy& copy, int node, uint64_t generation, int tries);
  void finish(const std::shared_ptr<Generation>& g);
  void abort_generation(Generation& g, job::Fault fault, const std::string& suspect);
  void leave(int trainer, uint64_t generation, job::Fault fault, const std::string& suspect,
             uint64_t step);
  void fence(int trainer, uint64_t generation);
  bool all_reachable(const Generation& g, bool& hung) const;

  // supervisors.cpp: what stands around decide()
  void start_supervisor(int host, std::optional<job::State> from, uint64_t sequence);
  void notice_supervisor_loss(Supervisor& supervisor, bool silent);
  void tick(Supervisor& supervisor);
  void handle(Supervisor& supervisor, const job::Event& event);
  void submit(Supervisor& supervisor, std::vector<job::Action> actions);
  void act(Supervisor& supervisor, uint64_t sequence);
  void carry_out(Supervisor& supervisor, const job::Action& action);
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
  std::vector<uint8_t> blocked_;  // from x to
  int blocks_ = 0;
  std::deque<job::Event> old_events_;  // to be sent again, as stale ones
};

/// One line about an event or action, for the log and for comparing decisions.
std::string text_of(const job::Event& event);
std::string text_of(const job::Action& action);

}  // namespace simplescale::simulation
