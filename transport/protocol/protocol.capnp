# Everything that travels on the control plane. An active message carries one Envelope; its Body carries one message.
#
# To add a message: a struct here, a member of Body here, and a C++ struct with its line in messages.hpp. Field numbers are
# given in the order of the C++ fields, names are the C++ names in camelCase; a check at start-up compares the two.
# To change one: append fields only, and raise `protocolVersion` if older programs would misread the result.
@0xd3a6c1f5b2e84977;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("simplescale::wire");

const protocolVersion :UInt32 = 1;

struct Envelope {
  union {
    hello @0 :Hello;            # first message of a process that connects
    welcome @1 :Hello;          # the answer to it, from there on both may send
    refused @2 :Text;           # the other answer: why not
    goodbye @3 :Text;           # the sender forgets the receiver: why
    heartbeat @4 :Void;         # "I live", sent when nothing else was
    message @5 :Message;
    exit @6 :Exit;
    down @7 :Down;
    link @8 :Link;
    unlink @9 :Link;
    lookup @10 :Lookup;
    found @11 :Found;
  }
}

struct Hello {
  version @0 :UInt32;
  runId @1 :Text;
  node @2 :Data;                # identity of the sending process, 24 bytes
  token @3 :UInt64;             # what the receiver of this puts in front of every message to the sender
  address @4 :Data;             # UCX worker address of the sender
  checksum @5 :UInt64;          # of the address, since UCX trusts what it is given
}

struct Message {
  sender @0 :UInt64;            # actor id in the sending process, 0 for none
  receiver @1 :UInt64;          # actor id in the receiving process
  id @2 :UInt64;                # CAF's message id: request or response number and priority
  body @3 :Body;
}

struct Exit {                   # somebody asks an actor to quit (send_exit, or a link broke)
  source @0 :UInt64;            # actor id in the sending process, 0 for none
  receiver @1 :UInt64;
  reason @2 :Error;
}

struct Down {                   # an actor of the sender that the receiver knows has terminated
  actor @0 :UInt64;
  reason @1 :Error;
}

struct Link {                   # an actor of the sender links to, or unlinks from, one of the receiver
  source @0 :UInt64;
  receiver @1 :UInt64;
}

struct Lookup {
  id @0 :UInt64;
  name @1 :Text;
}

struct Found {
  id @0 :UInt64;
  actor @1 :UInt64;             # 0: nothing is published under that name
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
    heartbeat @5 :Heartbeat;
    trainerHello @6 :TrainerHello;
    stepDone @7 :StepDone;
    abort @8 :Abort;
    text @9 :TextMessage;       # (Text is Cap'n Proto's own)
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
  phase @4 :Text;
}

struct Heartbeat {
  node @0 :Text;
  generation @1 :UInt64;
  step @2 :UInt64;
}

struct TrainerHello {
  trainer @0 :Text;
  pid @1 :Int32;
  dataAddress @2 :Data;
}

struct StepDone {
  generation @0 :UInt64;
  step @1 :UInt64;
  trainer @2 :Text;
  loss @3 :Float64;
  gradNorm @4 :Float64;
  stepMs @5 :Float64;
  samples @6 :List(UInt64);
}

struct Abort {
  generation @0 :UInt64;
  reason @1 :Text;
}

struct TextMessage {
  text @0 :Text;
}
