#include "runtime/run/term.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <set>

#include "runtime/base/files.hpp"
#include "runtime/run/agent_lock.hpp"
#include "runtime/run/run_state.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

namespace {

struct Folder : test::TempFolder {
  Folder() {
    std::filesystem::create_directories(run.control());
    REQUIRE(write_file_atomic(run.instance(), "a\n").ok());
  }
  const RunFolder run{path};
};

}  // namespace

TEST_SUITE("term") {
  TEST_CASE("term: LEAD-1, of eight processes that claim the same term exactly one gets it") {
    Folder folder;
    const TermFiles files(folder.run, "a");
    for (uint64_t number = 1; number <= 50; ++number) {
      int gate[2];
      REQUIRE(pipe(gate) == 0);
      std::vector<pid_t> children;
      for (int i = 0; i < 8; ++i) {
        const pid_t child = fork();
        if (child == 0) {
          char byte;
          close(gate[1]);
          (void)!read(gate[0], &byte, 1);  // returns in all children when the parent closes its end
          auto won = files.claim({number, "n" + std::to_string(i), getpid(), "somewhere", 7});
          _exit(!won.ok() ? 2 : *won ? 1 : 0);
        }
        children.push_back(child);
      }
      close(gate[0]);
      close(gate[1]);
      int winners = 0;
      pid_t winner = 0;
      for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        REQUIRE(WIFEXITED(status));
        REQUIRE(WEXITSTATUS(status) < 2);
        winners += WEXITSTATUS(status);
        if (WEXITSTATUS(status) == 1) winner = child;
      }
      CHECK(winners == 1);
      auto newest = must(files.newest());
      CHECK(newest->number == number);
      CHECK(newest->pid == winner);
      CHECK(newest->address == "somewhere");
      CHECK(newest->generation == 7);
    }
  }

  TEST_CASE(
      "term: LEAD-1, a new start of the run removes the files of older ones and deposes them") {
    Folder folder;
    const TermFiles before(folder.run, "a"), after(folder.run, "b");
    REQUIRE(before.begin().ok());
    CHECK(*before.current());
    REQUIRE(*before.claim({1, "n0", 1, "x", 0}));
    CHECK(*before.touched_ns(1) > 0);
    REQUIRE(after.begin().ok());
    CHECK(!*before.current());
    CHECK(*after.current());
    CHECK(before.newest()->number == 0);
    CHECK(*before.touched_ns(1) == 0);
    TermView view{true, *before.current(), *before.newest(), 0};
    CHECK(view.deposed(1));
  }

  TEST_CASE("term: a start knows whether the one before it recorded its end") {
    Folder folder;
    const TermFiles first(folder.run, "a"), second(folder.run, "b"), third(folder.run, "c");
    REQUIRE(first.begin().ok());
    CHECK(!first.previous_ended());
    REQUIRE(write_file_atomic(folder.run.end(), end_text({0, "finished", "a"})).ok());
    REQUIRE(second.begin().ok());
    CHECK(second.previous_ended());
    CHECK(!std::filesystem::exists(folder.run.end()));
    REQUIRE(third.begin().ok());  // the second one died
    CHECK(!third.previous_ended());
    REQUIRE(write_file_atomic(folder.run.end(), end_text({0, "finished", "a"})).ok());
    REQUIRE(first.begin().ok());  // end.json is not of the third one
    CHECK(!first.previous_ended());
  }

  TEST_CASE("term: LEAD-1, a folder that cannot be read does not say that a supervisor leads") {
    // An error of control/ was taken for "this supervisor leads, and may write".
    Folder folder;
    const TermFiles files(folder.run, "a");
    REQUIRE(files.begin().ok());
    REQUIRE(*files.claim({1, "n0", 1, "x", 0}));
    CHECK(*files.leads(1));
    CHECK(!*files.leads(2));
    REQUIRE(*files.claim({2, "n1", 2, "y", 0}));
    CHECK(!*files.leads(1));
    CHECK(*files.leads(2));
    std::filesystem::remove(folder.run.instance());
    std::filesystem::create_symlink(folder.run.instance(), folder.run.instance());
    CHECK(files.leads(2).status().code() == Code::io);
    TermWatch watch(files, nullptr);
    std::promise<TermView> answer;
    watch.poll([&](const TermView& view) { answer.set_value(view); });
    CHECK(!answer.get_future().get().answered);
    std::filesystem::remove_all(folder.run.control());
    CHECK(files.leads(2).status().code() == Code::io);
  }

  TEST_CASE("term: LEAD-1, a term file that cannot be read says nothing about its supervisor") {
    // An error was taken for a heartbeat that had stopped, and for an address that nobody has: the
    // standby deposed a supervisor that lived. The generation of the term was taken for 0 (GEN-2).
    Folder folder;
    const TermFiles files(folder.run, "a");
    REQUIRE(*files.claim({1, "n0", 1, "x", 700}));
    REQUIRE(files.vote(1, "n1").ok());
    const std::string term = folder.run.control() + "/term-a-1";
    const std::string vote = folder.run.control() + "/vote-a-1-n1";
    for (const std::string& file : {term, vote}) {
      std::filesystem::remove(file);
      std::filesystem::create_symlink(file, file);
    }
    CHECK(files.touched_ns(1).status().code() == Code::io);
    CHECK(files.newest().status().code() == Code::io);
    CHECK(files.votes(1)->empty());
    TermWatch watch(files, nullptr);
    std::promise<TermView> answer;
    watch.poll([&](const TermView& view) { answer.set_value(view); });
    CHECK(!answer.get_future().get().answered);
  }

  TEST_CASE("term: LOCK-1, no start begins while an agent of an earlier one lives") {
    Folder folder;
    const TermFiles before(folder.run, "a"), after(folder.run, "b");
    REQUIRE(before.begin().ok());
    CHECK(!agents_live(folder.run));
    {
      const auto one = AgentLock::share(folder.run), other = AgentLock::share(folder.run);
      REQUIRE(one.ok());
      REQUIRE(other.ok());
      CHECK(agents_live(folder.run));
      CHECK(RunLock::held(folder.run));
      CHECK(!launcher_lives(folder.run));
      CHECK(after.begin().code() == Code::unavailable);
      CHECK(*before.current());
    }
    CHECK(!RunLock::held(folder.run));
    CHECK(after.begin().ok());
    CHECK(!*before.current());
  }

  TEST_CASE("term: a leader sees the nodes that vote against it until they stop voting") {
    Folder folder;
    const TermFiles files(folder.run, "a");
    REQUIRE(*files.claim({1, "n0", 1, "x", 0}));
    CHECK(files.votes(1)->empty());
    std::mutex mutex;
    std::condition_variable changed;
    std::set<std::string> votes;
    TermWatch leader(files, [&](const TermView& view) {
      const std::lock_guard lock(mutex);
      votes = view.votes;
      changed.notify_all();
    });
    auto until = [&](const std::set<std::string>& wanted) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, std::chrono::seconds(20), [&] { return votes == wanted; });
    };
    std::atomic<bool> voter_sees = false;
    TermWatch voter(files,
                    [&](const TermView& view) { voter_sees = voter_sees || !view.votes.empty(); });
    leader.lead(1);
    leader.poll_every(5);
    voter.vote(1, "n2");
    voter.poll_every(5);
    CHECK(until({"n2"}));
    REQUIRE(files.vote(1, "n10").ok());
    CHECK(until({"n10", "n2"}));
    REQUIRE(files.vote(2, "n3").ok());  // of another term
    CHECK(until({"n2"}));               // n10 has stopped voting
    CHECK(files.votes(1)->size() == 2);
    voter.vote(0, "");
    CHECK(until({}));
    CHECK(!files.votes(1)->contains("n2"));
    CHECK(!voter_sees);
    REQUIRE(files.begin().ok());
    CHECK(files.votes(1)->empty());
  }

  TEST_CASE("term: a leader's watch renews its heartbeat, and its age is the time since then") {
    Folder folder;
    const TermFiles files(folder.run, "a");
    REQUIRE(*files.claim({1, "n0", 1, "x", 0}));
    const int64_t claimed = *files.touched_ns(1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const auto until = [&](TermWatch& watch, const std::function<bool(const TermView&)>& is) {
      while (std::chrono::steady_clock::now() < deadline) {
        std::promise<TermView> view;
        watch.poll([&](const TermView& seen) { view.set_value(seen); });
        if (is(view.get_future().get())) return true;
      }
      return false;
    };
    TermWatch watch(files, nullptr);
    CHECK(until(watch, [](const TermView& view) { return view.heartbeat_age_ms > 0; }));
    watch.lead(1);
    CHECK(until(watch, [&](const TermView&) { return *files.touched_ns(1) != claimed; }));
    CHECK(until(watch, [](const TermView& view) { return view.heartbeat_age_ms == 0; }));
  }

  TEST_CASE("term: a resignation is seen at once, without a heartbeat timeout") {
    Folder folder;
    const TermFiles files(folder.run, "a");
    REQUIRE(*files.claim({1, "n0", 1, "x", 0}));
    TermWatch watch(files, nullptr);
    auto poll = [&] {
      std::promise<TermView> view;
      watch.poll([&](const TermView& seen) { view.set_value(seen); });
      return view.get_future().get();
    };
    CHECK(!poll().resigned);
    REQUIRE(files.resign(1).ok());
    CHECK(*files.touched_ns(1) == 0);
    CHECK(poll().resigned);
    CHECK(!poll().deposed(1));  // until another supervisor leads
    REQUIRE(*files.claim({2, "n1", 2, "y", 0}));
    CHECK(!poll().resigned);
    CHECK(files.resign(7).code() == Code::io);
  }

  TEST_CASE("term: temporary files do not count, damaged files count by their number") {
    Folder folder;
    const TermFiles files(folder.run, "a");
    REQUIRE(*files.claim({1, "n0", 1, "x", 0}));
    REQUIRE(write_file_atomic(folder.run.control() + "/term-a-9.new-xyz", "half").ok());
    CHECK(files.newest()->number == 1);
    REQUIRE(write_file_atomic(folder.run.control() + "/term-a-4", "[\"no object\"]").ok());
    CHECK(files.newest()->number == 4);
    CHECK(files.newest()->address.empty());
    REQUIRE(write_file_atomic(folder.run.control() + "/term-a-5", "{\"pid\":\"x\"}").ok());
    CHECK(files.newest()->number == 5);
    CHECK(*files.claim({4, "n0", 1, "x", 0}) == false);
  }

  TEST_CASE("term: a claim leaves no temporary file, whether it succeeds or not") {
    Folder folder;
    const TermFiles files(folder.run, "a");
    REQUIRE(*files.claim({1, "n0", 1, "x", 0}));
    REQUIRE_FALSE(*files.claim({1, "n1", 1, "x", 0}));
    // control/instance and the term.
    CHECK(std::distance(std::filesystem::directory_iterator(folder.run.control()), {}) == 2);
  }

  TEST_CASE("term: a claim takes the room that its process keeps, and no other's") {
    Folder folder;
    const TermFiles files(folder.run, "a");
    for (const auto& [node, pid] : {std::pair{"n1", 1}, {"n10", 3}, {"n1", 2}})
      REQUIRE(files.keep_room(node, pid).ok());
    auto room = [&](const char* name) {
      return std::filesystem::exists(folder.run.control() + "/room-a-" + name);
    };
    CHECK_FALSE(room("n1-1"));  // that of an older process of the node
    REQUIRE(*files.claim({1, "n1", 1, "x", 0}));
    CHECK(room("n1-2"));
    REQUIRE(*files.claim({2, "n1", 2, "x", 0}));
    CHECK_FALSE(room("n1-2"));
    CHECK(files.newest()->pid == 2);
    CHECK(room("n10-3"));
    REQUIRE(TermFiles(folder.run, "b").begin().ok());
    CHECK_FALSE(room("n10-3"));
  }

  TEST_CASE("term: a watch reports a higher term, and polls on request") {
    Folder folder;
    const TermFiles files(folder.run, "a");
    REQUIRE(*files.claim({1, "n0", 1, "x", 0}));
    std::promise<void> seen;
    std::atomic<bool> reported = false;
    TermWatch watch(files, [&](const TermView& view) {
      if (view.newest.number == 2 && !reported.exchange(true)) seen.set_value();
    });
    std::promise<TermView> first;
    watch.poll([&](const TermView& view) { first.set_value(view); });
    const TermView view = first.get_future().get();
    CHECK(view.newest.number == 1);
    CHECK(!view.deposed(1));
    watch.poll_every(5);
    REQUIRE(*files.claim({2, "n1", 2, "y", 0}));
    seen.get_future().wait();
    std::promise<TermView> second;
    watch.poll([&](const TermView& view) { second.set_value(view); });
    CHECK(second.get_future().get().deposed(1));
  }

  TEST_CASE("term: a folder that cannot be read deposes no supervisor") {
    const TermFiles files({"/nonexistent"}, "a");
    TermWatch watch(files, nullptr);
    std::promise<TermView> answer;
    watch.poll([&](const TermView& view) { answer.set_value(view); });
    const TermView view = answer.get_future().get();
    CHECK(!view.answered);
    CHECK(!view.deposed(3));
  }
}
