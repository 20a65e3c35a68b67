// Tasks meet in a folder: they join, publish, miss each other, and one writes the conclusion.
#include "runtime/run/rendezvous.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "runtime/run/run_key.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

struct Folder : test::TempFolder {
  Folder() { fs::create_directory(path + "/control"); }
  std::string rendezvous() const { return path + "/control/doctor-7.0.0"; }
};

constexpr int64_t kLong = 60'000;

}  // namespace

TEST_SUITE("rendezvous") {
  TEST_CASE(
      "rendezvous: all join, one writes the conclusion, all read it, and the folder is removed") {
    const Folder folder;
    constexpr int tasks = 4;
    std::atomic<int> conclusions{0}, read_sum{0}, keys{0};
    std::string key[tasks];
    std::vector<std::thread> threads;
    for (int task = 0; task < tasks; ++task)
      threads.emplace_back([&, task] {
        const auto rendezvous = Rendezvous::join(folder.rendezvous(), task, tasks, kLong);
        if (!rendezvous.ok()) return;
        if (auto text = read_run_key(rendezvous->folder()); text.ok()) key[task] = *text, ++keys;
        (void)rendezvous->publish("here", {{"host", "h"}}).ok();
        const auto here = rendezvous->wait("here");
        (void)rendezvous->publish("report", {{"task", task}}).ok();
        std::set<int> others = rendezvous->wait("report");
        others.erase(task);
        const bool mine = rendezvous->claim_conclusion();
        if (mine) {
          int sum = 0;
          for (int t = 0; t < tasks; ++t) sum += rendezvous->read("report", t).value("task", 100);
          (void)rendezvous->publish_conclusion({{"sum", sum}}).ok();
          ++conclusions;
        }
        if (const auto document = rendezvous->wait_conclusion();
            document.ok() && here.size() == tasks)
          read_sum += document->value("sum", 0);
        rendezvous->leave(mine, others);
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(conclusions == 1);
    CHECK(read_sum == tasks * (0 + 1 + 2 + 3));
    CHECK(keys == tasks);
    for (const std::string& one : key) CHECK(one == key[0]);
    CHECK(!fs::exists(folder.rendezvous()));
  }

  TEST_CASE(
      "rendezvous: a task that does not join, or stops at a stage, is left out after the timeout") {
    const Folder folder;
    const auto rendezvous = must(Rendezvous::join(folder.rendezvous(), 1, 3, 50));
    REQUIRE(rendezvous->publish("here", {}).ok());
    const auto other = must(Rendezvous::join(folder.rendezvous(), 2, 3, 50));
    REQUIRE(other->publish("here", {}).ok());
    CHECK(rendezvous->wait("here") == std::set<int>{1, 2});
    REQUIRE(rendezvous->publish("report", {}).ok());
    CHECK(rendezvous->wait("report") == std::set<int>{1});
    CHECK(rendezvous->read("report", 2).is_null());
    CHECK(other->wait_conclusion().status().code() == Code::deadline);
    CHECK(rendezvous->claim_conclusion());
    CHECK_FALSE(other->claim_conclusion());
  }

  TEST_CASE("rendezvous: file names that are not tasks and damaged documents are ignored") {
    const Folder folder;
    const auto rendezvous = must(Rendezvous::join(folder.rendezvous(), 0, 2, 50));
    REQUIRE(rendezvous->publish("here", {}).ok());
    for (const char* name : {"2", "-1", "x", "1.part", "1x", "99999999999999"})
      std::ofstream(folder.rendezvous() + "/here/" + name) << "{";
    CHECK(rendezvous->wait("here") == std::set<int>{0});
    std::ofstream(folder.rendezvous() + "/here/1") << "{";
    CHECK(rendezvous->wait("here") == std::set<int>{0, 1});
    CHECK(rendezvous->read("here", 1).is_null());
  }

  TEST_CASE("rendezvous: a folder of another user, or a link, is not joined") {
    const Folder folder;
    fs::create_directories(folder.path + "/elsewhere/control");
    std::ofstream(folder.path + "/elsewhere/control/key") << std::string(kRunKeyBytes, 'k');
    fs::create_directory_symlink(folder.path + "/elsewhere", folder.rendezvous());
    CHECK(Rendezvous::join(folder.rendezvous(), 0, 2, 50).status().code() == Code::bad_data);
    fs::remove(folder.rendezvous());
    if (geteuid() != 0) return skipped("only root can make a folder of another user");
    fs::rename(folder.path + "/elsewhere", folder.rendezvous());
    CHECK(Rendezvous::join(folder.rendezvous(), 0, 2, 50).ok());
    REQUIRE(chown(folder.rendezvous().c_str(), 65534, 65534) == 0);
    CHECK(Rendezvous::join(folder.rendezvous(), 0, 2, 50).status().code() == Code::bad_data);
  }

  TEST_CASE("rendezvous: a folder that cannot be created gives io") {
    CHECK(Rendezvous::join("/proc/nowhere/x", 0, 1, 50).status().code() == Code::io);
  }

  TEST_CASE("rendezvous: if the task that created the folder died, the next one writes the key") {
    for (const bool with_control : {false, true}) {
      const Folder folder;
      REQUIRE(mkdir(folder.rendezvous().c_str(), 0700) == 0);
      const RunFolder run{folder.rendezvous()};
      if (with_control) {
        REQUIRE(make_control(run).ok());
        std::ofstream(run.key() + ".part") << "half";
      }
      REQUIRE(Rendezvous::join(folder.rendezvous(), 0, 2, 50).ok());
      const auto key = must(read_run_key(run));
      REQUIRE(Rendezvous::join(folder.rendezvous(), 1, 2, 50).ok());
      CHECK(*read_run_key(run) == *key);
    }
  }
}
