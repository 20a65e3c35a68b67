// Makes Reasons (protocol.capnp): why a process, a connection or a step ended, as facts and in
// words. Pure functions, any thread.
#pragma once

#include <string>

#include "runtime/base/process.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// A reason that has only words.
inline Reason in_words(std::string text) {
  return {.text = std::move(text)};
}
/// A reason whose words are not made of its facts.
inline Reason reason_of(ReasonKind kind, std::string text) {
  return {.text = std::move(text), .kind = kind};
}
inline Reason connection_lost(std::string why) {
  return {.text = "connection lost: " + why,
          .kind = ReasonKind::connection_lost,
          .detail = std::move(why)};
}
inline Reason process_ended() {
  return reason_of(ReasonKind::process_ended, "its process has ended");
}
/// A reason of a kind that words_of() knows. `facts` without text.
Reason reason_of(Reason facts);
Reason reason_of(const ExitStatus& end);

/// The words of a reason; those without facts have their text. time: makes the text of its
/// milliseconds.
std::string words_of(const Reason& reason, std::string (*time)(int64_t ms));

/// " (backward, block 3)"; "" for none.
std::string place_in_step(StepPhase phase, int block);

}  // namespace simplescale
