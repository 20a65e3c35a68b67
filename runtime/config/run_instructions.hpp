// The set of vector instructions with which the trainers of a run compute. control/instructions has its
// name; the supervisor writes it before the first generation (Decider::choose_instructions()). Any
// thread; blocks on the file system.
#pragma once

#include "runtime/base/instruction_set.hpp"
#include "runtime/base/status.hpp"
#include "runtime/config/config.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

/// automatic: none is recorded: the run has not begun, computes on GPUs, or is of an earlier version.
/// bad_data: the file is damaged; io.
Result<InstructionSet> run_instructions(const RunFolder& run);
/// What a start of the run is held to. automatic: its first generation chooses, or the run computes on
/// GPUs. Errors: as run_instructions().
Result<InstructionSet> required_instructions(const RunFolder& run, const Config& config);

}  // namespace simplescale
