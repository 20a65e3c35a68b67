// What clients (the console, tests) ask the supervisor for, in words. Reading of words and answers
// to questions are pure functions of the supervisor's state; the actor carries out the rest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/supervisor.hpp"

namespace simplescale {

/// What words mean: an event for decide(), something to do, or a question (nothing of these).
struct Request {
  std::string error;  // not empty: cannot be done, and why
  std::string words;
  std::optional<job::Event> event;
  std::optional<InjectFault> fault;
  std::vector<std::string> restart;  // trainers whose processes are to end
  struct Trace {
    uint64_t first, count;
  };
  std::optional<Trace> trace;  // steps
  std::string save;            // the trainer that is to propose a checkpoint
};

/// Words as in verbs() (actors/supervisor/verbs.hpp).
Request parse_command(const job::State& state, const std::vector<std::string>& words,
                      const std::string& who);

/// Answers a question: why, plan, set; the status document for all others.
CommandReply describe(const JobState& state, const std::vector<std::string>& words);

}  // namespace simplescale
