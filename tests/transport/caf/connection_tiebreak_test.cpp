// CONNECTION-4: two processes connect to each other; the test explores every order in which their
// messages can arrive.
#include <doctest/doctest.h>

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "transport/caf/connection_tiebreak.hpp"

using namespace simplescale::remote;

namespace {

/// One process's view of one connection: what tie-breaking needs of a Peer. `hello` identifies the
/// connection on both sides: the number of the hello that opened it.
struct View {
  int hello = 0;
  uint64_t number = 0, established_at_hello = 0;
  bool ours = false, established = false;
  auto operator<=>(const View&) const = default;
};

struct Process {
  std::vector<View> views;  // at most one is current; the others await their proof
  int current_hello = 0;    // of the current connection; 0: none
  uint64_t connections = 0;
  int hellos_left = 0, losses_left = 0;
  auto operator<=>(const Process&) const = default;

  View* find(int hello) {
    for (View& view : views)
      if (view.hello == hello) return &view;
    return nullptr;
  }
  void drop(int hello) {
    std::erase_if(views, [&](const View& view) { return view.hello == hello; });
    if (current_hello == hello) current_hello = 0;
  }
  std::optional<Connection> current() {
    const View* view = find(current_hello);
    if (!view) return std::nullopt;
    return Connection{view->number, view->ours, view->established};
  }
};

enum class Kind { hello, welcome, proof };
struct Message {
  Kind kind;
  int to, hello;
  int other = 0;  // of a welcome
  auto operator<=>(const Message&) const = default;
};

struct World {
  std::array<Process, 2> processes;  // the first has the lower id
  std::multiset<Message> in_flight;
  int hellos = 0;
  auto operator<=>(const World&) const = default;

  void connect(int index) {
    Process& p = processes[index];
    --p.hellos_left;
    const int hello = ++hellos;
    p.views.push_back({hello, ++p.connections, 0, true, false});
    p.current_hello = hello;
    in_flight.insert({Kind::hello, 1 - index, hello});
  }

  void deliver(const Message& m) {
    Process& p = processes[m.to];
    const bool lower = m.to == 0;
    const auto current = p.current();
    const Connection* known = current ? &*current : nullptr;
    View* view = p.find(m.hello);
    if (m.kind == Kind::hello) {
      if (!accepts_hello(known, lower)) return;
      const uint64_t established = established_number(known);
      p.views.push_back({m.hello, ++p.connections, established, false, false});
      in_flight.insert({Kind::welcome, 1 - m.to, m.hello, established != 0 ? p.current_hello : 0});
    } else if (m.kind == Kind::welcome && view) {
      if (keeps_named_connection(m.other != 0, p.find(m.other) != nullptr)) return p.drop(m.hello);
      view->established = true;
      in_flight.insert({Kind::proof, 1 - m.to, m.hello});
    } else if (m.kind == Kind::proof && view) {
      if (break_tie(known, view->number, view->established_at_hello, lower) == TieBreak::keep)
        return p.drop(m.hello);
      if (p.current_hello) p.drop(p.current_hello);
      p.find(m.hello)->established = true;
      p.current_hello = m.hello;
    }
  }
};

/// Depth-first search over all states that any order of deliveries, hellos and losses reaches.
struct Explorer {
  std::set<World> seen;
  size_t ends = 0;
  std::string wrong;

  void explore(const World& world) {
    if (!wrong.empty() || !seen.insert(world).second) return;
    bool over = world.in_flight.empty();
    for (const Message& message :
         std::set<Message>(world.in_flight.begin(), world.in_flight.end())) {
      World next = world;
      next.in_flight.erase(next.in_flight.find(message));
      next.deliver(message);
      explore(next);
    }
    for (int index : {0, 1}) {
      const Process& p = world.processes[index];
      if (p.hellos_left > 0 && p.current_hello == 0) {
        over = false;
        World next = world;
        next.connect(index);
        explore(next);
      }
      const auto current = Process(p).current();
      if (p.losses_left > 0 && current && current->established && world.in_flight.empty()) {
        World next = world;  // this process loses the connection; the other does not learn of it
        next.processes[index].drop(p.current_hello);
        --next.processes[index].losses_left;
        ++next.processes[index].hellos_left;
        explore(next);
      }
    }
    if (over) check_end(world);
  }

  void check_end(World world) {
    ++ends;
    Process &lower = world.processes[0], &higher = world.processes[1];
    const auto one = lower.current(), two = higher.current();
    const bool connected = one && two && one->established && two->established &&
                           lower.current_hello == higher.current_hello;
    if (!connected)
      wrong = "connection " + std::to_string(lower.current_hello) + " in the lower process, " +
              std::to_string(higher.current_hello) + " in the higher, of " +
              std::to_string(world.hellos);
  }
};

struct Limits {
  int hellos = 0, losses = 0;
};

std::string explore(Limits lower, Limits higher) {
  World world;
  world.processes[0].hellos_left = lower.hellos;
  world.processes[1].hellos_left = higher.hellos;
  world.processes[0].losses_left = lower.losses;
  world.processes[1].losses_left = higher.losses;
  Explorer explorer;
  explorer.explore(world);
  CHECK(explorer.ends > 0);
  return explorer.wrong;
}

}  // namespace

TEST_SUITE("tie-break") {
  TEST_CASE("tie-break: if one process connects, both keep that connection") {
    CHECK(explore({1, 0}, {0, 0}) == "");
    CHECK(explore({0, 0}, {1, 0}) == "");
  }

  TEST_CASE("tie-break: CONNECTION-4, if both connect, both keep the same one in any order") {
    CHECK(explore({1, 0}, {1, 0}) == "");
  }

  TEST_CASE("tie-break: a process that lost the connection reconnects, whatever the other does") {
    CHECK(explore({1, 1}, {1, 0}) == "");
    CHECK(explore({1, 0}, {1, 1}) == "");
    CHECK(explore({1, 1}, {1, 1}) == "");
  }

  TEST_CASE("tie-break: a welcome names a connection that is established, and no other") {
    const Connection calling{3, true, false}, made{3, true, true};
    CHECK(established_number(nullptr) == 0);
    CHECK(established_number(&calling) == 0);
    CHECK(established_number(&made) == 3);
  }

  TEST_CASE("tie-break: of two connections opened at once, that of the lower id stays") {
    const Connection ours{1, true, true};
    CHECK(break_tie(&ours, 2, 0, true) == TieBreak::keep);
    CHECK(break_tie(&ours, 2, 0, false) == TieBreak::replace_silently);
    // The caller knew of the current connection and lost it.
    CHECK(break_tie(&ours, 2, 1, true) == TieBreak::replace);
    const Connection theirs{5, false, true};
    CHECK(break_tie(&theirs, 6, 0, true) == TieBreak::replace);
    CHECK(break_tie(&theirs, 4, 0, true) == TieBreak::keep);
  }
}
