// When a node without a supervisor may leave the run.
#include "actors/node/leader_search.hpp"

#include <doctest/doctest.h>

using namespace simplescale;
using Verdict = LeaderSearch::Verdict;

namespace {
constexpr int64_t kLimitMs = 10'000;
}

TEST_SUITE("leader_search") {
  TEST_CASE("leader search: JOB-1: a node that holds a state stays unless a user ends the run") {
    LeaderSearch search;
    search.begin(500);
    CHECK(search.verdict(kLimitMs, false, true, 500 + kLimitMs) == Verdict::wait);
    CHECK(search.verdict(kLimitMs, false, false, 501 + kLimitMs) == Verdict::leave);
    CHECK(search.verdict(kLimitMs, true, false, 501 + kLimitMs) == Verdict::stay);
    CHECK(search.verdict(kLimitMs, true, true, 501 + kLimitMs) == Verdict::leave);
    search.begin(20'000);
    CHECK(search.verdict(kLimitMs, false, false, 20'000 + kLimitMs) == Verdict::wait);
  }

  TEST_CASE(
      "leader search: a supervisor that lives is a sign that the run goes on, a dead one not") {
    LeaderSearch search;
    search.begin(0);
    CHECK(search.seen(3, true, 1'000));
    CHECK(!search.seen(3, true, 9'000));
    CHECK(search.newest() == 3);
    CHECK(search.since_ms() == 1'000);
    CHECK(!search.seen(3, false, 12'000));
    CHECK(search.verdict(kLimitMs, false, false, 19'000) == Verdict::wait);
    CHECK(search.verdict(kLimitMs, false, false, 19'001) == Verdict::leave);
  }

  TEST_CASE("leader search: JOB-4: time in which the node was stopped does not count") {
    LeaderSearch search;
    search.begin(0);
    search.stopped(5'000, 9'000);
    CHECK(search.verdict(kLimitMs, false, false, 15'000) == Verdict::wait);
    CHECK(search.verdict(kLimitMs, false, false, 15'001) == Verdict::leave);
    search.seen(3, true, 20'000);  // it has polled since it goes on
    search.stopped(5'000, 20'001);
    CHECK(search.verdict(kLimitMs, false, false, 30'002) == Verdict::leave);
  }

  TEST_CASE("leader search: JOB-4: twenty supervisors in a row that end are no sign any more") {
    LeaderSearch search;
    search.begin(0);
    uint64_t term = 0;
    for (int64_t now_ms = 0; term < 40; now_ms += 1'000) search.seen(++term, true, now_ms);
    CHECK(search.verdict(kLimitMs, false, false, 29'000) == Verdict::wait);
    CHECK(search.verdict(kLimitMs, false, false, 29'001) == Verdict::leave);
    search.begin(40'000);  // it was connected meanwhile
    search.seen(++term, true, 45'000);
    CHECK(search.verdict(kLimitMs, false, false, 55'000) == Verdict::wait);
  }
}
