#include "actors/supervisor/step_down.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <future>
#include <iterator>
#include <optional>

#include "runtime/run/agent_lock.hpp"
#include "tests/actors/supervisor/candidate_folder.hpp"
#include "tests/full_disk.hpp"
#include "tests/must.hpp"

using namespace simplescale;
using namespace simplescale::supervisor;
using test::CandidateFolder, test::FullDisk, test::state_of;

namespace {

const Status kWhy(Code::io, "ledger.jsonl: cannot be read");

std::vector<nlohmann::json> events(const CandidateFolder& f) {
  std::vector<nlohmann::json> found;
  std::ifstream in(f.run.events());
  for (std::string line; std::getline(in, line);) found.push_back(nlohmann::json::parse(line));
  return found;
}

/// The candidate has claimed term 4.
struct Fixture : CandidateFolder {
  Fixture() { lead(4, 140); }
  Status leave(const SupervisorState* state) {
    TermWatch watch(files, nullptr);
    watch.lead(4);
    return resign_unprepared(candidate, 4, 45, state, watch, kWhy);
  }
};

}  // namespace

TEST_SUITE("step down") {
  TEST_CASE("step down: JOB-1, a supervisor that cannot prepare leaves its state to the next one") {
    Fixture f;
    f.leave_state(3, state_of(3, 15, 39));  // older than the standby's
    const SupervisorState state = state_of(3, 20, 45);
    CHECK(f.leave(&state).message() == kWhy.message());
    CHECK(*f.files.touched_ns(4) == 0);  // it has resigned
    const auto left = must(read_left_state(f.run.path, "a", 4));
    REQUIRE(left->has_value());
    CHECK((*left)->sequence == 20);
    CHECK((*left)->job.generation == 45);
    CHECK((*read_left_state(f.run.path, "a", 3))->sequence == 15);  // the page of term 3
    const auto lines = events(f);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0]["kind"] == "resigned");
    CHECK(lines[0]["subject"] == "n1");
    CHECK(lines[0]["generation"] == 45);
    CHECK(lines[0]["reason"] == kWhy.message());
  }

  TEST_CASE("step down: a supervisor that has no state leaves none") {
    Fixture f;
    f.leave_state(3, state_of(3, 15, 39));
    CHECK(!f.leave(nullptr).ok());
    CHECK(*f.files.touched_ns(4) == 0);
    CHECK((*read_left_state(f.run.path, "a", 4))->sequence == 15);
    CHECK(!std::filesystem::exists(f.run.path + "/" + state_page("a", 4)));
    CHECK(events(f).size() == 1);
  }

  TEST_CASE("step down: LEAD-1, a supervisor that was deposed meanwhile writes nothing") {
    Fixture f;
    auto agent = must(AgentLock::share(f.run));
    f.lead(5);
    f.meanwhile = [](size_t pause) { REQUIRE(pause < 20); };
    const SupervisorState state = state_of(3, 20, 45);
    CHECK(!f.leave(&state).ok());
    CHECK(!std::filesystem::exists(f.run.path + "/" + state_page("a", 4)));
    CHECK(events(f).empty());
    CHECK(*f.files.touched_ns(5) > 0);
    CHECK(f.pauses.empty());
  }

  TEST_CASE("step down: JOB-1, while agents live, the state is written again after an error") {
    // One error, as of a full disk, took the only newest state: the supervisor resigned without it.
    Fixture f;
    f.candidate.join_timeout_ms = -1;  // has passed
    auto agent = must(AgentLock::share(f.run));
    const SupervisorState state = state_of(3, 20, 45);
    FullDisk disk(0);
    f.meanwhile = [&](size_t pause) {
      CHECK(*f.files.touched_ns(4) > 0);  // it leads until then
      if (pause == 3) disk.end();
    };
    CHECK(!f.leave(&state).ok());
    const auto left = must(read_left_state(f.run.path, "a", 4));
    REQUIRE(left->has_value());
    CHECK((*left)->sequence == 20);
    CHECK(events(f).size() == 1);
    CHECK(*f.files.touched_ns(4) == 0);
  }

  TEST_CASE("step down: a supervisor whose state is written does not wait for its event") {
    Fixture f;
    auto agent = must(AgentLock::share(f.run));
    std::filesystem::create_symlink(f.run.events(), f.run.events());
    f.meanwhile = [](size_t) { FAIL("the state is written"); };
    const SupervisorState state = state_of(3, 20, 45);
    CHECK(!f.leave(&state).ok());
    CHECK((*read_left_state(f.run.path, "a", 4))->sequence == 20);
    CHECK(*f.files.touched_ns(4) == 0);
  }

  TEST_CASE("step down: without agents, a disk that stays full does not keep a supervisor") {
    Fixture f;
    const SupervisorState state = state_of(3, 20, 45);
    f.candidate.join_timeout_ms = -1;
    {
      FullDisk disk(0);
      f.meanwhile = [&](size_t) { disk.end(); };
      CHECK(!f.leave(&state).ok());
    }
    CHECK(f.pauses.empty());
    CHECK(*f.files.touched_ns(4) == 0);
  }

  TEST_CASE("step down: LEAD-1, no heartbeat follows the resignation") {
    Fixture f;
    std::promise<void> later;
    const auto begin = std::chrono::steady_clock::now();
    bool told = false;
    TermWatch watch(f.files, [&](const TermView&) {
      // A watch that still led would have touched the file again by then.
      const auto past = std::chrono::steady_clock::now() - begin;
      if (past > std::chrono::milliseconds(1'000) && !std::exchange(told, true)) later.set_value();
    });
    watch.lead(4);
    watch.poll_every(10);
    Journal journal(f.run.path);
    journal.append("events.jsonl", event_of("resigned", "n1", 1, kWhy));
    resign(f.files, 4, watch, journal);
    CHECK(events(f).size() == 1);  // written before
    journal.append("events.jsonl", event_of("resigned", "n1", 1, kWhy));
    later.get_future().wait();
    CHECK(*f.files.touched_ns(4) == 0);
    CHECK(events(f).size() == 1);
  }
}
