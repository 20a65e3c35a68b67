// What a trainer does in a step, or between two.
#pragma once

#include <cstddef>
#include <iterator>

namespace simplescale {

enum class StepPhase : unsigned char {
  none,  // it makes no step
  data,
  forward,
  backward,
  vote,
  copy,  // waits until a copy of the older state has been made
  optimizer,
  restore,
  validation,
};

/// "forward"; "" for none.
constexpr const char* to_string(StepPhase phase) {
  constexpr const char* names[] = {"",     "data",      "forward", "backward",  "vote",
                                   "copy", "optimizer", "restore", "validation"};
  const auto index = static_cast<size_t>(phase);
  return index < std::size(names) ? names[index] : "?";
}

}  // namespace simplescale
