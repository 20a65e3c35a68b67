#include "transport/protocol/reason.hpp"

#include <cstring>

namespace simplescale {

std::string place_in_step(StepPhase phase, int block) {
  if (phase == StepPhase::none) return "";
  return std::string(" (") + to_string(phase) +
         (block >= 0 ? ", block " + std::to_string(block) : "") + ")";
}

std::string words_of(const Reason& r, std::string (*time)(int64_t ms)) {
  switch (r.kind) {
    case ReasonKind::exit_code:
      return ExitStatus{true, r.number}.text();
    case ReasonKind::signal:
      return ExitStatus{false, r.number}.text();
    case ReasonKind::silent:
      return "silent for " + time(r.ms);
    case ReasonKind::stopped:
      return "stopped, silent for " + time(r.ms);
    case ReasonKind::stuck:
      return "stuck at step " + std::to_string(r.step) + ": no unit computed for " + time(r.ms) +
             ", and not waiting in a collective";
    case ReasonKind::hung:
      return "hung in step " + std::to_string(r.step) + place_in_step(r.phase, r.block) +
             ": no progress for " + time(r.ms) + " while " + std::to_string(r.number) +
             (r.number == 1 ? " trainer waited" : " trainers waited");
    default:
      return r.text;
  }
}

Reason reason_of(Reason facts) {
  facts.text = words_of(facts, [](int64_t ms) { return std::to_string(ms) + " ms"; });
  return facts;
}

Reason reason_of(const ExitStatus& end) {
  return reason_of(
      {.kind = end.exited ? ReasonKind::exit_code : ReasonKind::signal, .number = end.code});
}

}  // namespace simplescale
