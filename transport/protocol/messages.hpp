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
  std::string phase;
  bool operator==(const NodeHello&) const = default;
};
SS_FIELDS(NodeHello, x.node, x.host, x.pid, x.trainers, x.phase);

struct Heartbeat {
  std::string node;
  uint64_t generation = 0;
  uint64_t step = 0;
  bool operator==(const Heartbeat&) const = default;
};
SS_FIELDS(Heartbeat, x.node, x.generation, x.step);

/// A trainer presents itself to its node's agent. `data_address` is where its data plane is
/// reached.
struct TrainerHello {
  std::string trainer;
  int32_t pid = 0;
  std::vector<uint8_t> data_address;
  bool operator==(const TrainerHello&) const = default;
};
SS_FIELDS(TrainerHello, x.trainer, x.pid, x.data_address);

/// A trainer has committed a step. loss in nats per token.
struct StepDone {
  uint64_t generation = 0;
  uint64_t step = 0;
  std::string trainer;
  double loss = 0;
  double grad_norm = 0;
  double step_ms = 0;
  std::vector<uint64_t> samples;
  bool operator==(const StepDone&) const = default;
};
SS_FIELDS(StepDone, x.generation, x.step, x.trainer, x.loss, x.grad_norm, x.step_ms, x.samples);

/// Ends a generation: whoever works for it or an older one stops at once.
struct Abort {
  uint64_t generation = 0;
  std::string reason;
  bool operator==(const Abort&) const = default;
};
SS_FIELDS(Abort, x.generation, x.reason);

struct Text {
  std::string text;
  bool operator==(const Text&) const = default;
};
SS_FIELDS(Text, x.text);

template <class... Ts>
struct MessageList {};

/// Every message that may travel. A type belongs to the member of Body (protocol.capnp) of the same
/// name in camelCase.
using Messages = MessageList<Ping, Pong, NodeHello, Heartbeat, TrainerHello, StepDone, Abort, Text>;

}  // namespace simplescale
