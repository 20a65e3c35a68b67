#include "tests/simulation/cluster.hpp"

namespace simplescale::simulation {

namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

std::string number(uint64_t n) {
  return std::to_string(n);
}

std::string listed(const std::vector<StateCopy>& list) {
  std::string text = "{";
  for (const StateCopy& x : list)
    text += (text.size() > 1 ? ", " : "") + number(x.shard) + "/" + number(x.shards) + "@" +
            number(x.step) + " of " + number(x.generation);
  return text + "}";
}

}  // namespace

std::string text_of(const job::Event& event) {
  return std::visit(
      Overloaded{
          [](const job::NodeUp& e) { return "NodeUp " + e.node + " " + std::to_string(e.pid); },
          [](const job::NodeLost& e) { return "NodeLost " + e.node; },
          [](const job::TrainerUp& e) {
            return "TrainerUp " + e.trainer + " held " + listed(e.held) + " generation " +
                   number(e.generation);
          },
          [](const job::TrainerDown& e) { return "TrainerDown " + e.trainer; },
          [](const job::TrainerIdle& e) {
            return "TrainerIdle " + e.trainer + " generation " + number(e.generation) + " held " +
                   listed(e.held) + " fault " + std::to_string(static_cast<int>(e.fault)) +
                   " step " + number(e.step) + (e.suspect.empty() ? "" : " suspect " + e.suspect);
          },
          [](const job::TrainerReady& e) {
            return "TrainerReady " + e.trainer + " generation " + number(e.generation);
          },
          [](const job::PeerCopies& e) {
            std::string text = "PeerCopies " + e.node + " " + listed(e.copies);
            if (e.fence > 0) text += ", answers fence " + number(e.fence);
            return text;
          },
          [](const job::StepCommitted& e) {
            return "StepCommitted " + number(e.step) + " generation " + number(e.generation);
          },
          [](const job::SpeedsMeasured& e) {
            return "SpeedsMeasured generation " + number(e.generation) + " stragglers " +
                   number(e.stragglers.size());
          },
          [](const job::TrainerFinished& e) {
            return "TrainerFinished " + e.trainer + " generation " + number(e.generation);
          },
          [](const job::CheckpointWritten& e) {
            return "CheckpointWritten " + number(e.step) + " generation " + number(e.generation);
          },
          [](const job::CheckpointSaved& e) { return "CheckpointSaved " + number(e.step); },
          [](const job::CheckpointsLeft& e) { return "CheckpointsLeft " + number(e.steps.size()); },
          [](const job::CheckpointFailed& e) { return "CheckpointFailed " + number(e.step); },
          [](const job::Suspected& e) { return "Suspected " + e.trainer; },
          [](const job::TrainerHung& e) {
            return "TrainerHung " + e.trainer + " generation " + number(e.generation);
          },
          [](const job::NodeChecked& e) {
            return "NodeChecked " + e.node + (e.ok ? " fit" : " not fit");
          },
          [](const job::StopRequested&) { return std::string("StopRequested"); },
          [](const job::PauseRequested& e) { return std::string(e.pause ? "pause" : "resume"); },
          [](const job::DrainRequested& e) {
            return (e.for_good ? "remove " : e.drain ? "drain " : "undrain ") + e.node;
          },
          [](const job::DiagnoseRequested& e) {
            return "diagnose " + number(e.nodes.size()) + " nodes";
          },
          [](const job::SetRequested& e) { return "set " + e.key + " " + job::shortest(e.value); },
          [](const job::Tick&) { return std::string("Tick"); },
      },
      event);
}

std::string text_of(const job::Action& action) {
  return std::visit(
      Overloaded{
          [](const job::Fence& a) { return "Fence " + number(a.generation) + ": " + a.reason; },
          [](const job::Leave& a) { return "Leave " + number(a.generation) + ": " + a.reason; },
          [](const job::Join& a) {
            std::string text = "Join " + number(a.generation) + " step " + number(a.step) +
                               " from " + to_string(a.source) + (a.by_agents ? " by agents" : "");
            for (const job::Move& move : a.moves) {
              text += "; " + number(move.shard) + "/" + number(move.shards) + "@" +
                      number(move.step) + " " + move.source +
                      (move.peer ? "'s peer copy to" : " to");
              for (const std::string& target : move.targets) text += " " + target;
            }
            return text;
          },
          [](const job::KillTrainer& a) {
            return "KillTrainer " + a.trainer + ": " + a.reason.text;
          },
          [](const job::AdmitNode& a) { return "AdmitNode " + a.node; },
          [](const job::EndNode& a) { return "EndNode " + a.node + ": " + a.reason; },
          [](const job::CheckNode& a) { return "CheckNode " + a.node + ": " + a.reason; },
          [](const job::StopAtStep& a) { return "StopAtStep: " + a.reason; },
          [](const job::PruneCheckpoints& a) {
            return "PruneCheckpoints " + std::to_string(a.step);
          },
          [](const job::Shutdown& a) {
            return std::string("Shutdown ") + to_string(a.exit) + ": " + a.reason;
          },
          [](const job::Record& a) {
            return "Record " + a.phase + " " + a.kind + " " + a.subject + ": " + a.reason.text;
          },
      },
      action);
}

}  // namespace simplescale::simulation
