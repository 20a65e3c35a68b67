// Which nodes train together, and which copies are sent to them.
#include "actors/supervisor/decision/layout.hpp"

#include <doctest/doctest.h>

using namespace simplescale;
using namespace simplescale::job;

TEST_SUITE("layout") {
  TEST_CASE("layout: spares fill the domain with the fewest gaps, which keeps its nodes in place") {
    const LayoutRules rules{.shards = 2, .domain_nodes = 2, .domains = 2};
    const Layout current{{{"n0", "n1"}, {"n2", "n3"}}};
    CHECK(assign(rules, 2, current, {"n2", "n4"}) == Layout{{{"n2", "n4"}}});
    CHECK(assign(rules, 2, current, {"n1", "n4"}) == Layout{{{"n4", "n1"}}});
    CHECK(assign(rules, 2, current, {"n2"}).domains.empty());
  }

  TEST_CASE("layout: a shard comes from a trainer that keeps it, else a memory, else a peer copy") {
    const std::vector<Place> members = {{"n0.0", 0, 0}, {"n1.0", 1, 0}};
    std::vector<AvailableCopy> copies = {
        {"n0.0", 0, 7, false}, {"n2.0", 0, 7, false}, {"n3.0", 0, 7, true}};
    for (const char* source : {"n0.0", "n2.0", "n3.0"}) {
      const std::vector<Move> moves = moves_for(members, 1, copies, {7, 1});
      REQUIRE(moves.size() == 1);
      CHECK(moves[0].source == source);
      CHECK(moves[0].peer == (copies.size() == 1));
      CHECK(moves[0].targets.back() == "n1.0");
      copies.erase(copies.begin());
    }
  }
}
