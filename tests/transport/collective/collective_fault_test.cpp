// COLLECTIVE-1 and SHM-2: what happens when ranks abort, do not take part, or die.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <barrier>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <set>

#include "collective_ranks.hpp"
#include "rank_process.hpp"
#include "tests/temp_folder.hpp"
#include "transport/collective/segment.hpp"

namespace simplescale::testing {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Waits for `work` while another thread aborts its generation.
Status wait_aborted(DataPlane& plane, Work& work) {
  std::thread other([&] { plane.abort(1, "generation 2 begins"); });
  Status status = work.wait();
  other.join();
  return status;
}

/// A rank may first see that another rank has left, because that rank has aborted.
bool is_abort(const Status& status) {
  return status.code() == Code::aborted || status.code() == Code::unavailable;
}

// With 100,000 elements three ranks on two hosts use two levels.
const std::vector<int> kOneHost{0, 0, 0}, kOwnHosts{0, 1, 2}, kTwoLevels{0, 0, 1};

}  // namespace

TEST_SUITE("collective faults") {
  TEST_CASE(
      "collective: COLLECTIVE-1, abort() from another thread ends a wait and every later "
      "operation, "
      "and a newer generation works") {
    for (const auto& hosts : {kOneHost, kOwnHosts, kTwoLevels}) {
      RankPlanes ranks("abort", hosts);
      std::barrier joined(3);
      std::vector<float> large(1'000'000, 1.0f);
      // COLLECTIVE-1: the aborted communicator stays dead; the next one sees none of its data.
      const std::string errors = on_ranks(3, [&](int rank) -> std::string {
        auto old = ranks.join(rank, 3, 1);
        if (!old.ok()) return old.status().message();
        joined.arrive_and_wait();  // an earlier abort would end the other ranks' joins
        std::vector<float> data = large;
        // Rank 2 does not take part, so ranks 0 and 1 wait with a part of the data transferred.
        if (rank < 2) {
          auto work = (*old)->all_reduce(data.data(), data.size(), DType::f32);
          const Status status = wait_aborted(*ranks.planes[static_cast<size_t>(rank)], *work);
          if (!is_abort(status)) return "unexpected: " + status.message();
          if (const Status later = (*old)->barrier()->wait(); later.code() != status.code())
            return "a dead communicator goes on";
        }
        old = Status(Code::aborted, "");
        auto next = ranks.join(rank, 3, 2);
        if (!next.ok()) return next.status().message();
        ranks.planes[static_cast<size_t>(rank)]->abort(1, "a late order");
        data = large;
        if (const Status status = (*next)->all_reduce(data.data(), data.size(), DType::f32)->wait();
            !status.ok())
          return status.message();
        for (const float x : data)
          if (x != 3.0f) return "a stale value";
        for (const uint64_t joined : {1, 2})
          if (ranks.join(rank, 3, joined).status().code() != Code::aborted)
            return "joined an old generation, or one a second time";
        return "";
      });
      CHECK(errors == "");
    }
  }

  TEST_CASE("collective: an injected network fault blocks operations, and abort() ends them") {
    using std::chrono::hours;
    for (const NetworkFault& fault : {NetworkFault{.for_time = hours(1)},
                                      NetworkFault{.delay = hours(1), .for_time = hours(2)}})
      for (const auto& hosts : {kOneHost, kOwnHosts}) {
        RankPlanes ranks("trouble", hosts);
        std::barrier joined(3);
        const std::string errors = on_ranks(3, [&](int rank) -> std::string {
          auto old = ranks.join(rank, 3, 1);
          if (!old.ok()) return old.status().message();
          if (rank == 0) ranks.planes[0]->inject_network_fault(fault);
          joined.arrive_and_wait();
          float x = 1;
          auto work = (*old)->all_reduce(&x, 1, DType::f32);
          const Status status = wait_aborted(*ranks.planes[static_cast<size_t>(rank)], *work);
          if (!is_abort(status)) return "unexpected: " + status.message();
          old = Status(Code::aborted, "");
          if (rank == 0) ranks.planes[0]->inject_network_fault({});
          auto next = ranks.join(rank, 3, 2);
          if (!next.ok()) return next.status().message();
          x = 1;
          const Status again = (*next)->all_reduce(&x, 1, DType::f32)->wait();
          return again.ok() && x == 3.0f ? "" : "afterwards: " + again.message();
        });
        CHECK(errors == "");
      }
  }

  TEST_CASE("collective: every operation in flight ends with the reason of the abort") {
    for (const auto& hosts : {std::vector{0, 0}, std::vector{0, 1}}) {
      RankPlanes ranks("reason", hosts);
      std::barrier both(2);
      const std::string errors = on_ranks(2, [&](int rank) -> std::string {
        auto c = ranks.join(rank, 2, 1);
        if (!c.ok()) return c.status().message();
        both.arrive_and_wait();  // an earlier abort would end the other rank's join
        float x = 1, y = 2;
        if (rank == 0) {
          auto one = (*c)->all_reduce(&x, 1, DType::f32), two = (*c)->all_reduce(&y, 1, DType::f32);
          (*c)->abort("because");
          for (auto* work : {&one, &two})
            if (const Status s = (*work)->wait();
                s.code() != Code::aborted || !contains(s.message(), "because"))
              return "unexpected: " + s.message();
          return "";
        }
        // Rank 1 learns that rank 0 has left, long before its deadline.
        Status status;
        while (status.ok()) status = (*c)->barrier()->wait();
        return contains(status.message(), "rank 0 has left") ? ""
                                                             : "unexpected: " + status.message();
      });
      CHECK(errors == "");
    }
  }

  TEST_CASE("collective: abort() tells the other ranks, also if no thread of its rank waits") {
    RankPlanes ranks("tells", {0, 0});
    std::barrier both(2);
    const std::string errors = on_ranks(2, [&](int rank) -> std::string {
      auto c = ranks.join(rank, 2, 1);
      both.arrive_and_wait();
      if (rank == 0 && c.ok()) (*c)->abort("because");
      const Status status = rank == 0 || !c.ok() ? c.status() : (*c)->barrier()->wait();
      both.arrive_and_wait();  // rank 0's communicator lasts until then
      return rank == 0 || contains(status.message(), "rank 0 has left") ? status.message()
                                                                        : "unexpected";
    });
    CHECK(contains(errors, "rank 0 has left"));
    CHECK_FALSE(contains(errors, "unexpected"));
  }

  TEST_CASE("collective: a communicator ends with its operations, whose results outlive it") {
    RankPlanes ranks("outlive", {0, 0});
    CHECK(on_ranks(2, [&](int rank) -> std::string {
            auto c = ranks.join(rank, 2, 1);
            if (!c.ok()) return c.status().message();
            float x = 1;
            const WorkPtr work = (*c)->all_reduce(&x, 1, DType::f32);
            c = Status(Code::aborted, "");  // destroys it
            const Status status = work->wait();
            return status.ok() && x != 2 ? "an altered sum" : status.message();
          }) == "");
  }

  TEST_CASE("collective: a rank that has started 32 operations waits for the oldest") {
    RankPlanes ranks("many", {0, 0});
    std::barrier both(2);
    const std::string errors = on_ranks(2, [&](int rank) -> std::string {
      auto c = ranks.join(rank, 2, 1, "world", 2000);
      Status status = c.status();
      std::vector<float> data(40, 1.0f);
      std::vector<WorkPtr> work;
      if (rank == 0 && c.ok()) {  // rank 1 does not take part
        for (float& x : data) work.push_back((*c)->all_reduce(&x, 1, DType::f32));
        status = work.back()->wait();
      }
      both.arrive_and_wait();
      return status.message();
    });
    CHECK(contains(errors, "rank 1 did not take part in all_reduce (operation 2)"));
  }

  TEST_CASE(
      "collective: at the deadline the error names the ranks that did not take part in an "
      "operation "
      "or a join") {
    for (const auto& hosts : {kOneHost, kOwnHosts, kTwoLevels}) {
      RankPlanes ranks("late", hosts);
      std::mutex lock;
      std::condition_variable changed;
      int done = 0;
      const std::string errors = on_ranks(3, [&](int rank) -> std::string {
        auto c = ranks.join(rank, 3, 1, "world", 2000);
        if (!c.ok()) return c.status().message();
        std::string error;
        if (rank != 1) {
          std::vector<float> data(hosts == kTwoLevels ? 100'000 : 10);
          const Status status = (*c)->all_reduce(data.data(), data.size(), DType::f32)->wait();
          // Ranks 0 and 2 reach their deadlines one after the other, so the later rank may first
          // see that the earlier one has left.
          if (status.code() == Code::deadline &&
              !(contains(status.message(), "rank 1 did not take part in all_reduce (operation 2)")))
            error = "unexpected: " + status.message();
          else if (status.code() != Code::deadline && status.code() != Code::unavailable)
            error = "unexpected: " + status.message();
        }
        std::unique_lock guard(lock);
        if (rank != 1) ++done, changed.notify_all();
        changed.wait(guard, [&] { return done == 2; });
        return error;
      });
      CHECK(errors == "");
      auto alone = ranks.join(0, 3, 2, "world", 100);
      REQUIRE(!alone.ok());
      CHECK(alone.status().code() == Code::deadline);
      CHECK(contains(alone.status().message(), "ranks 1, 2 did not join"));
    }
  }

  TEST_CASE("collective: over two levels every rank names the one that did not take part") {
    // Ranks 0 and 1 exchange with 2 and 3. What the absent rank has reaches the others directly,
    // through their neighbours, or in a sum of its host.
    RankPlanes ranks("absent", {0, 0, 1, 1});
    uint64_t generation = 0;
    for (const bool sums : {false, true})
      for (const int absent : {1, 2}) {
        CAPTURE(sums);
        CAPTURE(absent);
        ++generation;
        std::barrier over(4);
        const std::string errors = on_ranks(4, [&](int rank) -> std::string {
          auto c = ranks.join(rank, 4, generation, "world", 1500);
          Status status = c.status();
          if (c.ok() && rank != absent) {
            std::vector<float> data(400'000), part(100'000);
            status = (sums ? (*c)->reduce_scatter(data.data(), part.data(), part.size(), DType::f32)
                           : (*c)->all_gather(part.data(), data.data(), part.size(), DType::f32))
                         ->wait();
          }
          over.arrive_and_wait();
          // A rank may first see that another one, whose deadline was earlier, has left.
          const std::string want = "rank " + std::to_string(absent) + " did not take part in ";
          return rank == absent || status.code() == Code::unavailable ||
                         (status.code() == Code::deadline && contains(status.message(), want))
                     ? status.code() == Code::deadline ? "named" : ""
                     : "unexpected: " + status.message();
        });
        CHECK(contains(errors, "named"));
        CHECK_FALSE(contains(errors, "unexpected"));
      }
  }

  TEST_CASE("collective: COLLECTIVE-1, nobody reads the memory of a rank after its deadline") {
    RankPlanes ranks("gone", {0, 0});
    std::barrier both(2);
    const std::string errors = on_ranks(2, [&](int rank) -> std::string {
      auto c = ranks.join(rank, 2, 1, "world", rank == 0 ? 2000 : 60'000);
      if (rank == 1) both.arrive_and_wait();  // until rank 0 has given up
      Status status = c.status();
      float x = 1;
      if (c.ok()) status = (*c)->all_reduce(&x, 1, DType::f32)->wait();
      if (rank == 0) both.arrive_and_wait();
      both.arrive_and_wait();  // rank 0's communicator lasts until then
      return status.message();
    });
    CHECK(contains(errors, "rank 1 did not take part in all_reduce (operation 2)"));
    CHECK(contains(errors, "rank 0 has left"));
  }

  TEST_CASE("collective: a fence ends a join that waits for other ranks") {
    RankPlanes ranks("fence", {0, 1});
    std::thread other([&] { ranks.planes[0]->abort(4, "the supervisor has a new plan"); });
    auto joined = ranks.join(0, 2, 4);
    other.join();
    REQUIRE(!joined.ok());
    CHECK(joined.status().code() == Code::aborted);
    CHECK(contains(joined.status().message(), "the supervisor has a new plan"));
    ranks.planes[0]->abort(2, "a late order");  // changes nothing
    joined = ranks.join(0, 2, 4, "another", 100);
    REQUIRE(!joined.ok());
    CHECK(contains(joined.status().message(), "the supervisor has a new plan"));
  }

  TEST_CASE("collective: join refuses malformed members") {
    RankPlanes ranks("bad", {0, 0});
    auto& plane = *ranks.planes[0];
    CHECK(plane.join({1, "w", 0, {}, 100}).status().code() == Code::bad_data);
    CHECK(plane.join({1, "w", 3, {ranks.addresses[0]}, 100}).status().code() == Code::bad_data);
    auto cut = ranks.addresses[0];
    for (size_t bytes = 0; bytes < cut.size(); bytes += 7)
      CHECK(
          plane.join({1, "w", 0, {{cut.begin(), cut.begin() + static_cast<ptrdiff_t>(bytes)}}, 100})
              .status()
              .code() == Code::bad_data);
    CHECK(plane.join({1, "w", 0, {ranks.addresses[1]}, 100}).status().code() == Code::bad_data);
    std::vector<uint8_t> noise(300, 0xff);
    CHECK(plane.join({1, "w", 0, {ranks.addresses[0], noise}, 100}).status().code() ==
          Code::bad_data);
  }

  TEST_CASE("collective: processes of one host and of different hosts get the same bits") {
    std::set<std::string> hashes;
    for (const auto& hosts : {kOneHost, kOwnHosts, kTwoLevels}) {
      test::TempFolder folder;
      std::string lines;
      std::vector<std::unique_ptr<Process>> processes;
      for (int rank = 0; rank < 3; ++rank)
        processes.push_back(std::make_unique<Process>(
            std::vector<std::string>{folder.path, std::to_string(rank), "3", "1", "all", "20000",
                                     "h" + std::to_string(hosts[static_cast<size_t>(rank)])}));
      for (auto& process : processes) {
        const std::string line = process->line();
        CHECK(line.substr(0, 3) == "ok ");
        lines += line + "\n";
      }
      hashes.insert(lines);
    }
    CHECK(hashes.size() == 1);
  }

  TEST_CASE(
      "collective: the other ranks learn at once which rank was killed, and go on in a new "
      "generation") {
    for (const auto& hosts : {kOneHost, kOwnHosts, kTwoLevels}) {
      CAPTURE(hosts);
      test::TempFolder folder;
      auto host = [&](int rank) { return "h" + std::to_string(hosts[static_cast<size_t>(rank)]); };
      auto start = [&](int rank, const char* generation, const char* scenario) {
        return std::make_unique<Process>(std::vector<std::string>{
            folder.path, std::to_string(rank), "3", generation, scenario, "60000", host(rank)});
      };
      std::vector<std::unique_ptr<Process>> processes;
      for (int rank = 0; rank < 3; ++rank) processes.push_back(start(rank, "1", "endless"));
      for (auto& process : processes) CHECK(process->line() == "started");
      processes[1]->kill();  // not reaped: a zombie
      // Both report unavailable. One names rank 1; the other names rank 1 or the rank that left
      // after it.
      std::string said;
      for (const int rank : {0, 2}) {
        const std::string line = processes[static_cast<size_t>(rank)]->line();
        CHECK(line.substr(0, 12) == "unavailable:");
        said += line + "\n";
      }
      CAPTURE(said);
      CHECK(contains(said, "rank 1"));
      processes.clear();
      for (int rank = 0; rank < 3; ++rank) processes.push_back(start(rank, "2", "all"));
      for (auto& process : processes) CHECK(process->line().substr(0, 3) == "ok ");
    }
  }

  TEST_CASE("segment: memory released in any order becomes one block again") {
    collective::OffsetAllocator allocator(4096, 4096 + 1024 * 64);
    std::mt19937 random(7);
    for (int round = 0; round < 50; ++round) {
      std::vector<size_t> offsets;
      for (;;) {
        const size_t bytes = 1 + random() % 9000;
        const size_t offset = allocator.allocate(bytes, random() % 2 ? 64 : 4096);
        if (offset == 0) break;
        offsets.push_back(offset);
      }
      CHECK(!offsets.empty());
      std::shuffle(offsets.begin(), offsets.end(), random);
      for (const size_t offset : offsets) allocator.release(offset);
      const size_t whole = allocator.allocate(1024 * 64, 64);
      CHECK(whole == 4096);
      allocator.release(whole);
    }
  }
}

}  // namespace simplescale::testing
