#include "actors/supervisor/decision/sentence.hpp"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "actors/supervisor/decision/placement.hpp"
#include "actors/supervisor/decision/queries.hpp"
#include "runtime/base/words.hpp"
#include "transport/protocol/reason.hpp"

namespace simplescale::job {
namespace {

bool is_trainer(const std::string& name) {
  return name.find('.') != std::string::npos;
}

/// "64 ms", "2.0 s", "60 s", "5 min".
std::string duration(int64_t ms) {
  char text[32];
  if (ms < 100)
    std::snprintf(text, sizeof text, "%lld ms", static_cast<long long>(ms));
  else if (ms < 10'000)
    std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ms) / 1e3);
  else if (ms < 300'000)
    std::snprintf(text, sizeof text, "%.0f s", static_cast<double>(ms) / 1e3);
  else
    std::snprintf(text, sizeof text, "%.0f min", static_cast<double>(ms) / 6e4);
  return text;
}

/// Words of another layer with "60012 ms" written as "60 s".
std::string with_durations(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
    if (end > i && end - i < 16 && text.compare(end, 3, " ms") == 0) {
      out += duration(std::strtoll(text.c_str() + i, nullptr, 10));
      i = end + 3;
    } else {
      end = std::max(end, i + 1);
      out.append(text, i, end - i);
      i = end;
    }
  }
  return out;
}

std::string in_brackets(const std::string& text) {
  return text.empty() ? "" : " (" + text + ")";
}

/// The words of the reason, with short durations.
std::string shown(const Reason& reason) {
  return reason.kind == ReasonKind::words ? with_durations(reason.text)
                                          : words_of(reason, duration);
}

/// How a trainer ended, as a predicate: "was killed (signal 9)".
std::string how_it_ended(const Reason& reason) {
  switch (reason.kind) {
    case ReasonKind::signal: {
      const std::string code = "(signal " + std::to_string(reason.number);
      if (reason.number == SIGKILL || reason.number == SIGTERM) return "was killed " + code + ")";
      std::string name = strsignal(reason.number);
      name[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(name[0])));
      return "crashed " + code + ", " + name + ")";
    }
    case ReasonKind::exit_code:
      return "ended with " + reason.text;
    case ReasonKind::process_ended:
      return "died";
    case ReasonKind::restarted:
    case ReasonKind::stopped:
    case ReasonKind::silent:
      return "was " + shown(reason);
    case ReasonKind::stuck:
      return "hung in step " + number(reason.step + 1) + " (" + duration(reason.ms) +
             " without progress)";
    case ReasonKind::hung:
      return shown(reason);
    default:
      return reason.text.empty() ? "died" : "failed: " + shown(reason);
  }
}

/// True if the process of the trainer, or the node, has ended.
bool ended(const std::string& kind) {
  return kind == "trainer_down" || kind == "trainer_ended" || kind == "trainer_hung" ||
         kind == "fence_ignored" || kind == "node_lost";
}

/// Rates how well a record of this kind tells what went wrong; the greatest wins. The loss of a
/// node makes trainers fail, and the loss of a trainer makes most failed steps.
int rank_of(const std::string& kind) {
  if (kind == "run_died") return 5;
  if (kind == "node_lost") return 4;
  if (kind == "step_failed" || kind == "left") return 1;
  if (kind == "no_first_step" || kind == "unknown_generation" || kind == "trainer_replaced")
    return 2;
  return 3;
}

bool is_part_of(const std::string& name, const std::string& whole) {
  return name == whole || node_of(name) == whole;
}

/// Past tense for an incident, present tense for a forecast.
struct Tense {
  bool past;
  const char* of(const char* was, const char* is) const { return past ? was : is; }
};

std::string remaining_groups(const IncidentFacts& f, const Tense& tense) {
  const std::string others =
      f.groups_after == 1
          ? std::string("the other group ") + tense.of("took", "takes")
          : "the other " + counted(f.groups_after, "group") + " " + tense.of("took", "take");
  return others + " over its samples";
}

/// How training continued: "it was replaced", "n2 took the place of n1", …
std::string remedy(const IncidentFacts& f, const Tense& tense) {
  if (f.kind == "run_died") return f.undone == 0 ? "the run was started again" : "";
  std::vector<std::string> taken, given;
  for (const auto& domain : f.after.domains)
    for (const std::string& node : domain)
      if (!f.before.contains(node)) taken.push_back(node);
  for (const auto& domain : f.before.domains)
    for (const std::string& node : domain)
      if (!f.after.contains(node)) given.push_back(node);
  const bool other_size = f.nodes_after != f.nodes_before;
  const std::string groups =
      groups_instead(f.groups_after, f.nodes_after, f.groups_before, f.nodes_before);
  const bool same = f.groups_after == f.groups_before && !other_size;
  const std::string trains_now = same || f.groups_before == 0 ? "" : " (" + groups + ")";
  if (!taken.empty() && !given.empty())
    return joined(taken, " and ") + " " + tense.of("took", taken.size() > 1 ? "take" : "takes") +
           " the place of " + joined(given, " and ") + trains_now;
  if (other_size && taken.empty() && f.groups_before > 0)
    return std::string(given.empty() ? "the nodes " : "the nodes that are left ") +
           tense.of("formed", "form") + " " + groups;
  if (!given.empty() && f.groups_after > 0) return remaining_groups(f, tense) + trains_now;
  if (!taken.empty())
    return joined(taken, " and ") + " " + tense.of("joined", taken.size() > 1 ? "join" : "joins") +
           trains_now;
  if (!f.returned.empty())
    return joined(f.returned, " and ") + " " + tense.of("came", "comes") + " back";
  if (f.kind == "bad_copy" && f.undone == 0)
    return std::string("another copy ") + tense.of("was", "is") + " used";
  if (!ended(f.kind)) return "";
  return f.also.empty() ? std::string("it ") + tense.of("was", "is") + " replaced"
                        : std::string("they ") + tense.of("were", "are") + " replaced";
}

/// Why steps were rolled back: why no newer state was left.
std::string why_undone(const IncidentFacts& f, const Tense& tense) {
  if (f.kind == "mismatch") return tense.of("", "the replicas differ");
  if (f.kind == "bad_copy")
    return std::string("no other copy of it ") + tense.of("existed", "exists");
  if (f.kind != "node_lost")
    return std::string("no newer state ") + tense.of("was", "is") + " left";
  std::string text = f.subject + "'s memory " + tense.of("was", "is") + " lost";
  if (f.groups_before == 1)
    text += std::string(" and there ") + tense.of("was", "is") + " no replica (one group)";
  else
    text += " and no other node had a replica of it";
  return text;
}

std::string newest_copy(const IncidentFacts& f) {
  if (f.origin == "checkpoint") return "checkpoint " + number(f.begins_at);
  if (f.origin == "initial values") return "the beginning, since no checkpoint is left";
  if (f.origin == "peer copies")
    return "the copies of step " + number(f.begins_at) + " on other nodes";
  return "step " + number(f.begins_at);
}

/// What was done and how many steps it cost. The caller adds the capital letter and the full stop.
std::string consequence(const IncidentFacts& f, const Tense& tense) {
  const std::string what = remedy(f, tense);
  const std::string next = number(f.begins_at + 1);
  if (f.undone == 0)
    return (what.empty()
                ? std::string("all trainers ") + tense.of("made", "make") + " step " + next +
                      " again"
                : what + ", and training " + tense.of("went", "goes") + " on with step " + next) +
           ": no step " + tense.of("was", "is") + " lost";
  const std::string why = why_undone(f, tense);
  const std::string steps = counted(static_cast<int64_t>(f.undone), "step") + " " +
                            (f.undone == 1 ? tense.of("was", "is") : tense.of("were", "are")) +
                            " repeated";
  return (what.empty() ? why : what + (why.empty() ? "" : ", but " + why)) +
         (what.empty() && why.empty() ? "training " : ", so training ") + tense.of("went", "goes") +
         " back from step " + number(f.begins_at + f.undone) + " to " + newest_copy(f) + ": " +
         steps;
}

/// Makes the first letter a capital. Names of nodes and trainers stay as they are.
std::string capital(std::string text) {
  const bool name = text.size() > 1 && std::isdigit(static_cast<unsigned char>(text[1]));
  if (!text.empty() && !name)
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::string to_avoid(const IncidentFacts& f) {
  if (f.undone == 0 || f.kind != "node_lost" || f.avoid.empty()) return "";
  return " To avoid this: " + f.avoid + ".";
}

std::string of_supervisor(const IncidentFacts& f) {
  return (f.stood_by ? "The standby on " + f.successor : "A new supervisor on " + f.successor) +
         " took over";
}

}  // namespace

std::string what_failed(const std::string& kind, const std::string& subject, const Reason& reason) {
  if (kind == "run_died")
    return "All processes of the run ended without a word: they were killed, or their hosts went "
           "down";
  const std::string why = reason.text.empty() ? "" : ": " + shown(reason);
  const std::string who = (is_trainer(subject) ? "Trainer " : "Node ") + subject;
  if (kind == "supervisor_lost") {
    const std::string where = subject == "supervisor" ? "" : " on " + subject;
    if (reason.kind == ReasonKind::both_ended)
      return "The supervisor" + where + " and its standby died";
    return "The supervisor" + where +
           (reason.kind == ReasonKind::process_ended ? " died" : " was lost" + why);
  }
  if (kind == "node_lost") {
    const bool silent = reason.kind == ReasonKind::silent || reason.kind == ReasonKind::stopped;
    return who + " was lost" + (silent ? ": its agent was " + shown(reason) : why);
  }
  if (kind == "newer_state") return who + " came back with a newer state" + why;
  if (kind == "trainer_hung") return who + " " + shown(reason);
  if (ended(kind)) return who + " " + how_it_ended(reason);
  if (kind == "non_finite")
    return (is_trainer(subject) ? who + " computed a value that is not finite"
                                : "The loss or gradient is not finite") +
           in_brackets(reason.detail);
  if (kind == "mismatch")
    return (is_trainer(subject) ? who + " computed another state than its replicas"
                                : "Replicas computed different states") +
           (reason.step > 0 ? " in step " + number(reason.step) : in_brackets(reason.text));
  if (kind == "bad_copy")
    return "The state in the memory of " + subject + " was damaged" + in_brackets(reason.text);
  if (kind == "bad_checkpoint") return "A checkpoint could not be used" + why;
  if (kind == "bad_disk") return who + " could not read the checkpoint" + why;
  if (kind == "bad_tokens") return "The data cannot be trained" + why;
  if (kind == "bad_order") return who + " got a wrong order" + why;
  if (kind == "step_failed")
    return "A step failed" + (subject.empty() ? "" : " on " + subject) + why;
  if (kind == "no_first_step") return capital(subject) + " did not begin to train in time" + why;
  return who + " failed" + why;
}

Reason why_node_lost(const std::optional<Reason>& why) {
  if (!why || why->kind == ReasonKind::process_ended)
    return reason_of(ReasonKind::process_ended, "its agent has ended");
  Reason reason = *why;
  switch (reason.kind) {
    case ReasonKind::connection_lost:
      reason.text = "the connection to its agent broke (" + reason.detail + ")";
      return reason;
    case ReasonKind::silent:
    case ReasonKind::stopped:
      reason.text = "its agent was " + reason.text;
      return reason;
    default:
      return in_words("its agent: " + reason.text);
  }
}

void add(IncidentFacts& f, const State& state, const Record& r) {
  if (r.kind == "checkpoint_skipped") f.skipped.push_back("checkpoint " + number(r.count));
  const bool of_another = r.kind == "supervisor_lost" || r.kind == "bad_checkpoint";
  if ((r.phase == "detect" && (f.kind.empty() || !of_another)) || r.kind == "fence_ignored" ||
      r.kind == "bad_copy") {
    const bool better = f.kind.empty() || rank_of(r.kind) > rank_of(f.kind);
    if (better) {
      if (rank_of(f.kind) > 1 && !f.subject.empty() && !is_part_of(f.subject, r.subject))
        f.also.push_back(f.subject);
      f.kind = r.kind, f.subject = r.subject, f.reason = r.reason;
      std::erase_if(f.also, [&](const std::string& name) { return is_part_of(name, r.subject); });
    } else if (rank_of(r.kind) > 1 && !is_part_of(r.subject, f.subject) &&
               std::ranges::find(f.also, r.subject) == f.also.end()) {
      f.also.push_back(r.subject);
    }
  }
  if (r.kind == "trainer_ended" && f.subject == r.subject) f.reason = r.reason;
  if (r.kind == "steps_undone") f.undone += r.count;
  if (r.kind == "steps_regained") f.undone -= std::min(f.undone, r.count);
  if (r.kind == "node_up" && !r.reason.text.empty() && r.subject == f.subject)
    f.returned.push_back(r.subject);
  if (r.kind == "took_over") f.successor = r.subject;
  if (r.phase != "decide" || r.kind == "took_over") return;
  const int per_domain = state.rules.groups_per_domain();
  if (f.joins++ == 0) {
    f.before = state.previous_layout;
    f.groups_before = static_cast<int>(f.before.domains.size()) * per_domain;
    f.nodes_before = state.rules.size_of(f.before);
  }
  f.after = state.layout;
  f.groups_after = static_cast<int>(f.after.domains.size()) * per_domain;
  f.nodes_after = state.rules.size_of(f.after);
  f.origin = state.joined_from;
  f.begins_at = state.joined_step;
}

std::string sentence(const IncidentFacts& f) {
  std::string text = what_failed(f.kind, f.subject, f.reason);
  text += ".";
  if (!f.cause.empty()) text += " Cause: " + f.cause + ".";
  if (!f.also.empty()) text += " " + joined(f.also, " and ") + " failed, too.";
  if (!f.skipped.empty()) text += " " + capital(joined(f.skipped, " and ")) + " could not be used.";
  const Tense past{true};
  if (f.joins > 0) text += " " + capital(consequence(f, past)) + ".";
  if (f.joins > 1) text += " It took " + counted(f.joins, "attempt") + ".";
  if (f.kind == "supervisor_lost" && f.joins == 0 && !f.successor.empty())
    return text + " " + of_supervisor(f) + ": training did not pause.";
  if (!f.successor.empty()) text += " Meanwhile the supervisor died. " + of_supervisor(f) + ".";
  if (f.ms < 0) return text + " It is not over yet.";
  return text + " Stopped for " + duration(f.ms) + "." + to_avoid(f);
}

std::string forecast(const IncidentFacts& f) {
  if (f.joins == 0) return "training waits for enough nodes.";
  return consequence(f, Tense{false}) + "." + to_avoid(f);
}

}  // namespace simplescale::job
