// Parses the commands of consoles and other clients, and answers their questions. Pure functions of
// plain data; console_commands.hpp carries the commands out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"
#include "actors/supervisor/incidents.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

/// What a command asks for: an event for decide(), another action, or nothing (a question).
struct Request {
  std::string error;  // why the command is refused; empty: it is accepted
  bool early =
      false;  // refused only because the next generation is not up yet: it can be asked again
  std::string words;  // the command, separated by spaces
  std::optional<job::Event> event;
  std::optional<InjectFault> fault;
  std::vector<std::string> restart;  // trainers to kill, so that their processes are restarted
  struct Trace {
    uint64_t first, count;
  };
  std::optional<Trace> trace;  // steps to trace
  std::string save;            // the trainer that has to propose a checkpoint
  /// False for a question, which changes nothing.
  bool acts() const { return event || fault || trace || !restart.empty() || !save.empty(); }
};

/// words: one of verbs() (verbs.hpp) and its arguments. who: the client, for the event log.
Request parse_command(const job::State& state, const std::vector<std::string>& words,
                      const std::string& who);

/// Why this fault hits nothing now: its node has no agent that reports, or its trainer no process.
/// "" if it can be injected.
std::string why_unreachable(const job::State& state, const InjectFault& fault);

/// Answers the questions `why` and `plan`, and `set` and `inject` without arguments. Returns
/// nothing for other questions; the caller answers those with the status document. standby: the
/// supervisor's, if it has one.
std::optional<CommandReply> answer_question(const job::State& job, const Incidents& incidents,
                                            const std::optional<StandbyHello>& standby,
                                            const std::vector<std::string>& words);

}  // namespace simplescale
