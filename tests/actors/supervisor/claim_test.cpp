#include "actors/supervisor/claim.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "runtime/run/agent_lock.hpp"
#include "tests/actors/supervisor/candidate_folder.hpp"
#include "tests/full_disk.hpp"
#include "tests/must.hpp"

using namespace simplescale;
using namespace simplescale::supervisor;
using test::CandidateFolder, test::FullDisk, test::state_of;

namespace {

constexpr std::chrono::milliseconds kHeartbeat{kHeartbeatTimeoutMs};

/// The candidate was the standby of term 3.
Predecessor standby_of_3() {
  Predecessor before;
  before.term = 3;
  before.state = state_of(3, 20, 40);
  before.stood_by = true;
  return before;
}

/// The folder fails as a whole until the fifth pause of a standby of term 3, which claims then.
void check_claim_after_failures(CandidateFolder& f) {
  Predecessor before = standby_of_3();
  f.fail();
  f.meanwhile = [&](size_t pause) {
    if (pause == 5) f.work_again();
  };
  const auto claim = must(claim_next(f.candidate, before));
  CHECK(claim->ours);
}

}  // namespace

TEST_SUITE("claim") {
  // --- Is the supervisor lost? ---

  TEST_CASE("claim: LEAD-1, a supervisor that answers, or whose heartbeat continues, is alive") {
    CandidateFolder f;
    f.lead(3);
    const Term term = *f.files.newest();
    CHECK(!*is_alive(f.candidate, term));  // its heartbeat has stopped
    CHECK(f.pauses == std::vector{kHeartbeat});
    f.meanwhile = [&](size_t) { f.beat(3, 1'001); };
    CHECK(*is_alive(f.candidate, term));
    std::string asked;
    f.candidate.supervisor_answers = [&](const std::string& address) {
      asked = address;
      return true;
    };
    f.pauses.clear();
    CHECK(*is_alive(f.candidate, term));
    CHECK(asked == "address of n0");
    CHECK(f.pauses.empty());
  }

  TEST_CASE("claim: a supervisor that has resigned is lost, and is not asked") {
    CandidateFolder f;
    CHECK(!*is_alive(f.candidate, Term{}));  // there was none
    f.lead(3);
    REQUIRE(f.files.resign(3).ok());
    f.candidate.supervisor_answers = [](const std::string&) { return true; };
    CHECK(!*is_alive(f.candidate, *f.files.newest()));
    CHECK(f.pauses.empty());
  }

  TEST_CASE("claim: LEAD-1, the heartbeat counts also if the term's file is damaged") {
    // Such a supervisor was taken for dead at once, since no address of it is known.
    CandidateFolder f;
    f.folder.write("control/term-a-3", "{");
    f.candidate.supervisor_answers = [](const std::string&) {
      return true;
    };  // nobody has that address
    f.beat(3, 1'000);
    const Term term = *f.files.newest();
    REQUIRE(term.number == 3);
    CHECK(!*is_alive(f.candidate, term));
    f.meanwhile = [&](size_t) { f.beat(3, 1'001); };
    CHECK(*is_alive(f.candidate, term));
  }

  TEST_CASE("claim: LEAD-1, a heartbeat that cannot be read says nothing about its supervisor") {
    // Before the first reading, between the first and the second, and before the third.
    for (const int moment : {0, 1, 2}) {
      for (const bool whole_folder : {false, true}) {
        INFO("moment = ", moment, ", whole_folder = ", whole_folder);
        CandidateFolder f;
        f.lead(3);
        const Term term = *f.files.newest();
        const auto fail = [&] {
          if (whole_folder)
            f.fail();
          else
            CandidateFolder::make_unreadable(f.run.control() + "/term-a-3");
        };
        if (moment == 0) fail();
        f.candidate.supervisor_answers = [&](const std::string&) {
          if (moment == 1) fail();
          return false;
        };
        if (moment == 2) f.meanwhile = [&](size_t) { fail(); };
        CHECK(is_alive(f.candidate, term).status().code() == Code::io);
      }
    }
  }

  TEST_CASE("claim: after votes that other nodes renew, one of those nodes leads next") {
    CandidateFolder f;
    f.lead(3);
    const Term term = *f.files.newest();
    f.vote(3, "n2", 1'000);
    const auto renew = [&](size_t) { f.vote(3, "n2", 1'001); };
    f.meanwhile = renew;
    CHECK(!*was_voted_out(f.candidate, term));  // it has not resigned
    CHECK(f.pauses.empty());
    REQUIRE(f.files.resign(3).ok());
    CHECK(*was_voted_out(f.candidate, term));
    CHECK(f.pauses == std::vector{kHeartbeat});

    f.meanwhile = nullptr;
    CHECK(!*was_voted_out(f.candidate, term));  // the voter has ended
    f.meanwhile = [&](size_t) { f.fail(); };
    CHECK(was_voted_out(f.candidate, term).status().code() == Code::io);
    CHECK(was_voted_out(f.candidate, term).status().code() == Code::io);
    f.work_again();

    f.meanwhile = renew;
    f.vote(3, "n1", 1'000);  // the candidate's node voted, too
    f.pauses.clear();
    CHECK(!*was_voted_out(f.candidate, term));
    REQUIRE(f.files.withdraw_vote(3, "n1").ok());
    REQUIRE(f.files.withdraw_vote(3, "n2").ok());
    CHECK(!*was_voted_out(f.candidate, term));  // it resigned for another reason
    CHECK(f.pauses.empty());
  }

  // --- What a claim reads ---

  TEST_CASE("claim: GEN-2, each term's numbers are above those that may have been used before") {
    CandidateFolder f;
    f.folder.write("control/generation", "7\n");
    Predecessor none;
    const auto first = must(claim_next(f.candidate, none));
    CHECK(first->ours);
    CHECK(first->known.ok());
    CHECK(first->generation == 7);
    CHECK(first->above == 7);
    const Term made = *f.files.newest();
    CHECK(made == Term{1, "n1", getpid(), "address of n1", 7});

    // What term 1 used is in no file.
    Predecessor before;
    before.term = 1;
    const auto second = must(claim_next(f.candidate, before));
    CHECK(second->above == 7 + job::unknown_generations);
    CHECK(f.files.newest()->generation == second->above);
    before.term = 0;
    CHECK(!claim_next(f.candidate, before)->ours);  // term 1 has been claimed

    f.folder.write("control/generation", "500\n");
    before.term = 2;
    before.state = state_of(2, 20, 600);  // the folder lags behind
    const auto third = must(claim_next(f.candidate, before));
    CHECK(third->generation == 600);
    CHECK(third->above == 600 + 2 * job::unknown_generations);

    // The predecessor began above 950, and none of its numbers is in a file.
    f.lead(4, 950);
    before.term = 4;
    const auto fifth = must(claim_next(f.candidate, before));
    CHECK(fifth->above == 950 + job::unknown_generations);
  }

  TEST_CASE("claim: LEAD-1, without the number of the newest generation no term is claimed") {
    CandidateFolder f;
    Predecessor before;
    before.term = 3;
    f.lead(3);
    CandidateFolder::make_unreadable(f.run.generation());
    CHECK(claim_next(f.candidate, before).status().code() == Code::io);
    CHECK(f.files.newest()->number == 3);
    CHECK(f.pauses.empty());

    // Damaged: no other process can read it either, so this one leads, and ends the run.
    std::filesystem::remove(f.run.generation());
    for (const char* damaged : {"", "\n", "12", "12 \n", "x\n"}) {
      f.folder.write("control/generation", damaged);
      const auto claim = must(claim_next(f.candidate, before));
      CHECK(claim->ours);
      CHECK(says(claim->known, Code::bad_data, f.run.generation()));
      ++before.term;
    }
  }

  TEST_CASE("claim: LEAD-1, a newer state that the predecessor left replaces the standby's") {
    CandidateFolder f;
    f.lead(3);
    Predecessor before = standby_of_3();
    uint64_t generation = 41;
    f.leave_state(3, state_of(3, 20, 44));  // as new as the standby's
    REQUIRE(read_known(f.candidate, before, generation).ok());
    CHECK(before.state->job.generation == 40);
    CHECK(generation == 41);
    f.leave_state(3, state_of(3, 21, 45));
    REQUIRE(read_known(f.candidate, before, generation).ok());
    CHECK(before.state->sequence == 21);
    CHECK(generation == 45);

    Predecessor none;  // a process that was no standby
    none.term = 3;
    const auto claim = must(claim_next(f.candidate, none));
    CHECK(none.state->sequence == 21);
    CHECK(claim->generation == 45);
    CHECK(claim->above == 45 + 3 * job::unknown_generations);
    generation = 47;  // the folder has a higher one
    none.state.reset();
    REQUIRE(read_known(f.candidate, none, generation).ok());
    CHECK(generation == 47);
    f.leave_state(3, state_of(2, 90, 20));  // term 2 decided more often, but earlier
    before = standby_of_3();
    generation = 50;
    REQUIRE(read_known(f.candidate, before, generation).ok());
    CHECK(before.state->sequence == 20);
    CHECK(generation == 50);
  }

  TEST_CASE("claim: JOB-3, a state that cannot be read is not replaced by an older one") {
    CandidateFolder f;
    f.lead(3);
    f.leave_state(2, state_of(2, 9, 9));
    const std::string page = f.run.path + "/" + state_page("a", 3);
    CandidateFolder::make_unreadable(page);
    Predecessor before;
    before.term = 3;
    CHECK(claim_next(f.candidate, before).status().code() == Code::io);
    CHECK(f.files.newest()->number == 3);
    std::filesystem::remove(page);
    f.folder.write(state_page("a", 3), "damaged");
    const auto claim = must(claim_next(f.candidate, before));
    CHECK(claim->ours);
    CHECK(claim->known.code() == Code::bad_data);
    CHECK(!before.state);
  }

  TEST_CASE("claim: JOB-1, a standby claims before it reads what its predecessor has left") {
    // It tried to read for 15 s. Another process went on from an older state meanwhile.
    for (const bool number : {false, true}) {
      CAPTURE(number);
      CandidateFolder f;
      f.lead(3);
      Predecessor before = standby_of_3();
      const std::string unreadable =
          number ? f.run.generation() : f.run.path + "/" + state_page("a", 3);
      CandidateFolder::make_unreadable(unreadable);
      f.candidate.read_retries = {1, std::chrono::hours(1)};
      const auto claim = must(claim_next(f.candidate, before));
      CHECK(claim->ours);
      CHECK(claim->known.ok());
      CHECK(claim->generation == 40);
      CHECK(before.state->sequence == 20);
      f.candidate.read_retries = {0, std::chrono::hours(0)};
      uint64_t generation = claim->generation;
      CHECK(read_known(f.candidate, before, generation).code() == Code::io);
      std::filesystem::remove(unreadable);
      f.folder.write("control/generation", "41\n");
      REQUIRE(read_known(f.candidate, before, generation).ok());
      CHECK(generation == 41);
    }
  }

  // --- A standby's claim fails ---

  TEST_CASE("claim: JOB-1, a standby whose claim fails on a full disk claims again") {
    CandidateFolder f(600'000);
    f.lead(3);
    Predecessor before = standby_of_3();
    FullDisk disk(0);
    f.meanwhile = [&](size_t) { disk.end(); };
    const auto claim = must(claim_next(f.candidate, before));
    CHECK(claim->ours);
    CHECK(claim->generation == 40);
    CHECK(*f.files.newest() ==
          Term{4, "n1", getpid(), "address of n1", 40 + 3 * job::unknown_generations});
    CHECK(before.state->sequence == 20);
    CHECK(f.pauses.size() == 2);  // before it looked for the supervisor, and for its heartbeat
    size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(f.run.control()))
      files += entry.path().filename().string().starts_with("term-");
    CHECK(files == 2);  // no temporary one
  }

  TEST_CASE("claim: a process that has no state does not claim again") {
    CandidateFolder f(600'000);
    f.lead(3);
    Predecessor before;
    before.term = 3;
    FullDisk disk(0);
    f.meanwhile = [&](size_t) { disk.end(); };
    CHECK(claim_next(f.candidate, before).status().code() == Code::io);
    CHECK(f.pauses.empty());
  }

  TEST_CASE("claim: JOB-1, a standby claims again while it cannot know whether agents live") {
    // The folder was away for longer than join_timeout_ms. The standby took the agents for dead.
    CandidateFolder f;
    f.lead(3);
    f.candidate.join_timeout_ms = -1;  // has passed
    auto agent = must(AgentLock::share(f.run));
    check_claim_after_failures(f);
    std::filesystem::remove_all(f.run.control());  // the run is gone, and its agents end
    CHECK(!ClaimDeadline(f.candidate).lasts());
  }

  TEST_CASE("claim: JOB-1, a standby claims again as long as agents live") {
    CandidateFolder f;
    f.lead(3);
    f.candidate.join_timeout_ms = -1;  // has passed
    Predecessor before = standby_of_3();
    FullDisk disk(0);
    f.meanwhile = [&](size_t) { disk.end(); };
    CHECK(claim_next(f.candidate, before).status().code() == Code::io);  // there is none
    CHECK(f.pauses.empty());
    {
      std::optional<AgentLock> lives(must(AgentLock::share(f.run)).take());
      f.meanwhile = [&](size_t pause) {
        if (pause == 10) lives.reset();
        if (pause == 20) disk.end();
      };
      CHECK(claim_next(f.candidate, before).status().code() == Code::io);
      CHECK(f.pauses.size() == 10);
    }
    auto agent = must(AgentLock::share(f.run));
    f.meanwhile = [&](size_t pause) {
      if (pause == 30) disk.end();
    };
    const auto claim = must(claim_next(f.candidate, before));
    CHECK(claim->ours);
  }

  TEST_CASE("claim: JOB-1, a claim that was carried out in spite of its error is recognised") {
    // As on NFS, where the answer of the server was lost.
    CandidateFolder f(600'000);
    f.lead(3);
    Predecessor before = standby_of_3();
    FullDisk disk(0);
    f.meanwhile = [&](size_t pause) {
      if (pause > 1) return;
      disk.end();
      REQUIRE(*f.files.claim({4, "n1", getpid(), "address of n1", 140}));
    };
    const auto claim = must(claim_next(f.candidate, before));
    CHECK(claim->ours);
    CHECK(claim->above == 140);
    CHECK(f.files.newest()->generation == 140);
  }

  TEST_CASE("claim: the claim of another process is never taken for the own one") {
    const Term own{4, "n1", getpid(), "address of n1", 140};
    Term node = own, pid = own, address = own;
    node.node = "n2";
    pid.pid = own.pid + 1;
    address.address = "address of an earlier process";
    for (const Term& other : {node, pid, address}) {
      CandidateFolder f(600'000);
      f.lead(3);
      Predecessor before = standby_of_3();
      FullDisk disk(0);
      f.meanwhile = [&](size_t pause) {
        if (pause > 1) return;
        disk.end();
        REQUIRE(*f.files.claim(other));
      };
      const auto claim = must(claim_next(f.candidate, before));
      CHECK(!claim->ours);
    }
  }

  TEST_CASE("claim: LEAD-1, a standby does not depose a supervisor that was only stopped") {
    for (const bool answers : {false, true}) {
      CandidateFolder f(600'000);
      f.lead(3);
      Predecessor before = standby_of_3();
      FullDisk disk(0);
      f.meanwhile = [&](size_t pause) {
        disk.end();
        if (!answers) f.beat(3, 1'000 + static_cast<int64_t>(pause));
      };
      f.candidate.supervisor_answers = [&](const std::string&) { return answers; };
      const auto claim = must(claim_next(f.candidate, before));
      CHECK(!claim->ours);
      CHECK(f.files.newest()->number == 3);
    }
  }

  TEST_CASE("claim: a standby whose folder fails as a whole claims when the folder works again") {
    CandidateFolder f(600'000);
    f.lead(3);
    check_claim_after_failures(f);
    CHECK(f.pauses.size() == 6);
  }
}
