// Marks of the journal that are given while it writes.
// What a disk that fails or lags behind leaves at the end of the records.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <string>

#include "actors/supervisor/journal.hpp"
#include "actors/supervisor/records_end.hpp"
#include "tests/actors/supervisor/records_folder.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {
/// Called in each sync of a file, by this program, once the file is on the disk.
std::function<void()> in_sync_of_file;

int synced(int fd, long call) {
  struct stat about {};
  const int result = static_cast<int>(syscall(call, fd));
  if (in_sync_of_file && fstat(fd, &about) == 0 && S_ISREG(about.st_mode)) in_sync_of_file();
  return result;
}
}  // namespace

// In place of the C library's.
extern "C" int fsync(int fd) {
  return synced(fd, SYS_fsync);
}
extern "C" int fdatasync(int fd) {
  return synced(fd, SYS_fdatasync);
}

TEST_SUITE("job records") {
  TEST_CASE("journal: JOB-2, steps that are undone while their lines are written are not marked") {
    const test::RecordsFolder folder;
    std::promise<void> writes, queued;
    Journal* undoes = nullptr;
    int asked = 0;
    Journal journal(folder.path, [&] {
      if (++asked == 1) {
        writes.set_value();
        queued.get_future().wait();
      }
      if (asked == 3) undoes->mark(6);  // the second: line 1 is synced
      return true;
    });
    undoes = &journal;
    journal.append("metrics.jsonl", {{"step", 1}});
    writes.get_future().wait();
    // One batch takes these three.
    journal.append("metrics.jsonl", {{"step", 38}});
    journal.mark(38);
    std::promise<uint64_t> marked;
    journal.when_written([&](bool) { marked.set_value(journal.marked()); });
    queued.set_value();
    CHECK(marked.get_future().get() == 0);
    CHECK(journal.flush());
    CHECK(journal.marked() == 6);
  }

  TEST_CASE("journal: LEAD-1, a journal that is deposed before it syncs marks nothing") {
    // Its lines may be spoiled: a successor that had looked at the file's end wrote meanwhile.
    const test::RecordsFolder folder;
    int asked = 0;
    Journal journal(folder.path, [&] { return ++asked < 2; });
    journal.append("metrics.jsonl", {{"step", 1}});
    journal.mark(1);
    CHECK(!journal.flush());
    CHECK(journal.marked() == 0);
  }

  TEST_CASE("journal: LEAD-1, a deposed journal writes late lines of one step at most") {
    // A successor left half a line; the late line that ended it was spoiled. Lines of later steps
    // behind it would have hidden that its step is missing.
    const test::RecordsFolder folder;
    std::promise<void> writes, queued;
    int asked = 0;
    Journal journal(folder.path, [&] {
      if (++asked == 1) {
        writes.set_value();
        queued.get_future().wait();
      }
      return asked <= 3;  // the line of step 1 and its sync; then the lines of step 2
    });
    journal.append("ledger.jsonl", {{"step", 1}});
    writes.get_future().wait();
    std::string expected = "{\"step\":1}\n";
    for (const int step : {2, 3, 4}) {  // one batch
      for (const char* trainer : {"n0.0", "n0.1"}) {
        const nlohmann::json line = {{"step", step}, {"trainer", trainer}};
        journal.append("ledger.jsonl", line);
        if (step == 2) expected += line.dump() + "\n";
      }
      journal.mark(step);
    }
    queued.set_value();
    CHECK(!journal.flush());
    CHECK(folder.text("ledger.jsonl") == expected);
    CHECK(journal.marked() == 0);
  }

  TEST_CASE(
      "journal: LEAD-1, a page whose sync ends after a successor has begun is not published") {
    // A supervisor asked whether it led, hung in a second sync, and renamed its end.json over that
    // of a run that its successor led.
    for (int last = 1; last <= 3; ++last) {
      const test::RecordsFolder folder;
      std::atomic<bool> leads = true;
      int syncs = 0;
      in_sync_of_file = [&] {
        if (++syncs == last) leads = false;
      };
      {
        Journal journal(folder.path, [&] { return leads.load(); });
        journal.replace("page", "late");
        CHECK(journal.flush() == leads);
      }
      in_sync_of_file = nullptr;
      CHECK(std::filesystem::exists(folder.path + "/page") == leads);
    }
  }

  TEST_CASE("journal: LEAD-1, nothing is written while it is not known who leads") {
    // An error of the folder was taken for "this supervisor leads".
    const test::RecordsFolder folder;
    std::atomic<bool> readable = false;
    Journal journal(folder.path, [&]() -> Result<bool> {
      if (!readable) return Status(Code::io, "cannot read control");
      return true;
    });
    journal.append("metrics.jsonl", {{"step", 1}});
    journal.replace("page", "text");
    journal.mark(1);
    CHECK(!journal.flush());
    CHECK(folder.text("metrics.jsonl").empty());
    CHECK(!std::filesystem::exists(folder.path + "/page"));
    CHECK(journal.marked() == 0);
    readable = true;
    CHECK(journal.flush());
    CHECK(folder.text("metrics.jsonl") == "{\"step\":1}\n");
    CHECK(folder.text("page") == "text");
    CHECK(journal.marked() == 1);
  }
}

TEST_SUITE("job records") {
  TEST_CASE("records: the part that a failed append has written is found, wherever it ends") {
    const std::string before = "{\"step\":1}\n",
                      text = "{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n";
    for (size_t written = 0; written <= text.size(); ++written)
      for (size_t there = written; there <= text.size(); ++there) {
        test::RecordsFolder folder;
        folder.write("metrics.jsonl", before + text.substr(0, there));
        const auto found = must(bytes_appended(folder.path + "/metrics.jsonl", text, written));
        CHECK(*found == there);
        CHECK(folder.text("metrics.jsonl") == before + text.substr(0, there));
      }
  }

  TEST_CASE("records: half a line that is not the journal's own becomes spaces") {
    const std::string text = "{\"step\":2}\n{\"step\":3}\n";
    test::RecordsFolder folder;
    const std::string path = folder.path + "/metrics.jsonl";
    folder.write("metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"step\":2}\n{\"st#");
    CHECK(*bytes_appended(path, text, 15) == 11);  // the second line is written again, as a whole
    CHECK(folder.text("metrics.jsonl") == "{\"step\":1}\n{\"step\":2}\n{\"step\":2}\n     ");
    folder.write("metrics.jsonl", "{\"st#");
    CHECK(bytes_appended(path, text, 0, [] { return false; }).status().code() == Code::aborted);
    CHECK(folder.text("metrics.jsonl") == "{\"st#");
  }

  TEST_CASE("records: GEN-2: a number that any line names is used, though its page is lost") {
    test::RecordsFolder folder;
    const auto newest = [&] {
      return end_of_records(folder.path, true, BatchSchedule(8))->newest_generation;
    };
    CHECK(newest() == 0);
    folder.write("metrics.jsonl", "{\"generation\":3,\"step\":1}\n");
    CHECK(newest() == 3);
    folder.write("ledger.jsonl", "{\"generation\":4,\"step\":1,\"trainer\":\"n0.0\"}\n");
    CHECK(newest() == 4);
    folder.write("events.jsonl", "{\"generation\":5,\"incident\":null}\n{\"incident\":1}\n");
    CHECK(newest() == 5);
    folder.write("events.jsonl", "{\"incident\":7}\n" + std::string(300'000, ' ') + "\n{}\n");
    CHECK(end_of_records(folder.path, true, BatchSchedule(8))->incidents == 7);
  }
}
