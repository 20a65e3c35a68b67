# The wire format of the control plane. An active message holds one Envelope; the Body of a Message holds one message.
#
# To add a message, add a struct and a member of Body here, and a C++ struct with its SS_FIELDS line in messages.hpp.
# Number the fields in the order of the C++ fields and name them like those in camelCase; a check at start compares both.
# To change a message, only append fields, and raise `protocolVersion` if older programs would misread the result.
@0xd3a6c1f5b2e84977;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("simplescale::wire");

const protocolVersion :UInt32 = 6;

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
  other @7 :UInt64;             # in a welcome: the receiver's token of another established connection of the two; 0: none
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
  }
}

struct Ping {
  id @0 :UInt64;
  payload @1 :Text;
}

struct Pong {
  id @0 :UInt64;
  payload @1 :Text;
}

struct NodeHello {
  node @0 :Text;
  host @1 :Text;
  pid @2 :Int32;
  trainers @3 :UInt32;
  term @4 :UInt64;
  address @5 :Text;
  dataAddress @6 :Data;
}

struct TrainerHello {
  trainer @0 :Text;
  pid @1 :Int32;
  dataAddress @2 :Data;
}

struct StateVersion {
  step @0 :UInt64;
  generation @1 :UInt64;
}

struct TrainerUp {
  trainer @0 :Text;
  pid @1 :Int32;
  dataAddress @2 :Data;
  shard @3 :UInt32;
  held @4 :List(StateVersion);
  generation @5 :UInt64;
}

struct TrainerDown {
  trainer @0 :Text;
  reason @1 :Text;
  restarting @2 :Bool;
}

struct Member {
  trainer @0 :Text;
  group @1 :UInt32;
  shard @2 :UInt32;
  dataAddress @3 :Data;
}

struct RateChange {
  step @0 :UInt64;
  peak @1 :Float64;
}

struct JoinGeneration {
  generation @0 :UInt64;
  source @1 :Text;
  step @2 :UInt64;
  checkpoint @3 :Text;
  groups @4 :UInt32;
  members @5 :List(Member);
  transfers @6 :List(Transfer);
  rates @7 :List(RateChange);
}

struct DataAddress {
  bytes @0 :Data;
}

struct JoinTrainer {
  trainer @0 :Text;
  generation @1 :UInt64;
  group @2 :UInt32;
  shard @3 :UInt32;
  ring @4 :UInt32;
  stateSegment @5 :Text;
  ringSegment @6 :Text;
  source @7 :Text;
  step @8 :UInt64;
  checkpoint @9 :Text;
  shardMembers @10 :List(DataAddress);
  replicateMembers @11 :List(DataAddress);
  transfers @12 :List(TransferPart);
  commitRound @13 :UInt32;
  commitRounds @14 :UInt32;
  rates @15 :List(RateChange);
}

struct TrainerIdle {
  trainer @0 :Text;
  generation @1 :UInt64;
  shard @2 :UInt32;
  held @3 :List(StateVersion);
  fault @4 :Text;
  step @5 :UInt64;
  suspect @6 :Text;
  reason @7 :Text;
  stateHash @8 :UInt64;
  suspectRank @9 :Int32;
}

struct StepDone {
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
  dataMs @13 :Float64;
  forwardMs @14 :Float64;
  backwardMs @15 :Float64;
  optimizerMs @16 :Float64;
  intervalMs @17 :Float64;
  validates @18 :Bool;
}

struct TaskScore {
  task @0 :Text;
  questions @1 :UInt64;
  right @2 :UInt64;
  rightNormalized @3 :UInt64;
  words @4 :UInt64;
  bytes @5 :UInt64;
  logLikelihood @6 :Float64;
}

struct Validated {
  generation @0 :UInt64;
  step @1 :UInt64;
  trainer @2 :Text;
  loss @3 :Float64;
  sources @4 :List(Float64);
  tasks @5 :List(TaskScore);
  targets @6 :List(UInt64);
}

struct TrainerFinished {
  trainer @0 :Text;
  generation @1 :UInt64;
  step @2 :UInt64;
  save @3 :Bool;
}

struct FenceGeneration {
  generation @0 :UInt64;
  reason @1 :Text;
}

struct StopTraining {
  reason @0 :Text;
}

struct ShardSaved {
  generation @0 :UInt64;
  step @1 :UInt64;
  shard @2 :UInt64;
  record @3 :Text;
  error @4 :Text;
}

struct RequestStop {
  exitCode @0 :Int32;
  reason @1 :Text;
  now @2 :Bool;
}

struct Shutdown {
  exitCode @0 :Int32;
  reason @1 :Text;
}

struct TextMessage {
  text @0 :Text;
}

struct Transfer {
  id @0 :UInt32;
  shard @1 :UInt32;
  step @2 :UInt64;
  source @3 :Text;
  peer @4 :Bool;
  targets @5 :List(Text);
}

struct TransferPart {
  id @0 :UInt32;
  shard @1 :UInt32;
  step @2 :UInt64;
  rank @3 :UInt32;
  segment @4 :Text;
  members @5 :List(DataAddress);
  source @6 :Text;
}

struct TrainerReady {
  trainer @0 :Text;
  generation @1 :UInt64;
  step @2 :UInt64;
  ms @3 :Float64;
  bytes @4 :UInt64;
}

struct TrainerProgress {
  trainer @0 :Text;
  generation @1 :UInt64;
  step @2 :UInt64;
  units @3 :UInt64;
  waiting @4 :Bool;
  phase @5 :Text;
  block @6 :Int32;
  stillMs @7 :Int64;
  stuckMs @8 :Int64;
  silentMs @9 :Int64;
  gpu @10 :Int32;
}

struct PrepareGpus {
  gpus @0 :List(UInt64);
}

struct ReportProgress {
  generation @0 :UInt64;
}

struct NodeProgress {
  node @0 :Text;
  trainers @1 :List(TrainerProgress);
}

struct PeerCopy {
  shard @0 :UInt32;
  step @1 :UInt64;
  generation @2 :UInt64;
}

struct PeerCopies {
  node @0 :Text;
  copies @1 :List(PeerCopy);
  fence @2 :UInt64;
}

struct GpuHealthReport {
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
  trainer @0 :Text;
  step @1 :UInt64;
  stepMs @2 :Float64;
  dataMs @3 :Float64;
  forwardMs @4 :Float64;
  backwardMs @5 :Float64;
  optimizerMs @6 :Float64;
  waitMs @7 :Float64;
}

struct NodeHealth {
  node @0 :Text;
  cpu @1 :Float64;
  memory @2 :Float64;
  disk @3 :Float64;
  receivedMbPerS @4 :Float64;
  sentMbPerS @5 :Float64;
  gpus @6 :List(GpuHealthReport);
  trainers @7 :List(TrainerTimes);
}

struct CopyTask {
  shard @0 :UInt32;
  source @1 :Text;
  node @2 :Text;
  address @3 :Text;
}

struct CopyToPeers {
  generation @0 :UInt64;
  step @1 :UInt64;
  keep @2 :UInt64;
  copies @3 :List(CopyTask);
}

struct OfferCopy {
  from @0 :Text;
  generation @1 :UInt64;
  step @2 :UInt64;
  keep @3 :UInt64;
  shard @4 :UInt32;
  dataAddress @5 :Data;
}

struct AcceptCopy {
  held @0 :Bool;
  error @1 :Text;
  dataAddress @2 :Data;
}

struct CopySent {
  generation @0 :UInt64;
  step @1 :UInt64;
  shard @2 :UInt32;
  error @3 :Text;
  ms @4 :Float64;
}

struct LeaveGeneration {
  generation @0 :UInt64;
  reason @1 :Text;
}

struct KillTrainer {
  trainer @0 :Text;
  reason @1 :Text;
}

struct CheckNode {
  reason @0 :Text;
  links @1 :List(LinkEnd);
}

struct LinkEnd {
  node @0 :Text;
  address @1 :Text;
}

struct NodeChecked {
  node @0 :Text;
  ok @1 :Bool;
  reason @2 :Text;
  report @3 :Text;
}

struct InjectFault {
  kind @0 :Text;
  target @1 :Text;
  step @2 :UInt64;
  ms @3 :UInt64;
  value @4 :Float64;
}

struct SaveCheckpoint {
  trainer @0 :Text;
}

struct LogFound {
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
  name @0 :Text;
  beginNs @1 :Int64;
  endNs @2 :Int64;
}

struct Lead {
  term @0 :UInt64;
  node @1 :Text;
  address @2 :Text;
  standbyNode @3 :Text;
  standbyAddress @4 :Text;
  recordedStep @5 :UInt64;
}

struct HostStandby {
  term @0 :UInt64;
  address @1 :Text;
}

struct StandbyHello {
  node @0 :Text;
  pid @1 :Int32;
  address @2 :Text;
}

struct Replica {
  term @0 :UInt64;
  sequence @1 :UInt64;
  state @2 :Data;
}

struct ReplicaKept {
  sequence @0 :UInt64;
}

struct Command {
  words @0 :List(Text);
  who @1 :Text;
}

struct CommandReply {
  ok @0 :Bool;
  text @1 :Text;
  json @2 :Text;
}
