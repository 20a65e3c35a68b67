// The commands of several hosts find each other's start of a run, and keep their ranks.
#include "runtime/run/host_place.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kLong = 60'000;

struct Run {
  const test::TempFolder temporary;
  const RunFolder folder{temporary.path};
  std::set<std::string> ended;
  bool ending = false;
  Status may_begin;
  std::string said;
  Run() {
    fs::create_directories(folder.control());
    fs::permissions(folder.control(), fs::perms::owner_all);
  }

  HostPlace::Options options(int rank, int nnodes, int64_t timeout_ms) {
    HostPlace::Options options;
    options.rank = rank;
    options.nnodes = nnodes;
    options.timeout_ms = timeout_ms;
    options.facts = {"host-" + std::to_string(rank),
                     "boot-" + std::to_string(rank),
                     100 + rank,
                     {"gpu-" + std::to_string(rank)}};
    options.ended = [this](const std::string& instance) { return ended.contains(instance); };
    options.began = [](const std::string&) { return false; };
    options.ending = [this] { return std::exchange(ending, false); };
    options.may_begin = [this] { return may_begin; };
    options.say = [this](const std::string& text) { said += text + "\n"; };
    return options;
  }
  /// Without waiting for the commands of other ranks.
  Result<HostPlace> take(int rank, int nnodes) {
    HostPlace::Options one = options(rank, nnodes, kLong);
    one.began = [](const std::string&) { return true; };
    return HostPlace::take(folder, std::move(one));
  }
};

}  // namespace

TEST_SUITE("host place") {
  TEST_CASE("host place: commands that start together agree on one start and tell their facts") {
    Run run;
    constexpr int nnodes = 8;
    std::vector<std::optional<HostPlace>> places(nnodes);
    std::vector<std::thread> hosts;
    for (int rank = 0; rank < nnodes; ++rank)
      hosts.emplace_back([&, rank] {
        auto place = HostPlace::take(run.folder, run.options(rank, nnodes, kLong));
        if (place.ok()) places[static_cast<size_t>(rank)].emplace(place.take());
      });
    for (std::thread& host : hosts) host.join();
    for (const auto& place : places) {
      REQUIRE(place);
      CHECK(place->instance() == places[0]->instance());
      const auto told = place->told();
      REQUIRE(told.size() == nnodes);
      CHECK(told.at(5).host == "host-5");
      CHECK(told.at(5).gpus == std::vector<std::string>{"gpu-5"});
    }
  }

  TEST_CASE("LOCK-2: a command joins a start only while another command of it lives") {
    Run run;
    auto first = std::make_unique<Result<HostPlace>>(run.take(0, 3));
    REQUIRE(first->ok());
    const std::string instance = (*first)->instance();
    auto second = std::make_unique<Result<HostPlace>>(run.take(1, 3));
    CHECK((*second)->instance() == instance);
    first.reset();  // its host is lost
    first = std::make_unique<Result<HostPlace>>(run.take(0, 3));
    CHECK((*first)->instance() == instance);
    first.reset();
    second.reset();
    CHECK(run.take(1, 3)->instance() != instance);
  }

  TEST_CASE("LOCK-2: a command waits until those of a start that has ended are gone") {
    Run run;
    auto old = std::make_unique<Result<HostPlace>>(run.take(0, 2));
    const std::string instance = (*old)->instance();
    run.ended = {instance};
    const Status early = HostPlace::take(run.folder, run.options(1, 2, 100)).status();
    CHECK(says(early, Code::unavailable, "has ended, but a command of it still runs"));
    run.ending = true;  // it says so once
    const int64_t timeout_ms = 4'000;
    CHECK_FALSE(HostPlace::take(run.folder, run.options(1, 2, timeout_ms)).ok());
    CHECK_FALSE(run.ending);
    CHECK(run.said ==
          "waits for the commands of an earlier start of " + run.folder.path + " to end\n");
    old.reset();
    run.may_begin = Status(Code::aborted, "no");
    CHECK(run.take(1, 2).status().code() == Code::aborted);
    run.may_begin = {};
    CHECK(run.take(1, 2)->instance() != instance);
  }

  TEST_CASE("LOCK-2: a rank has one command; another one is told which") {
    Run run;
    const auto first = run.take(1, 3);
    HostPlace::Options twice = run.options(1, 3, kLong);
    const Status refused = HostPlace::take(run.folder, twice).status();
    CHECK(refused.code() == Code::bad_config);
    CHECK(refused.message() ==
          "another command has --node-rank=1: process 101 on host-1: give each host a rank of its "
          "own; a further host joins the run while it trains by: simplescale train --join " +
              run.folder.path);
    CHECK(run.said.empty());
    twice.facts.scope = "elsewhere";  // the holder may be a lost host, whose lock is not yet free
    twice.timeout_ms = 3'000;
    CHECK_FALSE(HostPlace::take(run.folder, twice).ok());
    CHECK(run.said.find("in case it is lost") != std::string::npos);
  }

  TEST_CASE("host place: the GPUs that a command has taken are told while it lives") {
    Run run;
    const auto zero = run.take(0, 2);
    auto one = std::make_unique<Result<HostPlace>>(run.take(1, 2));
    CHECK(zero->told().at(1).own.empty());
    REQUIRE((*one)->tell_own(std::nullopt).ok());
    CHECK(zero->told().at(1).shares);
    REQUIRE((*one)->tell_own(std::vector<std::string>{"gpu-1"}).ok());
    CHECK_FALSE(zero->told().at(1).shares);
    CHECK(zero->told().at(1).own == std::vector<std::string>{"gpu-1"});
    CHECK((*one)->told().at(1).own == std::vector<std::string>{"gpu-1"});
    one.reset();  // lost
    CHECK(zero->told().at(1).own.empty());
    CHECK(zero->told().at(1).gpus == std::vector<std::string>{"gpu-1"});
  }

  TEST_CASE("host place: another number of hosts is refused, with the command that began") {
    Run run;
    const auto first = run.take(2, 3);
    const Status refused = run.take(0, 4).status();
    CHECK(refused.code() == Code::bad_config);
    CHECK(refused.message().starts_with(
        "--nnodes is 4 here, but 3 at n2 on host-2, which began this start of "));
    CHECK(refused.message().ends_with(
        ": give all hosts the same number; a further host joins the run while it trains by: "
        "simplescale train --join " +
        run.folder.path));
  }

  TEST_CASE("host place: a command that is missing is named, and left out in the end") {
    Run run;
    const auto place = must(HostPlace::take(run.folder, run.options(0, 2, 6'000)));
    CHECK(run.said == "still waiting for 1 of 2 hosts, first for --node-rank=1\n");
    CHECK(place->told().size() == 1);
  }

  TEST_CASE("host place: all leave once each command that lives has been asked to end") {
    Run run;
    const auto zero = run.take(0, 3), one = run.take(1, 3);
    auto two = std::make_unique<Result<HostPlace>>(run.take(2, 3));
    CHECK(zero->not_leaving() == std::set{1, 2});
    two.reset();  // lost
    CHECK(zero->not_leaving() == std::set{1});
    CHECK(one->not_leaving().empty());
    CHECK(zero->not_leaving().empty());
    const auto again = run.take(2, 3);
    CHECK(zero->not_leaving() == std::set{2});
    CHECK(again->not_leaving().empty());
  }

  TEST_CASE("host place: a damaged file of a start that nobody shares is replaced") {
    Run run;
    std::ofstream(run.folder.control() + "/hosts") << "{\"instance\": 7";
    CHECK(run.take(0, 2)->instance().size() == 16);
  }
}
