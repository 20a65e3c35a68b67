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

/// A node agent presents itself to the supervisor.
struct NodeHello {
  std::string node;
  std::string host;
  int32_t pid = 0;
  uint32_t trainers = 0;
  bool operator==(const NodeHello&) const = default;
};
SS_FIELDS(NodeHello, x.node, x.host, x.pid, x.trainers);

/// A trainer presents itself to its node's agent. `data_address` is where its data plane is
/// reached.
struct TrainerHello {
  std::string trainer;
  int32_t pid = 0;
  std::vector<uint8_t> data_address;
  bool operator==(const TrainerHello&) const = default;
};
SS_FIELDS(TrainerHello, x.trainer, x.pid, x.data_address);

/// Node to supervisor: a trainer is up and in no generation. held: steps whose state it has in
/// memory.
struct TrainerUp {
  std::string trainer;
  int32_t pid = 0;
  std::vector<uint8_t> data_address;
  std::vector<uint64_t> held;
  bool operator==(const TrainerUp&) const = default;
};
SS_FIELDS(TrainerUp, x.trainer, x.pid, x.data_address, x.held);

/// Node to supervisor: a trainer's process has ended; restarting: the node starts another one.
struct TrainerDown {
  std::string trainer;
  std::string reason;
  bool restarting = false;
  bool operator==(const TrainerDown&) const = default;
};
SS_FIELDS(TrainerDown, x.trainer, x.reason, x.restarting);

/// One trainer of a generation.
struct Member {
  std::string trainer;
  uint32_t group = 0;
  uint32_t shard = 0;
  std::vector<uint8_t> data_address;
  bool operator==(const Member&) const = default;
};
SS_FIELDS(Member, x.trainer, x.group, x.shard, x.data_address);

/// Supervisor to nodes: a generation begins at `step`, whose state comes from source (initialize,
/// checkpoint, memory).
struct JoinGeneration {
  uint64_t generation = 0;
  std::string source;
  uint64_t step = 0;
  std::string checkpoint;  // the checkpoints folder
  std::vector<Member> members;
  bool operator==(const JoinGeneration&) const = default;
};
SS_FIELDS(JoinGeneration, x.generation, x.source, x.step, x.checkpoint, x.members);

struct DataAddress {
  std::vector<uint8_t> bytes;
  bool operator==(const DataAddress&) const = default;
};
SS_FIELDS(DataAddress, x.bytes);

/// Node to trainer: its place in a generation. Members are in rank order of the two communicators.
struct JoinTrainer {
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
  bool operator==(const JoinTrainer&) const = default;
};
SS_FIELDS(JoinTrainer, x.generation, x.group, x.shard, x.ring, x.state_segment, x.ring_segment,
          x.source, x.step, x.checkpoint, x.shard_members, x.replicate_members);

/// A trainer has left a generation, told to or by a failure, and waits. The node adds which steps
/// its memory holds.
struct TrainerIdle {
  std::string trainer;
  uint64_t generation = 0;
  std::vector<uint64_t> held;
  std::string reason;
  bool operator==(const TrainerIdle&) const = default;
};
SS_FIELDS(TrainerIdle, x.trainer, x.generation, x.held, x.reason);

/// A trainer has committed a step. loss in nats per token. samples: first, count, first, count, ...
/// of its micro-batches. save: the trainer has pinned the step's state for a checkpoint.
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
  bool operator==(const StepDone&) const = default;
};
SS_FIELDS(StepDone, x.generation, x.step, x.trainer, x.loss, x.grad_norm, x.learning_rate,
          x.step_ms, x.samples, x.save);

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
                StopTraining, ShardSaved, RequestStop, Shutdown, Text>;

}  // namespace simplescale
