// Two processes that call each other: every order of their messages is played through.
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

/// As in Peer, as far as it matters here. call: which call made the connection, on both sides.
struct Side {
  int call = 0;
  uint64_t born = 0, met = 0;
  bool ours = false, established = false;
  auto operator<=>(const Side&) const = default;
};

struct Process {
  std::vector<Side> peers;  // those that are known: at most one stands, the others are callers
  int standing = 0;         // its call; 0: none
  uint64_t born = 0;
  int calls = 0, losses = 0;  // still to be made
  auto operator<=>(const Process&) const = default;

  Side* find(int call) {
    for (Side& peer : peers)
      if (peer.call == call) return &peer;
    return nullptr;
  }
  void drop(int call) {
    std::erase_if(peers, [&](const Side& peer) { return peer.call == call; });
    if (standing == call) standing = 0;
  }
  std::optional<Standing> current() {
    Side* peer = find(standing);
    if (!peer) return std::nullopt;
    return Standing{peer->born, peer->ours, peer->established};
  }
};

enum class Kind { hello, welcome, proof };
struct Message {
  Kind kind;
  int to, call;
  int other = 0;  // of a welcome
  auto operator<=>(const Message&) const = default;
};

struct World {
  std::array<Process, 2> at;  // the first has the lower id
  std::multiset<Message> under_way;
  int calls = 0;
  auto operator<=>(const World&) const = default;

  void call(int who) {
    Process& p = at[who];
    --p.calls;
    const int number = ++calls;
    p.peers.push_back({number, ++p.born, 0, true, false});
    p.standing = number;
    under_way.insert({Kind::hello, 1 - who, number});
  }

  void arrive(const Message& m) {
    Process& p = at[m.to];
    const bool lower = m.to == 0;
    const auto current = p.current();
    const Standing* known = current ? &*current : nullptr;
    Side* peer = p.find(m.call);
    if (m.kind == Kind::hello) {
      if (!hears_hello(known, lower)) return;
      p.peers.push_back({m.call, ++p.born, met(known), false, false});
      under_way.insert({Kind::welcome, 1 - m.to, m.call, met(known) != 0 ? p.standing : 0});
    } else if (m.kind == Kind::welcome && peer) {
      if (yields(m.other != 0, p.find(m.other) != nullptr)) return p.drop(m.call);
      peer->established = true;
      under_way.insert({Kind::proof, 1 - m.to, m.call});
    } else if (m.kind == Kind::proof && peer) {
      if (on_proof(known, peer->born, peer->met, lower) == Verdict::keep) return p.drop(m.call);
      if (p.standing) p.drop(p.standing);
      p.find(m.call)->established = true;
      p.standing = m.call;
    }
  }
};

struct Explorer {
  std::set<World> seen;
  size_t ends = 0;
  std::string wrong;

  void explore(const World& world) {
    if (!wrong.empty() || !seen.insert(world).second) return;
    bool over = world.under_way.empty();
    for (const Message& message :
         std::set<Message>(world.under_way.begin(), world.under_way.end())) {
      World next = world;
      next.under_way.erase(next.under_way.find(message));
      next.arrive(message);
      explore(next);
    }
    for (int who : {0, 1}) {
      const Process& p = world.at[who];
      if (p.calls > 0 && p.standing == 0) {
        over = false;
        World next = world;
        next.call(who);
        explore(next);
      }
      const auto current = Process(p).current();
      if (p.losses > 0 && current && current->established && world.under_way.empty()) {
        World next = world;  // and does not say so: the other side does not know
        next.at[who].drop(p.standing);
        --next.at[who].losses;
        ++next.at[who].calls;
        explore(next);
      }
    }
    if (over) end(world);
  }

  void end(World world) {
    ++ends;
    const auto one = world.at[0].current(), two = world.at[1].current();
    const bool connected = one && two && one->established && two->established &&
                           world.at[0].standing == world.at[1].standing;
    if (!connected)
      wrong = "connection " + std::to_string(world.at[0].standing) + " here, " +
              std::to_string(world.at[1].standing) + " there, of " + std::to_string(world.calls);
  }
};

std::string play(int calls_of_lower, int calls_of_higher, int losses_of_lower,
                 int losses_of_higher) {
  World world;
  world.at[0].calls = calls_of_lower;
  world.at[1].calls = calls_of_higher;
  world.at[0].losses = losses_of_lower;
  world.at[1].losses = losses_of_higher;
  Explorer explorer;
  explorer.explore(world);
  CHECK(explorer.ends > 0);
  return explorer.wrong;
}

}  // namespace

TEST_SUITE("meeting") {
  TEST_CASE("meeting: one calls, and the other keeps that connection") {
    CHECK(play(1, 0, 0, 0) == "");
    CHECK(play(0, 1, 0, 0) == "");
  }

  TEST_CASE("meeting: both call, in whatever order, and both keep the same connection (CONNECTION-4)") {
    CHECK(play(1, 1, 0, 0) == "");
  }

  TEST_CASE("meeting: who has lost the connection calls anew, also while the other one calls") {
    CHECK(play(1, 1, 1, 0) == "");
    CHECK(play(1, 1, 0, 1) == "");
    CHECK(play(1, 1, 1, 1) == "");
  }

  TEST_CASE("meeting: where calls cross, the lower id's stays") {
    const Standing ours{1, true, true};
    CHECK(on_proof(&ours, 2, 0, true) == Verdict::keep);
    CHECK(on_proof(&ours, 2, 0, false) == Verdict::cross);
    CHECK(on_proof(&ours, 2, 1, true) == Verdict::take);  // it was told, and calls anew
    const Standing theirs{5, false, true};
    CHECK(on_proof(&theirs, 6, 0, true) == Verdict::take);
    CHECK(on_proof(&theirs, 4, 0, true) == Verdict::keep);
  }
}
