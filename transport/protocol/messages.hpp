// The messages of the control plane as plain C++ structs. Each has a twin in protocol.capnp; the
// list at the end ties the two together by name. To add one: the struct and its SS_FIELDS line
// here, its name in Messages, and in the schema a struct and a member of Body. Nothing else is
// written by hand, and check_messages() (convert.hpp) finds a slip.
//
// Fields may be: bool, (u)int8..64, float, double, std::string, std::vector<uint8_t> (bytes),
// another struct with SS_FIELDS, and std::vector of any of these. No bulk data here: tensors go
// over the data plane.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/observe/health.hpp"
#include "runtime/training/held_step.hpp"

/// Lists the fields of a message in order: SS_FIELDS(Ping, x.id, x.payload). Defines the `inspect`
/// that CAF and our own converter walk, and the names that are compared with the schema.
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

/// Answered with a Pong of the same id and payload; used to measure.
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

/// A node agent presents itself to the supervisor, also to a new one in mid-run. epoch: of the
/// supervisor it obeyed before, 0 for none. address: of its agent's transport.
struct NodeHello {
  std::string node;
  std::string host;
  int32_t pid = 0;
  uint32_t trainers = 0;
  uint64_t epoch = 0;
  std::string address;
  bool operator==(const NodeHello&) const = default;
};
SS_FIELDS(NodeHello, x.node, x.host, x.pid, x.trainers, x.epoch, x.address);

/// A trainer presents itself to its node's agent. `data_address` is where its data plane is
/// reached.
struct TrainerHello {
  std::string trainer;
  int32_t pid = 0;
  std::vector<uint8_t> data_address;
  bool operator==(const TrainerHello&) const = default;
};
SS_FIELDS(TrainerHello, x.trainer, x.pid, x.data_address);

SS_FIELDS(HeldStep, x.step, x.generation);

/// Node to supervisor: a trainer is up. shard, held: the steps of that shard whose state its memory
/// has. generation: the one it trains in (told to a new supervisor), 0 for none.
struct TrainerUp {
  std::string trainer;
  int32_t pid = 0;
  std::vector<uint8_t> data_address;
  uint32_t shard = 0;
  std::vector<HeldStep> held;
  uint64_t generation = 0;
  bool operator==(const TrainerUp&) const = default;
};
SS_FIELDS(TrainerUp, x.trainer, x.pid, x.data_address, x.shard, x.held, x.generation);

/// Node to supervisor: a trainer's process has ended; restarting: the node starts another one.
struct TrainerDown {
  std::string trainer;
  std::string reason;
  bool restarting = false;
  bool operator==(const TrainerDown&) const = default;
};
SS_FIELDS(TrainerDown, x.trainer, x.reason, x.restarting);

/// Member::group of a trainer that only helps others to their state.
inline constexpr uint32_t no_group = UINT32_MAX;

/// One trainer of a generation.
struct Member {
  std::string trainer;
  uint32_t group = 0;
  uint32_t shard = 0;
  std::vector<uint8_t> data_address;
  bool operator==(const Member&) const = default;
};
SS_FIELDS(Member, x.trainer, x.group, x.shard, x.data_address);

/// One copy of a shard's state moves: from the memory of `source` (peer: from its node's peer
/// store) to the targets, all trainers' names. id: unique in the generation.
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

/// Supervisor to nodes: a generation of `groups` groups begins at `step`, whose state comes from
/// source (initialize, checkpoint, memory); transfers bring it to those that lack it.
struct JoinGeneration {
  uint64_t generation = 0;
  std::string source;
  uint64_t step = 0;
  std::string checkpoint;  // the checkpoints folder
  uint32_t groups = 0;
  std::vector<Member> members;
  std::vector<Transfer> transfers;
  bool operator==(const JoinGeneration&) const = default;
};
SS_FIELDS(JoinGeneration, x.generation, x.source, x.step, x.checkpoint, x.groups, x.members,
          x.transfers);

struct DataAddress {
  std::vector<uint8_t> bytes;
  bool operator==(const DataAddress&) const = default;
};
SS_FIELDS(DataAddress, x.bytes);

/// A trainer's part in a transfer: members in rank order, rank 0 sends, own rank is `rank`. source:
/// rank 0's name. segment: what rank 0 sends from, if not its own state; rank 0 may be the only
/// member, and takes it for itself then.
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

/// Node to trainer: its place in a generation, and who it is (a warm process learns it here).
/// Members are in rank order of the two communicators. group = no_group: it only takes part in the
/// transfers and is idle again.
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
  bool operator==(const JoinTrainer&) const = default;
};
SS_FIELDS(JoinTrainer, x.trainer, x.generation, x.group, x.shard, x.ring, x.state_segment,
          x.ring_segment, x.source, x.step, x.checkpoint, x.shard_members, x.replicate_members,
          x.transfers, x.commit_round, x.commit_rounds);

/// A trainer has left a generation and waits. fault: "" (told to: fenced, asked to leave, or only
/// helped), "failed" (a collective, a peer, a timeout), "non_finite", "mismatch" (replicas differ
/// in the state of `step`), "bad_copy" (the state received from, or held by, `suspect` is damaged).
/// The node adds shard and held. state_hash: of a mismatch, of the own state; 0 if that is not in
/// question.
struct TrainerIdle {
  std::string trainer;
  uint64_t generation = 0;
  uint32_t shard = 0;
  std::vector<HeldStep> held;
  std::string fault;
  uint64_t step = 0;
  std::string suspect;
  std::string reason;
  uint64_t state_hash = 0;
  bool operator==(const TrainerIdle&) const = default;
};
SS_FIELDS(TrainerIdle, x.trainer, x.generation, x.shard, x.held, x.fault, x.step, x.suspect,
          x.reason, x.state_hash);

/// A trainer has the state of `step` and begins to train. ms, bytes: what it took to bring it.
struct TrainerReady {
  std::string trainer;
  uint64_t generation = 0;
  uint64_t step = 0;
  double ms = 0;
  uint64_t bytes = 0;
  bool operator==(const TrainerReady&) const = default;
};
SS_FIELDS(TrainerReady, x.trainer, x.generation, x.step, x.ms, x.bytes);

/// Trainer to node, several times a second: a sign of life. units: grows with every unit computed.
/// waiting: inside a collective, so somebody else is late.
struct TrainerProgress {
  std::string trainer;
  uint64_t generation = 0;
  uint64_t step = 0;
  uint64_t units = 0;
  bool waiting = false;
  bool operator==(const TrainerProgress&) const = default;
};
SS_FIELDS(TrainerProgress, x.trainer, x.generation, x.step, x.units, x.waiting);

SS_FIELDS(GpuHealth, x.name, x.utilization, x.temperature_c, x.power_w, x.memory_used, x.ecc_errors,
          x.clock_mhz, x.xids, x.xid);

/// Where the time of a trainer's newest step went; wait_ms is part of the others.
struct TrainerTimes {
  std::string trainer;
  uint64_t step = 0;
  double step_ms = 0;
  double data_ms = 0;
  double forward_ms = 0;
  double backward_ms = 0;
  double optimizer_ms = 0;
  double wait_ms = 0;  // for others, in collectives
  bool operator==(const TrainerTimes&) const = default;
};
SS_FIELDS(TrainerTimes, x.trainer, x.step, x.step_ms, x.data_ms, x.forward_ms, x.backward_ms,
          x.optimizer_ms, x.wait_ms);

/// Node to supervisor, every supervision.health_ms: for eyes only.
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

/// A copy of a shard's state in a node's peer store; as in HeldStep.
struct PeerCopy {
  uint32_t shard = 0;
  uint64_t step = 0;
  uint64_t generation = 0;
  bool operator==(const PeerCopy&) const = default;
};
SS_FIELDS(PeerCopy, x.shard, x.step, x.generation);

/// Node to supervisor: what its peer store holds now.
struct PeerCopies {
  std::string node;
  std::vector<PeerCopy> copies;
  bool operator==(const PeerCopies&) const = default;
};
SS_FIELDS(PeerCopies, x.node, x.copies);

/// Where the copy of a shard goes: from the memory of trainer `source` to the peer store of `node`,
/// whose agent is at `address`.
struct CopyTask {
  uint32_t shard = 0;
  std::string source;
  std::string node;
  std::string address;
  bool operator==(const CopyTask&) const = default;
};
SS_FIELDS(CopyTask, x.shard, x.source, x.node, x.address);

/// Supervisor to nodes: send the copies of `step` that you have staged (StepDone.copy). keep: the
/// newest step of which peer stores hold every shard, which stays; UINT64_MAX: none. What is older,
/// and for shards that are not kept there any more, may go. Answered by CopySent for each task.
struct CopyToPeers {
  uint64_t generation = 0;
  uint64_t step = 0;
  uint64_t keep = 0;
  std::vector<CopyTask> copies;
  bool operator==(const CopyToPeers&) const = default;
};
SS_FIELDS(CopyToPeers, x.generation, x.step, x.keep, x.copies);

/// Node to the node that is to keep a copy. generation: also that in which the copy was made (PEER-3 of
/// job/copy_plan.hpp). Answered by AcceptCopy; then both join a communicator,
/// the sender as rank 0.
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

/// held: the copy is there already. error: why it is refused, else empty.
struct AcceptCopy {
  bool held = false;
  std::string error;
  std::vector<uint8_t> data_address;
  bool operator==(const AcceptCopy&) const = default;
};
SS_FIELDS(AcceptCopy, x.held, x.error, x.data_address);

/// Node to supervisor: a task of CopyToPeers is over; error: why it failed, else empty.
struct CopySent {
  uint64_t generation = 0;
  uint64_t step = 0;
  uint32_t shard = 0;
  std::string error;
  double ms = 0;
  bool operator==(const CopySent&) const = default;
};
SS_FIELDS(CopySent, x.generation, x.step, x.shard, x.error, x.ms);

/// A trainer has committed a step. loss in nats per token. samples: first, count, first, count, ...
/// of its micro-batches. save: the trainer has pinned the step's state for a checkpoint. busy_ms:
/// what of step_ms it did not wait for others. state_hash: of the shard's state before the step, 0
/// without replicas. time: when it was committed, seconds since the epoch. copy: the trainer has
/// pinned the step's state for a peer node.
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
  double data_ms = 0;  // of step_ms, with the next three; node to supervisor: see TrainerTimes
  double forward_ms = 0;
  double backward_ms = 0;
  double optimizer_ms = 0;
  bool operator==(const StepDone&) const = default;
};
SS_FIELDS(StepDone, x.generation, x.step, x.trainer, x.loss, x.grad_norm, x.learning_rate,
          x.step_ms, x.samples, x.save, x.busy_ms, x.state_hash, x.time, x.copy, x.data_ms,
          x.forward_ms, x.backward_ms, x.optimizer_ms);

/// Validation loss of the state of `step`, the same on every trainer.
struct Validated {
  uint64_t generation = 0;
  uint64_t step = 0;
  std::string trainer;
  double loss = 0;
  bool operator==(const Validated&) const = default;
};
SS_FIELDS(Validated, x.generation, x.step, x.trainer, x.loss);

/// A trainer has made its last step. save as in StepDone.
struct TrainerFinished {
  std::string trainer;
  uint64_t generation = 0;
  uint64_t step = 0;
  bool save = false;
  bool operator==(const TrainerFinished&) const = default;
};
SS_FIELDS(TrainerFinished, x.trainer, x.generation, x.step, x.save);

/// Supervisor to trainers: generations below this one are over; whoever works for one leaves it at
/// once.
struct FenceGeneration {
  uint64_t generation = 0;
  std::string reason;
  bool operator==(const FenceGeneration&) const = default;
};
SS_FIELDS(FenceGeneration, x.generation, x.reason);

/// Supervisor to trainers: leave this generation together after a step, without losing work.
struct LeaveGeneration {
  uint64_t generation = 0;
  std::string reason;
  bool operator==(const LeaveGeneration&) const = default;
};
SS_FIELDS(LeaveGeneration, x.generation, x.reason);

/// Supervisor to node: end this trainer's process (it is stuck, or ignored a fence); another takes
/// its place.
struct KillTrainer {
  std::string trainer;
  std::string reason;
  bool operator==(const KillTrainer&) const = default;
};
SS_FIELDS(KillTrainer, x.trainer, x.reason);

/// Another node's agent, to which a link is to be measured.
struct LinkEnd {
  std::string node;
  std::string address;
  bool operator==(const LinkEnd&) const = default;
};
SS_FIELDS(LinkEnd, x.node, x.address);

/// Supervisor to node: diagnose yourself and the links to these. Answered by NodeChecked.
struct CheckNode {
  std::string reason;
  std::vector<LinkEnd> links;
  bool operator==(const CheckNode&) const = default;
};
SS_FIELDS(CheckNode, x.reason, x.links);

/// ok: fit to train. report: a table in JSON; reason: in a line, what is wrong.
struct NodeChecked {
  std::string node;
  bool ok = false;
  std::string reason;
  std::string report;
  bool operator==(const NodeChecked&) const = default;
};
SS_FIELDS(NodeChecked, x.node, x.ok, x.reason, x.report);

/// A fault on purpose (interface.md lists the kinds), to a node, which passes on what concerns a
/// trainer. step 0: now. ms: how long, for faults that end; value: how much, where that means
/// something.
struct InjectFault {
  std::string kind;
  std::string target;
  uint64_t step = 0;
  uint64_t ms = 0;
  double value = 0;
  bool operator==(const InjectFault&) const = default;
};
SS_FIELDS(InjectFault, x.kind, x.target, x.step, x.ms, x.value);

/// Supervisor to the node of a trainer that trains: propose a checkpoint of the next step; all
/// trainers then agree on it.
struct SaveCheckpoint {
  std::string trainer;
  bool operator==(const SaveCheckpoint&) const = default;
};
SS_FIELDS(SaveCheckpoint, x.trainer);

/// Node to supervisor: a rule matches a line of a log. subject: a trainer, or the node. file:
/// within the run's logs, or "kernel". line: 0 if unknown. root: it explains an incident.
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

/// Supervisor to nodes: write what your processes did in this time (wall clock) to the run's
/// folder. trace_parts.hpp.
struct WriteTrace {
  std::string name;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  bool operator==(const WriteTrace&) const = default;
};
SS_FIELDS(WriteTrace, x.name, x.begin_ns, x.end_ns);

/// Supervisor to its nodes, at once and whenever it changes: who leads. standby_address is empty
/// while there is none. recorded_step: reports up to here are in the ledger and need not be kept.
struct Lead {
  uint64_t epoch = 0;
  std::string node;
  std::string address;
  std::string standby_node;
  std::string standby_address;
  uint64_t recorded_step = 0;
  bool operator==(const Lead&) const = default;
};
SS_FIELDS(Lead, x.epoch, x.node, x.address, x.standby_node, x.standby_address, x.recorded_step);

/// Supervisor to a node: start a standby for me.
struct HostStandby {
  uint64_t epoch = 0;
  std::string address;  // the supervisor's
  bool operator==(const HostStandby&) const = default;
};
SS_FIELDS(HostStandby, x.epoch, x.address);

/// A standby presents itself to its supervisor.
struct StandbyHello {
  std::string node;
  int32_t pid = 0;
  std::string address;
  bool operator==(const StandbyHello&) const = default;
};
SS_FIELDS(StandbyHello, x.node, x.pid, x.address);

/// Supervisor to standby: the state (MessagePack) that it is about to act on. Answered by
/// ReplicaKept.
struct Replica {
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  std::vector<uint8_t> state;
  bool operator==(const Replica&) const = default;
};
SS_FIELDS(Replica, x.epoch, x.sequence, x.state);

struct ReplicaKept {
  uint64_t sequence = 0;
  bool operator==(const ReplicaKept&) const = default;
};
SS_FIELDS(ReplicaKept, x.sequence);

/// Somebody asks the supervisor to do or tell something, in the words of the console. who: for the
/// event log. Answered by CommandReply.
struct Command {
  std::vector<std::string> words;
  std::string who;
  bool operator==(const Command&) const = default;
};
SS_FIELDS(Command, x.words, x.who);

/// ok, or text says why not; json: the same answer for programs.
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

/// Node to supervisor: one shard of a checkpoint is on disk (record, JSON), or why not (error).
struct ShardSaved {
  uint64_t generation = 0;
  uint64_t step = 0;
  uint64_t shard = 0;
  std::string record;
  std::string error;
  bool operator==(const ShardSaved&) const = default;
};
SS_FIELDS(ShardSaved, x.generation, x.step, x.shard, x.record, x.error);

/// To the supervisor: stop the run. now: without another step and without saving.
struct RequestStop {
  int32_t exit_code = 0;
  std::string reason;
  bool now = false;
  bool operator==(const RequestStop&) const = default;
};
SS_FIELDS(RequestStop, x.exit_code, x.reason, x.now);

/// Supervisor to nodes, nodes to trainers: end your process.
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

/// Every message that may travel. A type belongs to the member of Body (protocol.capnp) of the same
/// name in camelCase.
using Messages =
    MessageList<Ping, Pong, NodeHello, TrainerHello, TrainerUp, TrainerDown, JoinGeneration,
                JoinTrainer, TrainerIdle, StepDone, Validated, TrainerFinished, FenceGeneration,
                StopTraining, ShardSaved, RequestStop, Shutdown, Text, TrainerReady,
                TrainerProgress, PeerCopies, LeaveGeneration, KillTrainer, CheckNode, NodeChecked,
                InjectFault, Lead, HostStandby, StandbyHello, Replica, ReplicaKept, Command,
                CommandReply, CopyToPeers, OfferCopy, AcceptCopy, CopySent, NodeHealth,
                SaveCheckpoint, LogFound, WriteTrace>;

}  // namespace simplescale
