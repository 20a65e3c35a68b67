// BACKEND-3: with which instructions a run computes, and which hosts it refuses.
#include "actors/supervisor/decision/placement.hpp"
#include "tests/actors/supervisor/decide_cases.hpp"

namespace simplescale::job::test {
namespace {

constexpr auto kAvx2 = InstructionSet::avx2, kAvx512 = InstructionSet::avx512,
               kGeneric = InstructionSet::generic, kUnknown = InstructionSet::automatic;

Decision host_up(State& s, const std::string& node, InstructionSet best,
                 InstructionSet of_run = kUnknown, int32_t pid = 1) {
  Decision last = decide(0, s, NodeUp{node, pid, {}, best, of_run});
  for (int slot = 0; slot < 2; ++slot) {
    Decision d = decide(0, s, TrainerUp{trainer_name(node, slot), pid, {1}, {}, 0});
    last.actions.insert(last.actions.end(), d.actions.begin(), d.actions.end());
  }
  return last;
}

std::string recorded(const Decision& d, const std::string& kind) {
  std::string text;
  for (const Record& r : all<Record>(d))
    if (r.kind == kind) text += r.subject + ": " + r.reason.text;
  return text;
}

}  // namespace

TEST_CASE("job: BACKEND-3: the first generation takes the best set that all hosts have") {
  State s = job_of(1, 1);
  decide(0, s, NodeUp{"n1", 1, {}, kAvx2});  // a spare whose trainers are not up counts, too
  CHECK(s.instructions == kUnknown);
  host_up(s, "n0", kAvx512);
  CHECK(s.instructions == kAvx2);
  State equal = job_of(2);
  host_up(equal, "n0", kAvx512);
  CHECK(recorded(host_up(equal, "n1", kAvx512), "instructions") ==
        "avx512: the best that all hosts have");
  CHECK(equal.instructions == kAvx512);
  State mixed = job_of(2);
  host_up(mixed, "n0", kAvx512);
  CHECK(recorded(host_up(mixed, "n1", kAvx2), "instructions") ==
        "avx2: the best that all hosts have; n1 has none better");
  CHECK(mixed.instructions == kAvx2);
  CHECK(mixed.layout.domains.size() == 2);
}

TEST_CASE("job: BACKEND-3: a run on GPUs has no instructions and refuses no host") {
  State s = job_of(2);
  host_up(s, "n0", kUnknown);
  CHECK(recorded(host_up(s, "n1", kUnknown), "instructions").empty());
  CHECK(s.instructions == kUnknown);
  CHECK(s.layout.domains.size() == 2);
}

TEST_CASE("job: BACKEND-3: a later host that lacks them is drained, one with better ones trains") {
  State s = job_of(2, 1);
  host_up(s, "n0", kAvx512);
  host_up(s, "n1", kAvx512);
  CHECK(
      recorded(host_up(s, "n2", kAvx2), "drained")
          .starts_with(
              "n2: this run computes with avx512 instructions, and the best of its host are avx2"));
  CHECK(s.nodes.at("n2").state == NodeState::drained);
  const Decision asked = decide(0, s, DrainRequested{"n2", false, "by a user"});
  CHECK(asked.reason.starts_with("n2 cannot train: this run computes with avx512"));
  CHECK(s.nodes.at("n2").state == NodeState::drained);
  // Another host takes its name. A node that returns is diagnosed first.
  decide(0, s, NodeLost{"n2", "gone"});
  host_up(s, "n2", InstructionSet::amx, kUnknown, 2);
  decide(0, s, NodeChecked{"n2", true, ""});
  CHECK(s.nodes.at("n2").state == NodeState::up);
}

TEST_CASE("job: BACKEND-3: a run that gives up saves without a host that lacks them") {
  State s = job_of(1, 2);
  for (const char* node : {"n0", "n1"}) host_up(s, node, kAvx512);
  host_up(s, "n2", kAvx2);
  decide(0, s, DrainRequested{"n1", true, "by a user"});
  CHECK(usable_nodes(s, true) == std::vector<std::string>{"n0"});
  s.giving_up = true;
  CHECK(usable_nodes(s, true) == std::vector<std::string>{"n0", "n1"});
}

TEST_CASE("job: BACKEND-3: a diagnosis does not bring in a host that lacks them") {
  State s = job_of(2, 1);
  for (const char* node : {"n0", "n1", "n2"}) host_up(s, node, kAvx512);
  decide(0, s, NodeLost{"n2", "gone"});
  host_up(s, "n2", kAvx2, kUnknown, 2);
  CHECK(s.nodes.at("n2").state == NodeState::suspect);
  decide(0, s, NodeChecked{"n2", true, ""});
  CHECK(s.nodes.at("n2").state == NodeState::drained);
}

TEST_CASE("job: BACKEND-3: a host without AVX2 trains with its like alone") {
  State alone = job_of(1);
  host_up(alone, "n0", kGeneric);
  CHECK(alone.instructions == kGeneric);
  State s = job_of(2, 1);
  host_up(s, "n0", kGeneric);
  host_up(s, "n1", kAvx2);  // two nodes are up, of which one cannot train
  CHECK(s.instructions == kAvx2);
  CHECK(s.nodes.at("n0").state == NodeState::drained);
  CHECK(s.generation == 0);
  CHECK(all<Join>(host_up(s, "n2", kAvx512)).size() == 1);
  CHECK(nodes_of(s) == std::vector<std::string>{"n1", "n2"});
  State other = job_of(1);
  other.instructions = kGeneric;
  host_up(other, "n0", kAvx2);
  CHECK(other.nodes.at("n0").state == NodeState::drained);
}

TEST_CASE("job: BACKEND-3: a run whose hosts all lack its instructions ends as badly configured") {
  State s = job_of(2);
  s.instructions = kAvx512;
  host_up(s, "n0", kAvx2);
  const Shutdown end = only<Shutdown>(host_up(s, "n1", kAvx2));
  CHECK(end.exit == Code::bad_config);
  CHECK(end.reason.find("n1 (drained: this run computes with avx512") != std::string::npos);
  // So does one that waits for other hosts in vain. Those that are away may bring it to an end later.
  const auto end_of = [](const std::vector<InstructionSet>& hosts) {
    State waits = job_of(3);
    waits.instructions = kAvx512;
    waits.rules.min_domains = 3;
    for (size_t i = 0; i < hosts.size(); ++i) host_up(waits, node_name(int(i)), hosts[i]);
    return only<Shutdown>(decide(waits.join_timeout_ms + 1, waits, Tick{})).exit;
  };
  CHECK(end_of({kAvx512, kAvx512, kAvx2}) == Code::bad_config);
  CHECK(end_of({kAvx512, kAvx2}) == Code::requeue);
  // A node that another reason has drained decides.
  s.nodes.at("n0") = {.state = NodeState::drained, .instructions = kAvx512};
  CHECK(too_few_nodes(s) == Code::gave_up);
}

TEST_CASE("job: BACKEND-3: a successor without a state takes them from the agents") {
  State s = job_of(2, 1);
  host_up(s, "n2", kAvx2);
  CHECK(s.nodes.at("n2").state == NodeState::up);
  host_up(s, "n0", kAvx512, kAvx512);
  CHECK(s.instructions == kAvx512);
  CHECK(s.nodes.at("n2").state == NodeState::drained);
  CHECK(recorded(host_up(s, "n1", kAvx512, kAvx512), "instructions").empty());
}

}  // namespace simplescale::job::test
