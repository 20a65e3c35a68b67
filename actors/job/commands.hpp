// What clients (the console, tests) ask the supervisor for, in words. Reading of words and answers
// to questions are pure functions of the supervisor's state; the actor carries out the rest.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/job/supervisor.hpp"

namespace simplescale {

/// What words mean: an event for decide(), a fault to inject, or a question (neither).
struct Request {
  std::string error;  // not empty: cannot be done, and why
  std::string words;
  std::optional<job::Event> event;
  std::optional<InjectFault> fault;
};

/// pause | resume | stop | drain NODE | undrain NODE | diagnose NODE | restart TRAINER |
/// inject KIND TARGET [--at STEP] [--ms MS] [--value X] | status | why INCIDENT | plan KIND TARGET
Request parse_command(const job::State& state, const std::vector<std::string>& words,
                      const std::string& who);

/// Answers a question: status, why, plan.
CommandReply describe(const JobState& state, const std::vector<std::string>& words);

}  // namespace simplescale
