// The messages of the control plane as plain C++ structs. Each has a struct of the same fields in
// protocol.capnp; the list SS_MESSAGES at the end relates the two by name. To add a message, write the
// struct and its SS_FIELDS line here, add its name to SS_MESSAGES, and add a struct and a member of
// Body to the schema. check_messages() (transport/caf/codec.hpp) compares the two at start.
//
// Fields may be: bool, (u)int8..64, float, double, std::string, std::vector<uint8_t> (bytes),
// another struct with SS_FIELDS, and std::vector of any of these. Tensors are not sent in messages
// but over the data plane.
#pragma once

#include <caf/allowed_unsafe_message_type.hpp>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/observe/health.hpp"
#include "runtime/training/rate_change.hpp"
#include "runtime/training/state_version.hpp"
#include "runtime/training/task_score.hpp"

/// Lists the fields of a message in order: SS_FIELDS(Ping, x.id, x.payload). Defines `inspect`,
/// with which CAF and convert.hpp visit the fields, and the names that are compared with the
/// schema.
#define SS_FIELDS(Type, ...)                                       \
  inline const char* message_name(const Type*) {                   \
    return #Type;                                                  \
  }                                                                \
  inline const char* message_fields(const Type*) {                 \
    return "" #__VA_ARGS__;                                        \
  }                                                                \
  template <class Inspector>                                       \
  typename Inspector::result_type inspect(Inspector& f, Type& x) { \
    static_cast<void>(x);                                          \
    return f(__VA_ARGS__);                                         \
  }                                                                \
  static_assert(true, "")

namespace simplescale {

/// Answered by a Pong with the same id and payload. Measures a link.
struct Ping {
  uint64_t id = 0;
  std::string payload;
  bool operator==(const Ping&) const = default;
};
SS_FIELDS(Ping, x.id, x.payload);

struct Pong {
  uint64_t id = 0;
  std::string payload;
  bool operator==(const Pong&) const = default;
};
SS_FIELDS(Pong, x.id, x.payload);

/// Agent to supervisor: registers a node, also with a new supervisor during the run. term: of the
/// agent's previous supervisor, 0 for none. address: of the agent's transport. data_address: of its
/// data plane.
struct NodeHello {
  std::string node;
  std::string host;
  int32_t pid = 0;
  uint32_t trainers = 0;
  uint64_t term = 0;
  std::string address;
  std::vector<uint8_t> data_address;
  bool operator==(const NodeHello&) const = default;
};
SS_FIELDS(NodeHello, x.node, x.host, x.pid, x.trainers, x.term, x.address, x.data_address);

/// Trainer to its node's agent: registers the trainer. data_address: of its data plane.
struct TrainerHello {
  std::string trainer;
  int32_t pid = 0;
  std::vector<uint8_t> data_address;
  bool operator==(const TrainerHello&) const = default;
};
SS_FIELDS(TrainerHello, x.trainer, x.pid, x.data_address);

SS_FIELDS(StateVersion, x.step, x.generation);

/// Node to supervisor: a trainer is up. held: the steps of `shard` whose state is in its memory.
/// generation: in which it trains (for a new supervisor), 0 for none.
struct TrainerUp {
  std::string trainer;
  int32_t pid = 0;
  std::vector<uint8_t> data_address;
  uint32_t shard = 0;
  std::vector<StateVersion> held;
  uint64_t generation = 0;
  bool operator==(const TrainerUp&) const = default;
};
SS_FIELDS(TrainerUp, x.trainer, x.pid, x.data_address, x.shard, x.held, x.generation);

/// Node to supervisor: a trainer's process has ended. restarting: the node starts it again.
struct TrainerDown {
  std::string trainer;
  std::string reason;
  bool restarting = false;
  bool operator==(const TrainerDown&) const = default;
};
SS_FIELDS(TrainerDown, x.trainer, x.reason, x.restarting);

/// Member::group of a trainer or agent that takes part only in state transfers.
inline constexpr uint32_t no_group = UINT32_MAX;

/// One trainer of a generation, or an agent ("n1") that sends from its node's memory.
struct Member {
  std::string trainer;
  uint32_t group = 0;
  uint32_t shard = 0;
  std::vector<uint8_t> data_address;
  bool operator==(const Member&) const = default;
};
SS_FIELDS(Member, x.trainer, x.group, x.shard, x.data_address);

/// Sends the state of a shard at `step` from trainer or agent `source` to the trainers in `targets`:
/// from its memory, or if `peer` from other memory of its node. id: unique in the generation.
struct Transfer {
  uint32_t id = 0;
  uint32_t shard = 0;
  uint64_t step = 0;
  std::string source;
  bool peer = false;
  std::vector<std::string> targets;
  bool operator==(const Transfer&) const = default;
};
SS_FIELDS(Transfer, x.id, x.shard, x.step, x.source, x.peer, x.targets);

SS_FIELDS(RateChange, x.step, x.peak);

/// Supervisor to nodes: a generation of `groups` groups begins at `step`. source: where the state
/// of that step comes from (initialize, checkpoint, memory; save: as memory, but the trainers train
/// no step and save the state; agents: as save, but no trainer takes part, and the source of each
/// transfer is the node that writes the shard to the disk). transfers: to the trainers that lack it.
/// rates: the changes of the learning rate so far.
struct JoinGeneration {
  uint64_t generation = 0;
  std::string source;
  uint64_t step = 0;
  std::string checkpoint;  // the checkpoints folder
  uint32_t groups = 0;
  std::vector<Member> members;
  std::vector<Transfer> transfers;
  std::vector<RateChange> rates;
  bool operator==(const JoinGeneration&) const = default;
};
SS_FIELDS(JoinGeneration, x.generation, x.source, x.step, x.checkpoint, x.groups, x.members,
          x.transfers, x.rates);

struct DataAddress {
  std::vector<uint8_t> bytes;
  bool operator==(const DataAddress&) const = default;
};
SS_FIELDS(DataAddress, x.bytes);

/// A trainer's part in a transfer. members: in rank order; rank 0 sends. rank: this trainer's.
/// source: rank 0's name. segment: shared memory from which rank 0 sends, empty for its own state.
/// If rank 0 is the only member, it copies the segment to its own state.
struct TransferPart {
  uint32_t id = 0;
  uint32_t shard = 0;
  uint64_t step = 0;
  uint32_t rank = 0;
  std::string segment;
  std::vector<DataAddress> members;
  std::string source;
  bool operator==(const TransferPart&) const = default;
};
SS_FIELDS(TransferPart, x.id, x.shard, x.step, x.rank, x.segment, x.members, x.source);

/// Node to trainer: its name (new to a warm process) and its place in a generation. Members are in
/// the rank order of the two communicators. group = no_group: it takes part only in the transfers
/// and is then idle again. commit_round, commit_rounds: see commit_rounds() in
/// actors/node/join.hpp.
struct JoinTrainer {
  std::string trainer;
  uint64_t generation = 0;
  uint32_t group = 0;
  uint32_t shard = 0;
  uint32_t ring = 0;
  std::string state_segment;
  std::string ring_segment;
  std::string source;
  uint64_t step = 0;
  std::string checkpoint;
  std::vector<DataAddress> shard_members;
  std::vector<DataAddress> replicate_members;
  std::vector<TransferPart> transfers;
  uint32_t commit_round = 0;
  uint32_t commit_rounds = 1;
  std::vector<RateChange> rates;
  bool operator==(const JoinTrainer&) const = default;
};
SS_FIELDS(JoinTrainer, x.trainer, x.generation, x.group, x.shard, x.ring, x.state_segment,
          x.ring_segment, x.source, x.step, x.checkpoint, x.shard_members, x.replicate_members,
          x.transfers, x.commit_round, x.commit_rounds, x.rates);

/// A trainer has left a generation and waits. The node adds shard and held. fault is one of
///   ""            it was fenced or asked to leave, or took part only in transfers
///   "failed"      a collective, a peer or a timeout
///   "non_finite"  a value is not finite
///   "mismatch"    replicas differ in the state of `step`
///   "bad_copy"    the state that `suspect` sent or holds is damaged
///   "bad_tokens"  the token file has a token that the model does not know
/// Of a trainer that is not up the agent reports `shard` and `held`.
/// state_hash: for a mismatch, of the trainer's own state; 0 if its own state is not in doubt.
/// suspect_rank: if `suspect` is empty, the rank (group x shards + shard) at fault; -1: not known.
struct TrainerIdle {
  std::string trainer;
  uint64_t generation = 0;
  uint32_t shard = 0;
  std::vector<StateVersion> held;
  std::string fault;
  uint64_t step = 0;
  std::string suspect;
  std::string reason;
  uint64_t state_hash = 0;
  int32_t suspect_rank = -1;
  bool operator==(const TrainerIdle&) const = default;
};
SS_FIELDS(TrainerIdle, x.trainer, x.generation, x.shard, x.held, x.fault, x.step, x.suspect,
          x.reason, x.state_hash, x.suspect_rank);

/// A trainer has the state of `step` and begins to train. ms, bytes: time and size of the restore.
struct TrainerReady {
  std::string trainer;
  uint64_t generation = 0;
  uint64_t step = 0;
  double ms = 0;
  uint64_t bytes = 0;
  bool operator==(const TrainerReady&) const = default;
};
SS_FIELDS(TrainerReady, x.trainer, x.generation, x.step, x.ms, x.bytes);

/// Trainer to node, several times a second: a sign of life. units: how many units it has computed.
/// waiting: it waits in a collective or for another process of its node. gpu: CUDA's index of the
/// GPU that it uses; -1: none yet. phase: as Activity::phase in model/engine/engine.hpp, or
/// "restore", "validation". block: as there. The node adds what it has observed: still_ms, since
/// the trainer computed its last unit; stuck_ms, since it computed or waited; silent_ms, since its
/// last message.
struct TrainerProgress {
  std::string trainer;
  uint64_t generation = 0;
  uint64_t step = 0;
  uint64_t units = 0;
  bool waiting = false;
  std::string phase;
  int32_t block = -1;
  int64_t still_ms = 0;
  int64_t stuck_ms = 0;
  int64_t silent_ms = 0;
  int32_t gpu = -1;
  bool operator==(const TrainerProgress&) const = default;
};
SS_FIELDS(TrainerProgress, x.trainer, x.generation, x.step, x.units, x.waiting, x.phase, x.block,
          x.still_ms, x.stuck_ms, x.silent_ms, x.gpu);

/// Node to a warm process: the GPUs of the node's trainers, one of which it may have to replace.
struct PrepareGpus {
  std::vector<uint64_t> gpus;
  bool operator==(const PrepareGpus&) const = default;
};
SS_FIELDS(PrepareGpus, x.gpus);

/// Supervisor to nodes, while no step is committed: what do the trainers of this generation do?
/// Answered by NodeProgress.
struct ReportProgress {
  uint64_t generation = 0;
  bool operator==(const ReportProgress&) const = default;
};
SS_FIELDS(ReportProgress, x.generation);

struct NodeProgress {
  std::string node;
  std::vector<TrainerProgress> trainers;
  bool operator==(const NodeProgress&) const = default;
};
SS_FIELDS(NodeProgress, x.node, x.trainers);

SS_FIELDS(GpuHealth, x.name, x.utilization, x.temperature_c, x.power_w, x.memory_used, x.ecc_errors,
          x.clock_mhz, x.xids, x.xid);

/// The times of a trainer's newest step. wait_ms is contained in the others.
struct TrainerTimes {
  std::string trainer;
  uint64_t step = 0;
  double step_ms = 0;
  double data_ms = 0;
  double forward_ms = 0;
  double backward_ms = 0;
  double optimizer_ms = 0;
  double wait_ms = 0;  // for other trainers, in collectives
  bool operator==(const TrainerTimes&) const = default;
};
SS_FIELDS(TrainerTimes, x.trainer, x.step, x.step_ms, x.data_ms, x.forward_ms, x.backward_ms,
          x.optimizer_ms, x.wait_ms);

/// Node to supervisor, every supervision.health_ms: for display only.
struct NodeHealth {
  std::string node;
  double cpu = 0;
  double memory = 0;
  double disk = 0;
  double received_mb_per_s = 0;
  double sent_mb_per_s = 0;
  std::vector<GpuHealth> gpus;
  std::vector<TrainerTimes> trainers;
  bool operator==(const NodeHealth&) const = default;
};
SS_FIELDS(NodeHealth, x.node, x.cpu, x.memory, x.disk, x.received_mb_per_s, x.sent_mb_per_s, x.gpus,
          x.trainers);

SS_FIELDS(PeerCopy, x.shard, x.step, x.generation);

/// Node to supervisor: the contents of its peer store. fence: the FenceGeneration that this answers;
/// 0: none. From then on the store takes no copy of an older generation, and the supervisor has been
/// told what the memory of each trainer holds that is not up.
struct PeerCopies {
  std::string node;
  std::vector<PeerCopy> copies;
  uint64_t fence = 0;
  bool operator==(const PeerCopies&) const = default;
};
SS_FIELDS(PeerCopies, x.node, x.copies, x.fence);

/// Copy a shard from the memory of trainer `source` to the peer store of `node`. address: of the
/// agent of `node`.
struct CopyTask {
  uint32_t shard = 0;
  std::string source;
  std::string node;
  std::string address;
  bool operator==(const CopyTask&) const = default;
};
SS_FIELDS(CopyTask, x.shard, x.source, x.node, x.address);

/// Supervisor to nodes: send the staged copies of `step` (StepDone.copy). keep: the newest step of
/// which the peer stores hold every shard, which must stay; UINT64_MAX: none. Older copies, and
/// copies of shards that the store no longer keeps, may be deleted. The node answers with a
/// CopySent for each task.
struct CopyToPeers {
  uint64_t generation = 0;
  uint64_t step = 0;
  uint64_t keep = 0;
  std::vector<CopyTask> copies;
  bool operator==(const CopyToPeers&) const = default;
};
SS_FIELDS(CopyToPeers, x.generation, x.step, x.keep, x.copies);

/// Node to the node that will keep a copy. generation: also the one in which the copy was made
/// (PEER-3 in actors/supervisor/copy_plan.hpp). Answered by AcceptCopy; then both join a
/// communicator, the sender as rank 0.
struct OfferCopy {
  std::string from;
  uint64_t generation = 0;
  uint64_t step = 0;
  uint64_t keep = 0;
  uint32_t shard = 0;
  std::vector<uint8_t> data_address;
  bool operator==(const OfferCopy&) const = default;
};
SS_FIELDS(OfferCopy, x.from, x.generation, x.step, x.keep, x.shard, x.data_address);

/// held: the node already has the copy. error: why it refuses the copy, else empty.
struct AcceptCopy {
  bool held = false;
  std::string error;
  std::vector<uint8_t> data_address;
  bool operator==(const AcceptCopy&) const = default;
};
SS_FIELDS(AcceptCopy, x.held, x.error, x.data_address);

/// Node to supervisor: a task of CopyToPeers has ended. error: why it failed, else empty.
struct CopySent {
  uint64_t generation = 0;
  uint64_t step = 0;
  uint32_t shard = 0;
  std::string error;
  double ms = 0;
  bool operator==(const CopySent&) const = default;
};
SS_FIELDS(CopySent, x.generation, x.step, x.shard, x.error, x.ms);

/// A trainer has committed a step. loss: nats per token; NaN if no target of the global batch counts.
/// samples: of its micro-batches, as first, count, first, count, ... save: the trainer has pinned the
/// step's state for a checkpoint. copy: the trainer has pinned it for a peer node. busy_ms: step_ms
/// without waiting for other trainers.
/// state_hash: of the shard's state before the step, 0 without replicas. time: of the commit,
/// seconds since 1970. interval_ms: since the trainer's step before, or since it began to train,
/// without validation; by the trainer's own clock. validates: Validated of this step follows.
struct StepDone {
  uint64_t generation = 0;
  uint64_t step = 0;
  std::string trainer;
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  double step_ms = 0;
  std::vector<uint64_t> samples;
  bool save = false;
  double busy_ms = 0;
  uint64_t state_hash = 0;
  double time = 0;
  bool copy = false;
  double data_ms = 0;  // part of step_ms, like the next three
  double forward_ms = 0;
  double backward_ms = 0;
  double optimizer_ms = 0;
  double interval_ms = 0;
  bool validates = false;
  bool operator==(const StepDone&) const = default;
};
SS_FIELDS(StepDone, x.generation, x.step, x.trainer, x.loss, x.grad_norm, x.learning_rate,
          x.step_ms, x.samples, x.save, x.busy_ms, x.state_hash, x.time, x.copy, x.data_ms,
          x.forward_ms, x.backward_ms, x.optimizer_ms, x.interval_ms, x.validates);

SS_FIELDS(TaskScore, x.task, x.questions, x.right, x.right_normalized, x.words, x.bytes,
          x.log_likelihood);

/// What is known of the state of `step`; the same on every trainer. loss: the validation loss, in
/// nats per token; NaN if the step has only scores, or no target counts. sources: the loss of each
/// source of data.blend, in its order, NaN where no target counts; empty without data.blend. tasks:
/// the scores of train.tasks; empty if they are not due. targets: how many targets the loss of each
/// source is the mean of, one number without data.blend; empty if no loss is due.
struct Validated {
  uint64_t generation = 0;
  uint64_t step = 0;
  std::string trainer;
  double loss = 0;
  std::vector<double> sources;
  TaskScores tasks;
  std::vector<uint64_t> targets;
  bool operator==(const Validated&) const = default;
};
SS_FIELDS(Validated, x.generation, x.step, x.trainer, x.loss, x.sources, x.tasks, x.targets);

/// A trainer has made its last step. save: as in StepDone.
struct TrainerFinished {
  std::string trainer;
  uint64_t generation = 0;
  uint64_t step = 0;
  bool save = false;
  bool operator==(const TrainerFinished&) const = default;
};
SS_FIELDS(TrainerFinished, x.trainer, x.generation, x.step, x.save);

/// Supervisor to trainers: leave all generations below this one at once.
struct FenceGeneration {
  uint64_t generation = 0;
  std::string reason;
  bool operator==(const FenceGeneration&) const = default;
};
SS_FIELDS(FenceGeneration, x.generation, x.reason);

/// Supervisor to trainers: leave this generation together after a step, so that no work is lost.
struct LeaveGeneration {
  uint64_t generation = 0;
  std::string reason;
  bool operator==(const LeaveGeneration&) const = default;
};
SS_FIELDS(LeaveGeneration, x.generation, x.reason);

/// Supervisor to node: kill this trainer's process, because it is stuck or has ignored a fence. The
/// node starts another one.
struct KillTrainer {
  std::string trainer;
  std::string reason;
  bool operator==(const KillTrainer&) const = default;
};
SS_FIELDS(KillTrainer, x.trainer, x.reason);

/// Another node's agent, as the other end of a link to measure.
struct LinkEnd {
  std::string node;
  std::string address;
  bool operator==(const LinkEnd&) const = default;
};
SS_FIELDS(LinkEnd, x.node, x.address);

/// Supervisor to node: diagnose the node and its links to `links`. Answered by NodeChecked.
struct CheckNode {
  std::string reason;
  std::vector<LinkEnd> links;
  bool operator==(const CheckNode&) const = default;
};
SS_FIELDS(CheckNode, x.reason, x.links);

/// ok: the node may train. reason: what is wrong, in one line. report: all results as JSON.
struct NodeChecked {
  std::string node;
  bool ok = false;
  std::string reason;
  std::string report;
  bool operator==(const NodeChecked&) const = default;
};
SS_FIELDS(NodeChecked, x.node, x.ok, x.reason, x.report);

/// Supervisor to node: inject a fault. docs/operations.md lists the kinds. The node forwards faults
/// of a trainer to it. step: before which it starts, 0: now. ms: how long it lasts, 0: the kind's
/// default. value: its strength, if the kind has one.
struct InjectFault {
  std::string kind;
  std::string target;
  uint64_t step = 0;
  uint64_t ms = 0;
  double value = 0;
  bool operator==(const InjectFault&) const = default;
};
SS_FIELDS(InjectFault, x.kind, x.target, x.step, x.ms, x.value);

/// Supervisor to the node of a training trainer: propose a checkpoint of the next step. All
/// trainers then agree on the step.
struct SaveCheckpoint {
  std::string trainer;
  bool operator==(const SaveCheckpoint&) const = default;
};
SS_FIELDS(SaveCheckpoint, x.trainer);

/// Node to supervisor: a log rule matches a line. subject: the trainer or node. file: path in the
/// run's logs, or "kernel". line: 0 if unknown. root: the line can be the root cause of an
/// incident.
struct LogFound {
  std::string node;
  std::string subject;
  std::string file;
  uint64_t line = 0;
  std::string text;
  std::string rule;
  std::string severity;
  std::string action;
  std::string hint;
  bool root = false;
  bool operator==(const LogFound&) const = default;
};
SS_FIELDS(LogFound, x.node, x.subject, x.file, x.line, x.text, x.rule, x.severity, x.action, x.hint,
          x.root);

/// Supervisor to nodes: write the trace of your processes in this time (ns of wall clock) to the
/// run's folder; see runtime/observe/trace_parts.hpp.
struct WriteTrace {
  std::string name;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  bool operator==(const WriteTrace&) const = default;
};
SS_FIELDS(WriteTrace, x.name, x.begin_ns, x.end_ns);

/// Supervisor to its nodes, when they register and after every change: the supervisor and its
/// standby. standby_address: empty if there is none. recorded_step: the ledger has all reports up
/// to this step, so the nodes may delete theirs.
struct Lead {
  uint64_t term = 0;
  std::string node;
  std::string address;
  std::string standby_node;
  std::string standby_address;
  uint64_t recorded_step = 0;
  bool operator==(const Lead&) const = default;
};
SS_FIELDS(Lead, x.term, x.node, x.address, x.standby_node, x.standby_address, x.recorded_step);

/// Supervisor to a node: start a standby of this supervisor.
struct HostStandby {
  uint64_t term = 0;
  std::string address;  // the supervisor's
  bool operator==(const HostStandby&) const = default;
};
SS_FIELDS(HostStandby, x.term, x.address);

/// Standby to supervisor: registers the standby.
struct StandbyHello {
  std::string node;
  int32_t pid = 0;
  std::string address;
  bool operator==(const StandbyHello&) const = default;
};
SS_FIELDS(StandbyHello, x.node, x.pid, x.address);

/// Supervisor to standby: the state (MessagePack) on which the supervisor will act next. Answered
/// by ReplicaKept.
struct Replica {
  uint64_t term = 0;
  uint64_t sequence = 0;
  std::vector<uint8_t> state;
  bool operator==(const Replica&) const = default;
};
SS_FIELDS(Replica, x.term, x.sequence, x.state);

struct ReplicaKept {
  uint64_t sequence = 0;
  bool operator==(const ReplicaKept&) const = default;
};
SS_FIELDS(ReplicaKept, x.sequence);

/// A client's command to the supervisor, as the words of a console command. who: the client's name,
/// for the event log. Answered by CommandReply.
struct Command {
  std::vector<std::string> words;
  std::string who;
  bool operator==(const Command&) const = default;
};
SS_FIELDS(Command, x.words, x.who);

/// ok: the command succeeded. text: the answer or the error. json: the same, for programs.
struct CommandReply {
  bool ok = false;
  std::string text;
  std::string json;
  bool operator==(const CommandReply&) const = default;
};
SS_FIELDS(CommandReply, x.ok, x.text, x.json);

/// Supervisor to trainers: agree on the last step, save it, finish.
struct StopTraining {
  std::string reason;
  bool operator==(const StopTraining&) const = default;
};
SS_FIELDS(StopTraining, x.reason);

/// Node to supervisor: a shard of a checkpoint is on disk. record: JSON. error: why saving failed,
/// else empty.
struct ShardSaved {
  uint64_t generation = 0;
  uint64_t step = 0;
  uint64_t shard = 0;
  std::string record;
  std::string error;
  bool operator==(const ShardSaved&) const = default;
};
SS_FIELDS(ShardSaved, x.generation, x.step, x.shard, x.record, x.error);

/// To the supervisor: stop the run. now: at once, without another step and without saving.
struct RequestStop {
  int32_t exit_code = 0;
  std::string reason;
  bool now = false;
  bool operator==(const RequestStop&) const = default;
};
SS_FIELDS(RequestStop, x.exit_code, x.reason, x.now);

/// Supervisor to nodes, nodes to trainers: exit.
struct Shutdown {
  int32_t exit_code = 0;
  std::string reason;
  bool operator==(const Shutdown&) const = default;
};
SS_FIELDS(Shutdown, x.exit_code, x.reason);

struct Text {
  std::string text;
  bool operator==(const Text&) const = default;
};
SS_FIELDS(Text, x.text);

template <class... Ts>
struct MessageList {};
template <class, class... Ts>
struct MessageListOf {
  using List = MessageList<Ts...>;
};

/// All messages that the wire rule allows. Each type belongs to the member of Body (protocol.capnp)
/// that has its name in camelCase.
// clang-format off
#define SS_MESSAGES(X)                                                                           \
  X(Ping) X(Pong) X(NodeHello) X(TrainerHello) X(TrainerUp) X(TrainerDown) X(JoinGeneration)     \
  X(JoinTrainer) X(TrainerIdle) X(StepDone) X(Validated) X(TrainerFinished) X(FenceGeneration)   \
  X(StopTraining) X(ShardSaved) X(RequestStop) X(Shutdown) X(Text) X(TrainerReady)               \
  X(TrainerProgress) X(PeerCopies) X(LeaveGeneration) X(KillTrainer) X(CheckNode) X(NodeChecked) \
  X(InjectFault) X(Lead) X(HostStandby) X(StandbyHello) X(Replica) X(ReplicaKept) X(Command)     \
  X(CommandReply) X(CopyToPeers) X(OfferCopy) X(AcceptCopy) X(CopySent) X(NodeHealth)            \
  X(SaveCheckpoint) X(LogFound) X(WriteTrace) X(ReportProgress) X(NodeProgress) X(PrepareGpus)
// clang-format on
#define SS_NEXT_MESSAGE(T) , T
using Messages = MessageListOf<void SS_MESSAGES(SS_NEXT_MESSAGE)>::List;
#undef SS_NEXT_MESSAGE

/// A message that only the codec writes and reads. CAF is told so below; otherwise every file that
/// sends it would compile CAF's functions for that. A benchmark sends the other two over CAF's own
/// network.
template <class T>
concept OnlyByCodec =
    !std::is_same_v<T, Ping> && !std::is_same_v<T, Pong> && requires(const T* tag) {
  message_name(tag);
};

}  // namespace simplescale

template <simplescale::OnlyByCodec T>
struct caf::allowed_unsafe_message_type<T> : std::true_type {};
