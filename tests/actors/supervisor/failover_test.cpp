#include "actors/supervisor/failover.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

namespace {

using Verdict = Failover::Verdict;
const local::LeaderSeen alive{true, true, 3, true};
const local::LeaderSeen dead{true, true, 3, false};
const local::LeaderSeen nothing{false, true, 0, false};

/// A standby of term 3. Time passes in polls of 100 ms.
struct Fixture {
  void lose() {
    REQUIRE(standby.lost({"silence", ReasonKind::silent}, true, now).verdict == Verdict::wait);
  }
  /// The last verdict, or the first that is not to wait.
  Verdict see(const local::LeaderSeen& seen, int64_t ms) {
    for (const int64_t until = now + ms; now < until;) {
      now += 100;
      const Verdict verdict = standby.seen(seen, 3, now).verdict;
      if (verdict != Verdict::wait) return verdict;
    }
    return Verdict::wait;
  }
  Failover standby;
  int64_t now = 50'000;
};

}  // namespace

TEST_SUITE("failover") {
  TEST_CASE("failover: a supervisor whose process has ended is succeeded at once") {
    const auto decision = Failover().lost(process_ended(), true, 1);
    CHECK(decision.verdict == Verdict::take_over);
    CHECK(!decision.silent);
    CHECK(Failover().lost(process_ended(), false, 1).verdict == Verdict::end);
  }

  TEST_CASE("LEAD-1: a silent supervisor is succeeded only if its heartbeat has stopped, too") {
    Fixture f;
    CHECK(f.see(dead, 5'000) == Verdict::wait);  // its link works
    f.lose();
    CHECK(f.standby.lost(process_ended(), true, f.now).verdict == Verdict::wait);  // known
    CHECK(f.see(alive, 1'000) == Verdict::wait);
    CHECK(f.see(dead, 100) == Verdict::take_over);

    Fixture useless;
    useless.lose();
    CHECK(useless.see(alive, 4'000) == Verdict::wait);
    CHECK(useless.see(alive, 200) == Verdict::end);
  }

  TEST_CASE("LEAD-1: a folder that fails says neither that the supervisor lives nor that it died") {
    Fixture f;
    f.lose();
    CHECK(f.see(nothing, 600'000) == Verdict::wait);
    CHECK(f.see(dead, 100) == Verdict::take_over);
    Fixture replaced;
    replaced.lose();
    CHECK(replaced.see(nothing, 600'000) == Verdict::wait);
    CHECK(replaced.see({true, true, 4, true}, 100) == Verdict::end);
    Fixture restarted;
    CHECK(restarted.see({true, false, 0, false}, 100) == Verdict::end);
  }

  TEST_CASE("JOB-1: a standby whose folder failed for long does not take a dead leader for alive") {
    // The supervisor's host died, and the folder failed at once, for ten seconds. The heartbeat that
    // the standby read then was newer than the one it knew, so it ended, with the only newest state.
    for (const bool hangs : {false, true}) {
      Fixture f;
      CHECK(f.see(alive, 500) == Verdict::wait);
      f.lose();
      CHECK(f.see(alive, 300) == Verdict::wait);
      if (hangs)
        f.now += 10'000;  // no poll ends
      else
        CHECK(f.see(nothing, 10'000) == Verdict::wait);
      CHECK(f.see(alive, 1'400) == Verdict::wait);
      CHECK(f.see(dead, 100) == Verdict::take_over);
    }
  }

  TEST_CASE("LEAD-1: a standby that was dismissed lets the next one claim first") {
    // It could not hear that it was dismissed, and its old state won against the next standby's.
    Fixture f;
    f.lose();
    CHECK(f.see(alive, 3'000) == Verdict::wait);
    CHECK(f.see(dead, 1'000) == Verdict::wait);
    CHECK(f.see(alive, 100) == Verdict::wait);  // it was only late
    CHECK(f.see(dead, 2'000) == Verdict::wait);
    CHECK(f.see(dead, 100) == Verdict::take_over);
    Fixture other;
    other.lose();
    CHECK(other.see(alive, 3'000) == Verdict::wait);
    CHECK(other.see(dead, 500) == Verdict::wait);
    CHECK(other.see({true, true, 4, true}, 100) == Verdict::end);
  }
}
