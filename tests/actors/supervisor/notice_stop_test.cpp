// A supervisor whose process was stopped, as by `scontrol suspend`.
#include <doctest/doctest.h>

#include <filesystem>
#include <future>

#include "actors/clock.hpp"
#include "actors/supervisor/carry_out.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

namespace {

constexpr int64_t kHourMs = 3'600'000;

/// The job of a supervisor whose last tick was an hour ago, and that has ticked now. Before that
/// hour it waited this long for nodes or, saves, for its last save.
job::State tick_after_an_hour(int64_t waited_ms, bool saves) {
  caf::actor_system_config config;
  caf::actor_system system{config};
  test::TempFolder folder;
  std::filesystem::create_directories(folder.path + "/control");
  std::promise<job::State> ticked;
  system.spawn([&](supervisor::Self* self) {
    JobSupervisorState& s = self->state;
    s.options.journal = std::make_shared<Journal>(folder.path);
    s.options.leadership.watch =
        std::make_shared<TermWatch>(TermFiles({folder.path + "/unmounted"}, "a"), nullptr);
    s.job = job::make_state({1, 1, 1, 1, 1}, {"n0"});
    s.seen_ms = now_ms(self) - kHourMs;
    s.job.waiting_since_ms = s.seen_ms - (saves ? 0 : waited_ms);
    s.job.giving_up_since_ms = s.seen_ms - waited_ms;
    s.job.giving_up = saves;
    supervisor::handle(self, job::Tick{});
    ticked.set_value(s.job);
  });
  return ticked.get_future().get();
}

}  // namespace

TEST_SUITE("supervisor") {
  TEST_CASE("supervisor: JOB-4, time in which it was stopped is no time of waiting") {
    const job::State limits;
    for (const bool saves : {false, true}) {
      const int64_t limit = saves ? limits.save_timeout_ms : limits.join_timeout_ms;
      CHECK(!over(tick_after_an_hour(limit / 2, saves)));
      CHECK(over(tick_after_an_hour(limit, saves)));
    }
  }
}
