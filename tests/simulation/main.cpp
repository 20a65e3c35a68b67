// simulate: runs histories of simulated clusters, one for each seed. Prints totals as JSON. At the
// first history that violates an invariant, prints the last events and the command that repeats it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

using namespace simplescale;
using namespace simplescale::simulation;

namespace {

struct Arguments {
  uint64_t seeds = 100, from = 1;
  int nodes = 0, trainers = 0, domain_nodes = 0;  // 0: drawn from the seed
  uint64_t steps = 0;
  Bug bug = Bug::none;
  bool verbose = false, all_bugs = false, go_on = false, reshape = false;
};

[[noreturn]] void usage(const std::string& what) {
  std::string bugs;
  for (const BugName& bug : bug_names) bugs += std::string(" ") + bug.name;
  std::fprintf(stderr,
               "simulate: %s\nusage: simulate [--seeds N] [--from S] [--nodes N] [--trainers L] "
               "[--domain-nodes C]\n  [--steps K] [--bug NAME] [--bugs] [--verbose] "
               "[--keep-going] [--reshape]\nbugs:%s\n",
               what.c_str(), bugs.c_str());
  std::exit(64);
}

Bug bug_of(const std::string& name) {
  for (const BugName& bug : bug_names)
    if (name == bug.name) return bug.bug;
  usage("there is no bug named " + name);
}

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    auto value = [&]() -> std::string {
      if (++i >= argc) usage(flag + " needs a value");
      return argv[i];
    };
    auto number = [&] {
      const std::string text = value();
      char* end = nullptr;
      const uint64_t n = std::strtoull(text.c_str(), &end, 10);
      if (text.empty() || *end) usage(flag + " needs a number");
      return n;
    };
    if (flag == "--seeds")
      a.seeds = number();
    else if (flag == "--from")
      a.from = number();
    else if (flag == "--nodes")
      a.nodes = static_cast<int>(number());
    else if (flag == "--trainers")
      a.trainers = static_cast<int>(number());
    else if (flag == "--domain-nodes")
      a.domain_nodes = static_cast<int>(number());
    else if (flag == "--steps")
      a.steps = number();
    else if (flag == "--bug")
      a.bug = bug_of(value());
    else if (flag == "--bugs")
      a.all_bugs = true;
    else if (flag == "--verbose")
      a.verbose = true;
    else if (flag == "--reshape")
      a.reshape = true;
    else if (flag == "--keep-going")
      a.go_on = true;
    else
      usage("unknown flag " + flag);
  }
  return a;
}

/// Failure domains of this history may have other sizes. It has enough nodes for some of them.
void allow_sizes(Options& o, const Arguments& a, Random& random) {
  if (a.nodes == 0 && a.domain_nodes == 0) {
    o.domain_nodes = static_cast<int>(random.between(1, 3));
    const int first = std::max(o.first() - o.spares, static_cast<int>(random.between(2, 6)));
    const int domains = std::max(first / o.domain_nodes, 1);
    o.nodes = domains * o.domain_nodes + o.spares + o.joining;
    if (o.nodes == 1) o.nodes = 2, o.spares = 1;
  }
  if (a.trainers == 0 && random.chance(30)) o.trainers = 1;
  for (int size = 1; size <= std::min(o.nodes, 8); ++size)
    if (size != o.domain_nodes && random.chance(60)) o.sizes.push_back(size);
  o.rate_first = random.chance(40);
  if (!o.sizes.empty() && random.chance(15))
    o.useless_size = o.sizes[static_cast<size_t>(random.pick(static_cast<int>(o.sizes.size())))];
  if (random.chance(50)) o.blocks = static_cast<uint32_t>(random.between(2, 24));
}

Options options_of(const Arguments& a, uint64_t seed) {
  Random random(seed ^ 0x5eed);
  Options o;
  o.seed = seed;
  o.domain_nodes = static_cast<int>(random.between(1, 2));
  if (a.domain_nodes > 0) o.domain_nodes = a.domain_nodes;
  const int domains = static_cast<int>(random.between(1, o.domain_nodes == 1 ? 4 : 2));
  o.spares = static_cast<int>(random.between(0, 2));
  o.nodes = domains * o.domain_nodes + o.spares;
  if (o.nodes == 1) o.nodes = 2, o.spares = 1;
  if (a.nodes > 0) {
    o.nodes = a.nodes;
    o.spares =
        a.nodes > 16 ? a.nodes % o.domain_nodes + 8 * o.domain_nodes : a.nodes % o.domain_nodes;
  }
  if (Random joins(seed ^ 0x701e); a.nodes == 0 && joins.chance(40)) {
    o.joining = static_cast<int>(joins.between(1, 4));
    o.nodes += o.joining;
  }
  o.trainers = a.trainers > 0 ? a.trainers : 2;
  o.steps = a.steps > 0 ? a.steps : static_cast<uint64_t>(random.between(30, 150));
  o.bug = a.bug;
  o.verbose = a.verbose;
  if (Random shapes(seed ^ 0x54a9e); a.reshape || (a.nodes == 0 && shapes.chance(40)))
    allow_sizes(o, a, shapes);
  return o;
}

std::string name_of(Bug bug) {
  for (const BugName& known : bug_names)
    if (known.bug == bug) return known.name;
  return "none";
}

struct Totals {
  uint64_t seeds = 0, events = 0, steps = 0;
  double hours = 0;
  std::map<std::string, uint64_t> faults, ends;
};

/// Runs one history. Returns true if all invariants hold.
bool run_history(const Options& o, Totals& totals, Violation& broken) {
  Cluster cluster(o);
  bool holds = true;
  try {
    cluster.run();
  } catch (const Violation& b) {
    broken = b;
    holds = false;
  }
  ++totals.seeds;
  totals.events += cluster.events;
  totals.steps += cluster.invariants->newest_committed();
  totals.hours += static_cast<double>(cluster.now) / second / 3600;
  for (const auto& [kind, count] : cluster.faults) totals.faults[kind] += count;
  if (holds)
    ++totals.ends[cluster.ended->exit == Code::mismatch ? "undetectable"
                                                        : to_string(cluster.ended->exit)];
  return holds;
}

/// Runs the history again and prints its last events.
void explain(const Arguments& a, Options o, const Violation& broken) {
  o.remember = true;
  Cluster cluster(o);
  try {
    cluster.run();
  } catch (const Violation&) {
  }
  std::printf("seed %llu violates %s: %s\nthe last events, times in seconds:\n",
              static_cast<unsigned long long>(o.seed), broken.invariant.c_str(),
              broken.text.c_str());
  for (const std::string& line : cluster.log) std::printf("%s\n", line.c_str());
  std::string command = "simulate --seeds 1 --verbose --from " + std::to_string(o.seed);
  if (a.nodes > 0) command += " --nodes " + std::to_string(a.nodes);
  if (a.trainers > 0) command += " --trainers " + std::to_string(a.trainers);
  if (a.domain_nodes > 0) command += " --domain-nodes " + std::to_string(a.domain_nodes);
  if (a.reshape) command += " --reshape";
  if (a.steps > 0) command += " --steps " + std::to_string(a.steps);
  if (o.bug != Bug::none) command += " --bug " + name_of(o.bug);
  std::printf("repeat with: %s\n", command.c_str());
}

/// Runs histories with each planted bug that `seeds` of them find until an invariant finds it.
int find_bugs(Arguments a) {
  nlohmann::json found;
  bool all = true;
  for (const BugName& bug : bug_names) {
    if (bug.within > a.seeds) continue;
    a.bug = bug.bug;
    Totals totals;
    Violation broken;
    uint64_t seed = a.from;
    while (seed < a.from + a.seeds && run_history(options_of(a, seed), totals, broken)) ++seed;
    const bool ok = !broken.invariant.empty();
    all = all && ok;
    std::printf(
        "%-22s %s\n", bug.name,
        ok ? ("seed " + std::to_string(seed) + " " + broken.invariant + ": " + broken.text).c_str()
           : "NOT FOUND");
    std::fflush(stdout);
    found[bug.name] =
        ok ? nlohmann::json{{"seed", seed}, {"invariant", broken.invariant}} : nlohmann::json();
  }
  std::printf("%s\n", nlohmann::json{{"bugs", found}}.dump().c_str());
  return all ? 0 : 1;
}

int run(const Arguments& a) {
  Totals totals;
  uint64_t failed = 0;
  const auto begun = std::chrono::steady_clock::now();
  for (uint64_t seed = a.from; seed < a.from + a.seeds; ++seed) {
    const Options o = options_of(a, seed);
    Violation broken;
    if (!run_history(o, totals, broken)) {
      ++failed;
      if (!a.go_on) {
        explain(a, o, broken);
        return 1;
      }
      std::printf("seed %llu violates %s: %s\n", static_cast<unsigned long long>(seed),
                  broken.invariant.c_str(), broken.text.c_str());
    }
    if ((seed - a.from + 1) % (a.nodes > 100 ? 5 : 1000) == 0) {
      std::printf("%llu histories, %llu events\n", static_cast<unsigned long long>(totals.seeds),
                  static_cast<unsigned long long>(totals.events));
      std::fflush(stdout);
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  std::printf("%s\n",
              nlohmann::json{{"seeds", totals.seeds},
                             {"failed", failed},
                             {"events", totals.events},
                             {"events_per_s", static_cast<double>(totals.events) / took.count()},
                             {"seconds", took.count()},
                             {"simulated_hours", totals.hours},
                             {"steps", totals.steps},
                             {"faults", totals.faults},
                             {"ends", totals.ends}}
                  .dump()
                  .c_str());
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments a = parse(argc, argv);
  return a.all_bugs ? find_bugs(a) : run(a);
}
