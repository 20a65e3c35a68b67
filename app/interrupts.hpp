// Ctrl-C for commands that look between two parts of their work whether it came.
#pragma once

#include <csignal>
#include <initializer_list>

namespace simplescale {

/// How often it came. The process's main thread may set it back.
inline volatile sig_atomic_t interrupts = 0;

/// Counts these signals from now on instead of ending the process.
inline void count_interrupts(std::initializer_list<int> signals) {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupts = interrupts + 1; };
  for (const int number : signals) sigaction(number, &action, nullptr);
}

}  // namespace simplescale
