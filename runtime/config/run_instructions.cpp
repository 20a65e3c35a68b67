#include "runtime/config/run_instructions.hpp"

#include <string>

namespace simplescale {

Result<InstructionSet> run_instructions(const RunFolder& run) {
  const Result<std::string> text = read_text(run.instructions());
  if (text.status().code() == Code::not_found) return InstructionSet::automatic;
  SS_RETURN_IF_ERROR(text.status());
  const auto set = instruction_set(text->substr(0, text->find('\n')));
  if (set && *set != InstructionSet::automatic) return *set;
  return Status(Code::bad_data, run.instructions() +
                                    " names no instruction set: write the one that the event "
                                    "\"instructions\" in events.jsonl names into it");
}

Result<InstructionSet> required_instructions(const RunFolder& run, const Config& config) {
  if (config.cluster.device == DeviceKind::cuda) return InstructionSet::automatic;
  SS_ASSIGN(const InstructionSet recorded, run_instructions(run));
  return recorded != InstructionSet::automatic ? recorded : config.cluster.instructions;
}

}  // namespace simplescale
