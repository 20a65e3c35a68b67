// The order of a step as data: what is gathered, computed, reduced and exchanged when.
//
// A program is a pure function of the model, the buffers and the number of micro-batches. It does not
// depend on the rank, so all ranks start their collectives in the same order. The engine executes it
// task by task (engine_parts.cpp); tests replay it. Any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/buffer_plan.hpp"

namespace simplescale {

enum class Op : unsigned char {
  gather,          // starts to gather the unit into `slot`
  embed,           // begins micro-batch `micro_batch` in `frame`
  route,           // starts to send its tokens to the trainers that have their experts
  forward,         // of a block or its experts; of resident ones, for the tokens of all trainers
  combine,         // adds what other trainers' experts return for its tokens
  head,            // forward and backward; the gradient goes to `slot`
  evaluate,        // the head's loss only
  route_backward,  // as route, with the gradients of what the experts return
  backward,  // of a block or its experts; the gradient goes to `slot`, of resident experts those
             // of all trainers' micro-batches, one behind the other
  combine_backward,  // as combine, of gradients
  backward_embed,    // ends the micro-batch's passes; the gradient goes to `slot`
  add,               // adds the gradient in `slot` to the wave's in `sum`
  reduce,      // starts to add the gradient in `slot`, or the wave's in `sum`, to the sum of this
               // trainer's shard
  reduced,     // waits for that, and frees that buffer
  exchange,    // starts to add the unit's sums of all groups
  download,    // waits for that, and starts to copy the unit's total gradient to host memory
  downloaded,  // what follows on the device waits for that copy, which frees its window
  record,      // reads the loss of the micro-batch
  hash,        // starts to hash the committed state
  check,       // waits for that hash, and compares it with that of the commit
  finish,      // waits for all sums
  vote,        // all ranks decide about the step
  update,      // the optimizer makes the next state
  commit,      // which becomes the committed one
};

/// unit: of the model; for reduce, reduced and exchange also the number of units, which is lm_head's
/// part of the gradient of tied embeddings. It is added to them in their download, or in `finish`.
struct Task {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  Op op = Op::gather;
  size_t unit = 0;
  int turn = 0;         // of the group in the step (sharding.hpp)
  int micro_batch = 0;  // of this trainer in the step
  int frame = 0;
  // gather: index in the gather pools' buffers, in order; else in the gradients'. kNone of a gradient:
  // backward writes into the slice.
  size_t slot = 0;
  size_t slot2 = kNone;   // head of tied embeddings: of lm_head's part of their gradient
  size_t sum = kNone;     // index in the sums' buffers
  size_t window = kNone;  // reduce: index in the windows, of the sums that leave the device
  bool operator==(const Task&) const = default;
};

using Program = std::vector<Task>;

struct ProgramOptions {
  size_t units = 0;  // of the model: embeddings, blocks, head
  bool tied = false;
  std::vector<int> turns = {1};         // micro-batches of a trainer in each turn of the group
  std::vector<size_t> of_experts = {};  // the units of experts, in order
  bool resident = false;                // experts are not gathered (has_resident_experts())
  /// True for a unit of experts that are not gathered.
  bool is_resident(size_t unit) const {
    return resident && std::ranges::binary_search(of_experts, unit);
  }
};
/// Of a model, with one micro-batch.
ProgramOptions program_options(const std::vector<Unit>& units, bool tied, bool resident = false);

/// A step. plan: of the same model.
Program step_program(const ProgramOptions& options, const BufferPlan& plan);
/// The loss of one micro-batch, without gradients.
Program loss_program(const ProgramOptions& options, const BufferPlan& plan);

/// True if the task reads its unit's parameters.
bool needs_unit(const Task& task);
/// The other unit whose parameters the task reads beside its own: the embeddings for a head that is tied
/// to them, the block for the backward pass of its experts, or for what sends their gradients.
std::optional<size_t> second_unit(const Task& task, const ProgramOptions& options);

const char* to_string(Op op);
/// One line for each task, as `config show --program` prints it. units: the model's, for their names.
std::string to_text(const Program& program, const std::vector<Unit>& units);

}  // namespace simplescale
