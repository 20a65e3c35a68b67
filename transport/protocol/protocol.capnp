# The wire format of the control plane, and the one source of its messages. An active message holds one Envelope; the
# Body of a Message holds one message. generate.cpp makes the C++ structs and their conversions from this file.
#
# To add a message, add a struct and a member of Body here. The C++ struct has the same name and the same fields, in the
# order of this text, in snake_case, with the same comments and defaults. Fields may be: Bool, (U)Int8 to 64, Float32,
# Float64, Text, Data, an enum, another struct, and List of any of these but enums. Tensors are not sent in messages but
# over the data plane.
# To change a message, only append numbers, and raise `protocolVersion` if older programs would misread the result.
@0xd3a6c1f5b2e84977;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("simplescale::wire");

annotation cxxName(struct) :Text;       # the name of the C++ struct
annotation header(struct, enum) :Text;  # where the C++ type already is
annotation text(enumerant) :Text;       # to_string() of the value in C++; without it, its C++ name

const protocolVersion :UInt32 = 10;

struct Envelope {
  union {
    hello @0 :Hello;            # first message of a process that connects
    welcome @1 :Hello;          # answer to a hello, with a proof that the sender has the run's key
    refused @2 :Text;           # answer to a hello: why the connection is refused
    goodbye @3 :Text;           # the sender closes the connection: why
    heartbeat @4 :Void;         # sign of life, sent if nothing else was
    message @5 :Message;
    exit @6 :Exit;
    down @7 :Down;
    link @8 :Link;
    unlink @9 :Link;
    lookup @10 :Lookup;
    found @11 :Found;
    proof @12 :Data;            # answer to a welcome: proves that the caller has the key; afterwards both may send
  }
}

struct Hello {
  version @0 :UInt32;
  runId @1 :Text;
  node @2 :Data;                # identity of the sending process, 24 bytes
  token @3 :UInt64;             # the receiver puts it into the frame header of every message to the sender
  address @4 :Data;             # of the sender: see encode() in transport/stream/address.hpp
  nonce @5 :Data;               # 32 random bytes
  proof @6 :Data;               # see transport/caf/proof.hpp
  other @7 :UInt64;             # in a welcome: the receiver's token of another established connection; 0: none
}

struct Message {
  sender @0 :UInt64;            # actor id in the sending process, 0 for none
  receiver @1 :UInt64;          # actor id in the receiving process
  id @2 :UInt64;                # CAF's message id: request or response number and priority
  body @3 :Body;
}

struct Exit {                   # asks an actor to quit (send_exit, or the end of a linked actor)
  source @0 :UInt64;            # actor id in the sending process, 0 for none
  receiver @1 :UInt64;
  reason @2 :Error;
}

struct Down {                   # an actor of the sender that is exported to the receiver has ended
  actor @0 :UInt64;
  reason @1 :Error;
}

struct Link {                   # an actor of the sender links to, or unlinks from, an actor of the receiver
  source @0 :UInt64;
  receiver @1 :UInt64;
}

struct Lookup {
  id @0 :UInt64;
  name @1 :Text;
}

struct Found {
  id @0 :UInt64;
  actor @1 :UInt64;             # 0: no actor is published under that name
}

struct Error {                  # caf::error; code 0 is "no error"
  code @0 :UInt8;
  category @1 :UInt64;
  text @2 :Text;
}

struct Body {
  union {
    nothing @0 :Void;           # the response of a handler that returns void
    error @1 :Error;            # the response of a handler that failed
    ping @2 :Ping;
    pong @3 :Pong;
    nodeHello @4 :NodeHello;
    trainerHello @5 :TrainerHello;
    trainerUp @6 :TrainerUp;
    trainerDown @7 :TrainerDown;
    joinGeneration @8 :JoinGeneration;
    joinTrainer @9 :JoinTrainer;
    trainerIdle @10 :TrainerIdle;
    stepDone @11 :StepDone;
    validated @12 :Validated;
    trainerFinished @13 :TrainerFinished;
    fenceGeneration @14 :FenceGeneration;
    stopTraining @15 :StopTraining;
    shardSaved @16 :ShardSaved;
    requestStop @17 :RequestStop;
    shutdown @18 :Shutdown;
    text @19 :TextMessage;      # not Text, which is a type of Cap'n Proto
    trainerReady @20 :TrainerReady;
    trainerProgress @21 :TrainerProgress;
    peerCopies @22 :PeerCopies;
    leaveGeneration @23 :LeaveGeneration;
    killTrainer @24 :KillTrainer;
    checkNode @25 :CheckNode;
    nodeChecked @26 :NodeChecked;
    injectFault @27 :InjectFault;
    lead @28 :Lead;
    hostStandby @29 :HostStandby;
    standbyHello @30 :StandbyHello;
    replica @31 :Replica;
    replicaKept @32 :ReplicaKept;
    command @33 :Command;
    commandReply @34 :CommandReply;
    copyToPeers @35 :CopyToPeers;
    offerCopy @36 :OfferCopy;
    acceptCopy @37 :AcceptCopy;
    copySent @38 :CopySent;
    nodeHealth @39 :NodeHealth;
    saveCheckpoint @40 :SaveCheckpoint;
    logFound @41 :LogFound;
    writeTrace @42 :WriteTrace;
    reportProgress @43 :ReportProgress;
    nodeProgress @44 :NodeProgress;
    prepareGpus @45 :PrepareGpus;
    useInstructions @46 :UseInstructions;
  }
}

struct Ping {
  # Answered by a Pong with the same id and payload. Measures a link.

  id @0 :UInt64;
  payload @1 :Text;
}

struct Pong {
  id @0 :UInt64;
  payload @1 :Text;
}

enum InstructionSet $header("runtime/base/instruction_set.hpp") {
  automatic @0;
  generic @1;
  avx2 @2;
  avx512 @3;
  avx512Bf16 @4;
  amx @5;
}

struct NodeHello {
  # Agent to supervisor: registers a node, also with a new supervisor during the run. term: of the agent's previous
  # supervisor, 0 for none. address: of the agent's transport. data_address: of its data plane. instructions: the best
  # set of the host, `automatic` if its trainers compute on GPUs. run_instructions: those of the run, `automatic` if the
  # agent does not know them.

  node @0 :Text;
  host @1 :Text;
  pid @2 :Int32;
  trainers @3 :UInt32;
  term @4 :UInt64;
  address @5 :Text;
  dataAddress @6 :Data;
  instructions @7 :InstructionSet;
  runInstructions @8 :InstructionSet;
}

struct TrainerHello {
  # Trainer to its node's agent: registers the trainer. data_address: of its data plane.

  trainer @0 :Text;
  pid @1 :Int32;
  dataAddress @2 :Data;
}

struct StateVersion $header("runtime/training/state_version.hpp") {
  step @0 :UInt64;
  generation @1 :UInt64;
}

struct StateCopy $header("runtime/training/state_version.hpp") {
  shard @0 :UInt32;
  step @1 :UInt64;
  generation @2 :UInt64;
  shards @3 :UInt32;
  begun @4 :Bool;
}

struct TrainerUp {
  # Node to supervisor: a trainer is up. held: the states in its memory. generation: in which it trains (for a new
  # supervisor), 0 for none.

  trainer @0 :Text;
  pid @1 :Int32;
  dataAddress @2 :Data;
  held @3 :List(StateCopy);
  generation @4 :UInt64;
}

enum StepPhase $header("runtime/training/step_phase.hpp") {
  none @0;
  data @1;
  forward @2;
  backward @3;
  vote @4;
  copy @5;
  optimizer @6;
  restore @7;
  validation @8;
}

enum ReasonKind {
  words @0;                     # only the text says more
  exitCode @1;                  # number
  signal @2;                    # number
  processEnded @3;              # nothing more is known
  bothEnded @4;                 # a supervisor and its standby
  connectionLost @5;            # detail: why
  silent @6;                    # ms: for how long
  stopped @7;                   # the operating system has stopped the process, which is silent for ms
  stuck @8;                     # step, ms: a trainer in a generation computes nothing and waits for nobody
  hung @9;                      # step, phase, block, ms: as stuck; number: of trainers that wait for it
  restarted @10;                # by a user
}

struct Reason {
  # Why a process, a connection or a step ended. reason.hpp makes the words of the facts.

  text @0 :Text;                # in words, as events.jsonl has them
  kind @1 :ReasonKind;
  number @2 :Int32;
  ms @3 :Int64;
  step @4 :UInt64;
  phase @5 :StepPhase;
  block @6 :Int32 = -1;
  detail @7 :Text;              # the heart of the text; of `step`: in the words of the trainer at fault
}

struct TrainerDown {
  # Node to supervisor: a trainer's process has ended, or is about to. restarting: the node starts it again.

  trainer @0 :Text;
  reason @1 :Reason;
  restarting @2 :Bool = true;
}

const noGroup :UInt32 = 0xffffffff;
# Member::group of a trainer or agent that takes part only in state transfers.

struct Member {
  # One trainer of a generation, or an agent ("n1") that sends from its node's memory.

  trainer @0 :Text;
  group @1 :UInt32;
  shard @2 :UInt32;
  dataAddress @3 :Data;
}

struct RateChange $header("runtime/training/rate_change.hpp") {
  step @0 :UInt64;
  peak @1 :Float64;
}

enum JoinSource {
  # Where the state comes from with which a generation begins.

  initialize @0;
  checkpoint @1;
  memory @2;
  save @3;                      # as memory, but the trainers train no step and save the state
  agents @4;                    # as save, but no trainer joins: the source of each transfer writes the shard
}

struct JoinGeneration {
  # Supervisor to nodes: a generation of `groups` groups of `shards` trainers begins at `step`. transfers: to the trainers that lack the
  # state of that step. rates: the changes of the learning rate so far. instructions: with which all trainers compute.
  # weights: the speed of each group, by which leaves are dealt (Shares::by_weight()); empty: all equal.

  generation @0 :UInt64;
  source @1 :JoinSource;
  step @2 :UInt64;
  checkpoint @3 :Text;          # the checkpoints folder
  groups @4 :UInt32;
  members @5 :List(Member);
  transfers @6 :List(Transfer);
  rates @7 :List(RateChange);
  instructions @8 :InstructionSet;
  weights @9 :List(UInt32);
  shards @10 :UInt32 = 1;
}

struct DataAddress {
  bytes @0 :Data;
}

struct AxisMembers {
  # The trainers that differ only in their place on this axis, in its order, and the place of the receiver. Axes and their
  # names: runtime/training/axis.hpp.

  name @0 :Text;
  place @1 :UInt32;
  members @2 :List(DataAddress);
}

struct JoinTrainer {
  # Node to trainer: its name (new to a warm process) and its place in a generation, among `groups` and `shards`. Axes are
  # in the order in which they make up a rank. group = no_group: it takes part only in the transfers and is then idle again.
  # weights: as in JoinGeneration. fromShards: the number of shards of the state that the generation begins with, if it is
  # another one than `shards`, else 0. Then every trainer makes its shard anew, also one to which no transfer goes because
  # its shard is all padding.

  trainer @0 :Text;
  generation @1 :UInt64;
  group @2 :UInt32;
  shard @3 :UInt32;
  ring @4 :UInt32;
  stateSegment @5 :Text;
  ringSegment @6 :Text;
  source @7 :JoinSource;
  step @8 :UInt64;
  checkpoint @9 :Text;
  axes @10 :List(AxisMembers);
  groups @11 :UInt32;
  transfers @12 :List(TransferPart);
  rates @13 :List(RateChange);
  weights @14 :List(UInt32);
  shards @15 :UInt32 = 1;
  fromShards @16 :UInt32 = 0;
}

enum Fault {
  # Why a trainer left its generation. The texts are kinds of events in events.jsonl.

  none @0 $text("left");        # it was fenced or asked to leave, or took part only in transfers
  failed @1 $text("step_failed");  # a collective failed, a peer was lost, or a timeout
  nonFinite @2;                 # loss or gradient norm
  mismatch @3;                  # replicas have different states of `step`; with those below: something is damaged
  badCopy @4;                   # the copy that `suspect` sent or holds is damaged
  badCheckpoint @5;             # the checkpoint of `step` is damaged or missing
  badDisk @6;                   # the checkpoint of `step` gave an I/O error and may be intact
  badTokens @7;                 # the token file has a token that the model does not know
  badOrder @8;                  # the order contradicts itself, as it would in every try
}

struct TrainerIdle {
  # A trainer has left `generation` and waits for orders. The node adds held. If the trainer is down, its
  # agent sends this, to report what the trainer's memory holds. If `trainer` is the name of a node, that node's agent
  # could not send a copy. suspect: the trainer at fault, or "". suspect_rank: if `suspect` is empty, the rank (group x
  # shards + shard) at fault; -1: not known. state_hash: for a mismatch, of the trainer's own state; 0 if its own state
  # is not in doubt.

  trainer @0 :Text;
  generation @1 :UInt64;
  held @2 :List(StateCopy);
  fault @3 :Fault;
  step @4 :UInt64;
  suspect @5 :Text;
  reason @6 :Reason;
  stateHash @7 :UInt64;
  suspectRank @8 :Int32 = -1;
  samples @9 :List(UInt64);    # as StepDone.samples, of a value that is not finite; the supervisor adds them
}

struct StepDone {
  # A trainer has committed a step. loss: nats per token; NaN if no target of the global batch counts. samples: of its
  # micro-batches, as first, count, first, count, ... save: the trainer has pinned the step's state for a checkpoint.
  # copy: the trainer has pinned it for a peer node. busy_ms: step_ms without waiting for other trainers. state_hash: of
  # the shard's state before the step, 0 without replicas. time: of the commit, seconds since 1970. interval_ms: since
  # the trainer's step before, or since it began to train, without validation; by the trainer's own clock. validates:
  # Validated of this step follows. compute_ms: part of busy_ms that grows with the trainer's micro-batches; 0: not known
  # (GPUs).

  generation @0 :UInt64;
  step @1 :UInt64;
  trainer @2 :Text;
  loss @3 :Float64;
  gradNorm @4 :Float64;
  learningRate @5 :Float64;
  stepMs @6 :Float64;
  samples @7 :List(UInt64);
  save @8 :Bool;
  busyMs @9 :Float64;
  stateHash @10 :UInt64;
  time @11 :Float64;
  copy @12 :Bool;
  dataMs @13 :Float64;          # part of step_ms, like the next three
  forwardMs @14 :Float64;
  backwardMs @15 :Float64;
  optimizerMs @16 :Float64;
  intervalMs @17 :Float64;
  validates @18 :Bool;
  computeMs @19 :Float64;
  routerCounts @20 :List(Int64);  # of the first trainer of the first group (runtime/training/router_counts.hpp)
}

struct TaskScore $header("runtime/training/task_score.hpp") {
  task @0 :Text;
  questions @1 :UInt64;
  right @2 :UInt64;
  rightNormalized @3 :UInt64;
  words @4 :UInt64;
  bytes @5 :UInt64;
  logLikelihood @6 :Float64;
}

struct Validated {
  # What is known of the state of `step`; the same on every trainer. loss: the validation loss, in nats per token; NaN
  # if the step has only scores, or no target counts. sources: the loss of each source of data.blend, in its order, NaN
  # where no target counts; empty without data.blend. tasks: the scores of train.tasks; empty if they are not due.
  # targets: how many targets the loss of each source is the mean of, one number without data.blend; empty if no loss is
  # due. lengths: the loss with samples of each of train.validation_lengths, NaN where no target counts. positions: the
  # loss by the number of tokens before the predicting one: 0, 1, 2 to 3, 4 to 7, ...; NaN where no target counts.

  generation @0 :UInt64;
  step @1 :UInt64;
  trainer @2 :Text;
  loss @3 :Float64;
  sources @4 :List(Float64);
  tasks @5 :List(TaskScore);
  targets @6 :List(UInt64);
  lengths @7 :List(Float64);
  positions @8 :List(Float64);
}

struct TrainerFinished {
  # A trainer has made its last step. save: as in StepDone.

  trainer @0 :Text;
  generation @1 :UInt64;
  step @2 :UInt64;
  save @3 :Bool;
}

struct FenceGeneration {
  # Supervisor to trainers: leave all generations below this one at once.

  generation @0 :UInt64;
  reason @1 :Text;
}

struct StopTraining {
  # Supervisor to trainers: agree on the last step, save it, finish.

  reason @0 :Text;
}

struct ShardSaved {
  # Node to supervisor: a shard of a checkpoint, one of `shards`, is on disk. record: JSON. error: why saving failed, else
  # empty.

  generation @0 :UInt64;
  step @1 :UInt64;
  shard @2 :UInt64;
  record @3 :Text;
  error @4 :Text;
  shards @5 :UInt32 = 1;
}

struct RequestStop {
  # To the supervisor: stop the run. now: at once, without another step and without saving.

  exitCode @0 :Int32;
  reason @1 :Text;
  now @2 :Bool;
}

struct Shutdown {
  # Supervisor to nodes, nodes to trainers: exit.

  exitCode @0 :Int32;
  reason @1 :Text;
}

struct TextMessage $cxxName("Text") {
  text @0 :Text;
}

struct Transfer {
  # Sends the state of a shard, one of `shards`, at `step` from trainer or agent `source` to the trainers in `targets`:
  # from its memory, or if `peer` from other memory of its node. Targets with as many shards hold that shard afterwards.
  # In a generation with another number of shards all targets have the same one, and only the elements of it are sent; the
  # source takes them, too, if it is a target. id: unique in the generation.

  id @0 :UInt32;
  shard @1 :UInt32;
  step @2 :UInt64;
  source @3 :Text;
  peer @4 :Bool;
  targets @5 :List(Text);
  shards @6 :UInt32 = 1;
}

struct TransferPart {
  # A trainer's part in a transfer. members: in rank order; rank 0 sends. rank: this trainer's. source: rank 0's name.
  # segment: shared memory from which rank 0 sends, empty for its own state. takes: rank 0 is a target, too; it may be the
  # only member. toShards: if not 0, only the elements of shard toShard of toShards are sent.

  id @0 :UInt32;
  shard @1 :UInt32;
  step @2 :UInt64;
  rank @3 :UInt32;
  segment @4 :Text;
  members @5 :List(DataAddress);
  source @6 :Text;
  shards @7 :UInt32 = 1;
  takes @8 :Bool;
  toShards @9 :UInt32 = 0;
  toShard @10 :UInt32 = 0;
}

struct TrainerReady {
  # A trainer has the state of `step` and begins to train. ms, bytes: time and size of the restore.

  trainer @0 :Text;
  generation @1 :UInt64;
  step @2 :UInt64;
  ms @3 :Float64;
  bytes @4 :UInt64;
}

struct TrainerProgress {
  # Trainer to node, several times a second: a sign of life. units: how many units it has computed. waiting: it waits in
  # a collective or for another process of its node. gpu: CUDA's index of the GPU that it uses; -1: none yet. block: as
  # Activity::block in model/engine/engine.hpp. The node adds what it has observed: still_ms, since the trainer computed
  # its last unit; stuck_ms, since it computed or waited; silent_ms, since its last message.

  trainer @0 :Text;
  generation @1 :UInt64;
  step @2 :UInt64;
  units @3 :UInt64;
  waiting @4 :Bool;
  phase @5 :StepPhase;
  block @6 :Int32 = -1;
  stillMs @7 :Int64;
  stuckMs @8 :Int64;
  silentMs @9 :Int64;
  gpu @10 :Int32 = -1;
}

struct PrepareGpus {
  # Node to a warm process: the GPUs of the node's trainers, one of which it may have to replace.

  gpus @0 :List(UInt64);
}

struct UseInstructions {
  # Node to its trainer processes, warm ones too, once it knows with which instructions the run computes.

  instructions @0 :InstructionSet;
}

struct ReportProgress {
  # Supervisor to nodes, while no step is committed: what do the trainers of this generation do? Answered by
  # NodeProgress.

  generation @0 :UInt64;
}

struct NodeProgress {
  node @0 :Text;
  trainers @1 :List(TrainerProgress);
}

struct PeerCopies {
  # Node to supervisor: the contents of its peer store. fence: the newest FenceGeneration that this answers; 0: none.
  # From then on the store takes no copy that an older generation made, and the agent has reported the memory of each
  # trainer that has left its generation. It reports that of the others later, when they leave.

  node @0 :Text;
  copies @1 :List(StateCopy);
  fence @2 :UInt64;
}

struct GpuHealth $header("runtime/observe/health.hpp") {
  name @0 :Text;
  utilization @1 :Float64;
  temperatureC @2 :Float64;
  powerW @3 :Float64;
  memoryUsed @4 :Float64;
  eccErrors @5 :UInt64;
  clockMhz @6 :Float64;
  xids @7 :UInt64;
  xid @8 :UInt64;
}

struct TrainerTimes {
  # The times of a trainer's newest step. wait_ms is contained in the others.

  trainer @0 :Text;
  step @1 :UInt64;
  stepMs @2 :Float64;
  dataMs @3 :Float64;
  forwardMs @4 :Float64;
  backwardMs @5 :Float64;
  optimizerMs @6 :Float64;
  waitMs @7 :Float64;           # for other trainers, in collectives
}

struct NodeHealth {
  # Node to supervisor, every supervision.health_ms: for display only.

  node @0 :Text;
  cpu @1 :Float64;
  memory @2 :Float64;
  disk @3 :Float64;
  receivedMbPerS @4 :Float64;
  sentMbPerS @5 :Float64;
  gpus @6 :List(GpuHealth);
  trainers @7 :List(TrainerTimes);
}

struct CopyTask {
  # Copy a shard, one of `shards`, from the memory of trainer `source` to the peer store of `node`. address: of the agent
  # of `node`.

  shard @0 :UInt32;
  source @1 :Text;
  node @2 :Text;
  address @3 :Text;
  shards @4 :UInt32 = 1;
}

struct CopyToPeers {
  # Supervisor to nodes: send the staged copies of `step` (StepDone.copy). keep: the newest step of which the peer
  # stores hold every shard, which must stay; UINT64_MAX: none. Older copies, and copies of shards that the store no
  # longer keeps, may be deleted. The node answers with a CopySent for each task.

  generation @0 :UInt64;
  step @1 :UInt64;
  keep @2 :UInt64;
  copies @3 :List(CopyTask);
}

struct OfferCopy {
  # Node to the node that will keep a copy. generation: also the one in which the copy was made (PEER-3 in
  # actors/supervisor/copy_plan.hpp). Answered by AcceptCopy; then both join a communicator, the sender as rank 0.

  from @0 :Text;
  generation @1 :UInt64;
  step @2 :UInt64;
  keep @3 :UInt64;
  shard @4 :UInt32;
  dataAddress @5 :Data;
  shards @6 :UInt32 = 1;
}

struct AcceptCopy {
  # held: the node already has the copy. error: why it refuses the copy, else empty.

  held @0 :Bool;
  error @1 :Text;
  dataAddress @2 :Data;
}

struct CopySent {
  # Node to supervisor: a task of CopyToPeers has ended. error: why it failed, else empty.

  generation @0 :UInt64;
  step @1 :UInt64;
  shard @2 :UInt32;
  error @3 :Text;
  ms @4 :Float64;
}

struct LeaveGeneration {
  # Supervisor to trainers: leave this generation together after a step, so that no work is lost.

  generation @0 :UInt64;
  reason @1 :Text;
}

struct KillTrainer {
  # Supervisor to node: kill this trainer's process, because it is stuck or has ignored a fence. The node starts another
  # one.

  trainer @0 :Text;
  reason @1 :Reason;
}

struct CheckNode {
  # Supervisor to node: diagnose the node and its links to `links`. Answered by NodeChecked.

  reason @0 :Text;
  links @1 :List(LinkEnd);
}

struct LinkEnd {
  # Another node's agent, as the other end of a link to measure.

  node @0 :Text;
  address @1 :Text;
}

struct NodeChecked {
  # ok: the node may train. reason: what is wrong, in one line. report: all results as JSON.

  node @0 :Text;
  ok @1 :Bool;
  reason @2 :Text;
  report @3 :Text;
}

struct InjectFault {
  # Supervisor to node: inject a fault. docs/operations.md lists the kinds. The node forwards faults of a trainer to it.
  # step: before which it starts, 0: now. ms: how long it lasts, 0: the kind's default. value: its strength, if the kind
  # has one.

  kind @0 :Text;
  target @1 :Text;
  step @2 :UInt64;
  ms @3 :UInt64;
  value @4 :Float64;
}

struct SaveCheckpoint {
  # Supervisor to the node of a training trainer: propose a checkpoint of the next step. All trainers then agree on the
  # step.

  trainer @0 :Text;
}

struct LogFound {
  # Node to supervisor: a log rule matches a line. subject: the trainer or node. file: path in the run's logs, or
  # "kernel". line: 0 if unknown. root: the line can be the root cause of an incident.

  node @0 :Text;
  subject @1 :Text;
  file @2 :Text;
  line @3 :UInt64;
  text @4 :Text;
  rule @5 :Text;
  severity @6 :Text;
  action @7 :Text;
  hint @8 :Text;
  root @9 :Bool;
}

struct WriteTrace {
  # Supervisor to nodes: write the trace of your processes in this time (ns of wall clock) to the run's folder; see
  # runtime/observe/trace_parts.hpp.

  name @0 :Text;
  beginNs @1 :Int64;
  endNs @2 :Int64;
}

struct Lead {
  # Supervisor to its nodes, when they register and after every change: the supervisor and its standby. standby_address:
  # empty if there is none. recorded_step: the ledger has all reports up to this step, so the nodes may delete theirs.

  term @0 :UInt64;
  node @1 :Text;
  address @2 :Text;
  standbyNode @3 :Text;
  standbyAddress @4 :Text;
  recordedStep @5 :UInt64;
}

struct HostStandby {
  # Supervisor to a node: start a standby of this supervisor.

  term @0 :UInt64;
  address @1 :Text;             # the supervisor's
}

struct StandbyHello {
  # Standby to supervisor: registers the standby.

  node @0 :Text;
  pid @1 :Int32;
  address @2 :Text;
}

struct Replica {
  # Supervisor to standby: the state (MessagePack) on which the supervisor will act next. Answered by ReplicaKept.

  term @0 :UInt64;
  sequence @1 :UInt64;
  state @2 :Data;
}

struct ReplicaKept {
  sequence @0 :UInt64;
}

struct Command {
  # A client's command to the supervisor, as the words of a console command. who: the client's name, for the event log.
  # Answered by CommandReply.

  words @0 :List(Text);
  who @1 :Text;
}

struct CommandReply {
  # ok: the command succeeded. text: the answer or the error. json: the same, for programs.

  ok @0 :Bool;
  text @1 :Text;
  json @2 :Text;
}
