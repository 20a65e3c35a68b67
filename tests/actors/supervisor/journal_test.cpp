// The journal, which writes the run's records, and their end, which a new supervisor reads.
#include "actors/supervisor/journal.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <sstream>

#include "actors/supervisor/records_end.hpp"
#include "runtime/base/files.hpp"
#include "tests/actors/supervisor/records_folder.hpp"
#include "tests/full_disk.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

using Folder = test::RecordsFolder;
using test::FullDisk;

std::string metric(int step, int generation = 1) {
  return "{\"generation\":" + std::to_string(generation) + ",\"step\":" + std::to_string(step) +
         "}\n";
}
nlohmann::json metric_line(int step) {
  return nlohmann::json::parse(metric(step));
}
std::string ledger(int step, int generation, int first, int count) {
  return "{\"generation\":" + std::to_string(generation) + ",\"samples\":[[" +
         std::to_string(first) + "," + std::to_string(count) +
         "]],\"step\":" + std::to_string(step) + ",\"trainer\":\"n" +
         std::to_string(first % 8 / 4) + ".0\"}\n";
}
/// A step of 8 samples on two trainers.
std::string whole(int step, int generation = 1) {
  return ledger(step, generation, 8 * step - 8, 4) + ledger(step, generation, 8 * step - 4, 4);
}

}  // namespace

TEST_SUITE("job records") {
  TEST_CASE(
      "journal: lines and marks in the order given; LEAD-1, nothing after may_write() fails") {
    Folder folder;
    {
      Journal journal(folder.path);
      for (int i = 1; i <= 100; ++i) {
        journal.append("metrics.jsonl", metric_line(i));
        journal.mark(static_cast<uint64_t>(i));
      }
      journal.replace("document", "one\n");
      while (journal.marked() < 100) std::this_thread::yield();
      CHECK(folder.text("metrics.jsonl").ends_with(metric(99) + metric(100)));
      journal.stop();
      journal.append("metrics.jsonl", metric_line(101));
    }
    CHECK(folder.text("metrics.jsonl").ends_with(metric(100)));
    CHECK(folder.text("document") == "one\n");
    std::atomic<bool> leads = true;
    {
      Journal journal(folder.path, [&] { return leads.load(); });
      leads = false;
      journal.append("metrics.jsonl", metric_line(102));
    }
    CHECK(folder.text("metrics.jsonl").ends_with(metric(100)));
  }

  TEST_CASE("journal: LEAD-1, half a line that a deposed supervisor leaves spoils no later line") {
    // It was frozen before a write and woke when the disk was full.
    Folder folder;
    Journal journal(folder.path);
    journal.append("metrics.jsonl", metric_line(1));
    CHECK(journal.flush());
    std::ofstream(folder.path + "/metrics.jsonl", std::ios::app) << metric(1) << "{\"half";
    journal.append("metrics.jsonl", metric_line(2));
    CHECK(journal.flush());
    CHECK(folder.text("metrics.jsonl") == metric(1) + metric(1) + std::string(6, ' ') + metric(2));
  }

  TEST_CASE("journal: written() is called once the lines are in the files") {
    Folder folder;
    std::atomic<int> told = 0;
    std::string seen;
    Journal journal(folder.path, nullptr, 10'000, [&] {
      seen = folder.text("metrics.jsonl");
      ++told;
    });
    journal.append("metrics.jsonl", metric_line(1));
    CHECK(journal.flush());
    CHECK(told >= 1);
    CHECK(seen == metric(1));
    journal.append("metrics.jsonl", metric_line(2));
    CHECK(journal.flush());
    CHECK(seen == metric(1) + metric(2));
    CHECK(journal.flush());  // nothing is queued
  }

  TEST_CASE("records: a start that has recorded no end has died") {
    Folder folder;
    const auto unended = [&](const std::string& events) {
      folder.write("events.jsonl", events);
      const auto end = must(end_of_records(folder.path, false, BatchSchedule(8)));
      return end->unended;
    };
    const std::string started = "{\"kind\":\"started\",\"time\":5}\n",
                      joined = "{\"kind\":\"joined\",\"time\":6.5}\n";
    CHECK(!unended(""));  // a new run
    CHECK(unended(started));
    CHECK(unended(started + joined));
    CHECK(end_of_records(folder.path, false, BatchSchedule(8))->newest_time == 6.5);
    for (const char* kind : {"finished", "stopped", "failed"}) {
      const std::string end = "{\"kind\":\"" + std::string(kind) + "\"}\n";
      CHECK(!unended(started + joined + end));
      CHECK(!unended(started + end + "{\"kind\":\"checkpoint_uploaded\"}\n"));  // by the launcher
      CHECK(unended(started + end + started));
    }
  }

  TEST_CASE("records: they end with the last step of which both files have all lines") {
    Folder folder;
    auto end = [&](bool keeps_ledger = true, uint64_t said = 0) {
      auto found = must(end_of_records(folder.path, keeps_ledger, BatchSchedule(8), nullptr, said));
      return *found;
    };
    using Lines = std::set<StepLine>;
    CHECK(!end().any);  // nothing yet
    CHECK(end().incidents == 0);
    folder.write("metrics.jsonl", metric(1) + metric(2));
    folder.write("ledger.jsonl", whole(1) + whole(2));
    folder.write("events.jsonl", "{\"incident\":1}\n{\"incident\":2}\n{\"incident\":null}\n{}\n");
    CHECK(end().incidents == 2);
    CHECK(end().unended);
    CHECK(end().step == 2);
    CHECK(end().generation == 1);
    CHECK(end().beyond.empty());

    folder.write("metrics.jsonl", "{\"step\":1,\"generation\":1,\"val_loss\":2.5}\n" + metric(2));
    CHECK(end().validations == std::map<uint64_t, nlohmann::json>{{1, {{"val_loss", 2.5}}}});

    // A step with the line of only one trainer, and one that is only in metrics.jsonl.
    folder.write("metrics.jsonl", metric(1) + metric(2) + metric(3) + metric(4));
    folder.write("ledger.jsonl", whole(1) + whole(2) + ledger(3, 1, 16, 4));
    CHECK(end().step == 2);
    CHECK(end().beyond == Lines{{1, 3, ""}, {1, 4, ""}, {1, 3, "n0.0"}});
    // A power failure took the end of metrics.jsonl.
    folder.write("metrics.jsonl", metric(1));
    folder.write("ledger.jsonl", whole(1) + whole(2) + whole(3));
    CHECK(end().step == 1);
    CHECK(end().beyond.size() == 4);

    // The same step made in two generations, the second time not as a whole.
    folder.write("metrics.jsonl", metric(1) + metric(2) + metric(2, 2));
    folder.write("ledger.jsonl", whole(1) + whole(2) + ledger(2, 2, 8, 4));
    CHECK(end().step == 2);
    CHECK(end().generation == 1);
    CHECK(end().beyond == Lines{{2, 2, ""}, {2, 2, "n0.0"}});

    // A deposed supervisor has repeated lines of its time.
    folder.write("metrics.jsonl", metric(1) + metric(2) + metric(3) + metric(4, 2) + metric(2));
    folder.write("ledger.jsonl", whole(1) + whole(2) + whole(3) + whole(4, 2) + whole(2));
    CHECK(end().step == 4);
    CHECK(end().generation == 2);
    CHECK(end().beyond.empty());

    // Only a part of the first step.
    folder.write("metrics.jsonl", metric(1));
    folder.write("ledger.jsonl", ledger(1, 1, 0, 4));
    CHECK(!end().any);

    // A full disk has taken lines of one file and none of the other one.
    folder.write("ledger.jsonl", "");
    folder.write("metrics.jsonl", metric(1) + metric(2) + metric(3));
    CHECK(!end().any);
    CHECK(end().beyond.size() == 3);
    // The predecessor has said that both had the lines of step 2: a user has removed one of them.
    CHECK(end(true, 2).step == 2);
    CHECK(end(true, 2).beyond == Lines{{1, 3, ""}});
    folder.write("ledger.jsonl", ledger(3, 1, 16, 4));  // begun again by the next start
    CHECK(end(true, 2).step == 2);
    CHECK(end(false).step == 3);
    folder.write("metrics.jsonl", "");
    folder.write("ledger.jsonl", whole(1) + whole(2) + whole(3));
    CHECK(!end().any);
    CHECK(end(true, 2).step == 2);
    CHECK(end(true, 2).beyond == Lines{{1, 3, "n0.0"}, {1, 3, "n1.0"}});
    // Many steps: the end of a file is read in windows.
    std::string metrics, samples;
    for (int step = 1; step <= 20'000; ++step) metrics += metric(step), samples += whole(step);
    folder.write("metrics.jsonl", metrics);
    folder.write("ledger.jsonl", samples + std::string(300'000, ' ') + "\n");
    CHECK(end().step == 20'000);
  }

  TEST_CASE("records: steps that are not whole cost no line of metrics.jsonl") {
    // The last two steps of the ledger were incomplete: metrics.jsonl was emptied.
    Folder folder;
    const std::string metrics = metric(1) + metric(2) + metric(3) + metric(4),
                      samples = whole(1) + whole(2) + ledger(3, 1, 16, 4) + ledger(4, 1, 24, 4);
    folder.write("metrics.jsonl", metrics);
    folder.write("ledger.jsonl", samples);
    const auto end = must(end_of_records(folder.path, true, BatchSchedule(8)));
    CHECK(end->step == 2);
    CHECK(folder.text("metrics.jsonl") == metrics);
    CHECK(folder.text("ledger.jsonl") == samples);
    // None is whole, and the ledger begins late.
    folder.write("ledger.jsonl", ledger(3, 1, 16, 4) + ledger(4, 1, 24, 4));
    CHECK(end_of_records(folder.path, true, BatchSchedule(8), nullptr, 2)->step == 2);
    CHECK(folder.text("metrics.jsonl") == metrics);
  }

  TEST_CASE(
      "records: LEAD-1, a supervisor that wakes while it prepares changes no line of its "
      "successor") {
    // It had read the files' sizes, was stopped, and cut off what its successor had appended since.
    Folder folder;
    folder.write("metrics.jsonl", metric(1) + "{\"gener");
    folder.write("ledger.jsonl", whole(1));
    const std::string blank = metric(1) + std::string(7, ' ');
    bool woken = false;
    const auto end = end_of_records(folder.path, true, BatchSchedule(8), [&] {
      // This process has read the file, and is stopped. Its successor goes through the same, leads,
      // and writes a step.
      woken = true;
      REQUIRE(end_of_records(folder.path, true, BatchSchedule(8)).ok());
      CHECK(folder.text("metrics.jsonl") == blank);
      Journal successor(folder.path);
      successor.append("metrics.jsonl", metric_line(2));
      CHECK(successor.flush());
      return true;  // and not even the term files are read after the process wakes
    });
    CHECK(woken);
    CHECK(folder.text("metrics.jsonl") == blank + metric(2));
    // Each line is JSON, also the one that follows half a line.
    std::istringstream lines(folder.text("metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) CHECK(nlohmann::json::accept(line));
    CHECK(end_of_records(folder.path, true, BatchSchedule(8))->step == 1);
    folder.write("events.jsonl", "{");
    CHECK(
        end_of_records(folder.path, true, BatchSchedule(8), [] { return false; }).status().code() ==
        Code::aborted);
    CHECK(leave_gap(folder.path, [] { return false; }).code() == Code::aborted);
    CHECK(leave_gap(folder.path, [] { return Result<bool>(Status(Code::io, "EIO")); }).code() ==
          Code::io);
    CHECK(folder.text("events.jsonl") == "{");
  }

  TEST_CASE("journal: LEAD-1, may_write() is asked before each write, of whole lines and bounded") {
    // A supervisor that was deposed while it wrote a batch went on to the end of the batch.
    Folder folder;
    int asked = 0;
    Journal journal(folder.path, [&] { return ++asked < 3; });
    const std::string text(40 << 10, 'x');
    for (int i = 0; i < 20; ++i) journal.append("events.jsonl", {{"text", text}});
    CHECK(!journal.flush());
    const std::string written = folder.text("events.jsonl");
    CHECK(written.size() <= 2 * (64 << 10));
    CHECK(written.ends_with("\n"));
  }

  TEST_CASE("journal: LEAD-1, what a deposed leader writes late lies in its successor's gap") {
    // Without O_APPEND, as on NFS: a leader that was suspended right before a write overwrote lines
    // of its successor when it continued.
    Folder folder;
    std::promise<void> writes, filled, suspended, woken;
    int asked = 0;
    auto deposed = std::make_unique<Journal>(
        folder.path,
        [&] {
          if (++asked == 1) {
            writes.set_value();
            filled.get_future().wait();
          }
          if (asked == 3) {  // after the first line's write and its sync
            suspended.set_value();
            woken.get_future().wait();
          }
          return asked < 4;
        },
        10'000, nullptr, false);
    deposed->append("metrics.jsonl", metric_line(1));
    writes.get_future().wait();
    std::string late;  // one write takes all of these lines
    for (int step = 2; late.size() < (60 << 10); ++step) {
      deposed->append("metrics.jsonl", metric_line(step));
      late += metric(step);
    }
    filled.set_value();
    suspended.get_future().wait();
    REQUIRE(end_of_records(folder.path, false, BatchSchedule(8))->step == 1);
    REQUIRE(leave_gap(folder.path).ok());
    std::string own;
    {
      Journal successor(folder.path, nullptr, 10'000, nullptr, false);
      for (int step = 2; step <= 100; ++step) {
        successor.append("metrics.jsonl", nlohmann::json::parse(metric(step, 2)));
        own += metric(step, 2);
      }
      REQUIRE(successor.flush());
    }
    woken.set_value();
    deposed = nullptr;  // waits for its last write
    const std::string text = folder.text("metrics.jsonl");
    CHECK(text.starts_with(metric(1) + late));
    CHECK(text.ends_with(" " + own));
    CHECK(end_of_records(folder.path, false, BatchSchedule(8))->step == 100);
  }

  TEST_CASE("journal: a mark waits for the lines before it, also on a full disk") {
    // The line failed, the mark after it did not: the step's reports were discarded, and a
    // checkpoint of a step that is not recorded was published.
    Folder folder;
    Journal journal(folder.path);
    journal.append("metrics.jsonl", metric_line(1));
    journal.mark(1);
    REQUIRE(journal.flush());
    CHECK(journal.marked() == 1);
    CHECK(journal.trouble() == "");
    {
      FullDisk full(metric(1).size() + 5);  // five bytes of the next line fit
      journal.append("metrics.jsonl", metric_line(2));
      journal.mark(2);
      std::promise<bool> answer;
      journal.when_written([&](bool written) { answer.set_value(written); });
      CHECK(!answer.get_future().get());
      CHECK(!journal.flush());
      journal.append("metrics.jsonl", metric_line(3));
      journal.mark(3);
      CHECK(!journal.flush());
      CHECK(journal.marked() == 1);
      CHECK(folder.text("metrics.jsonl") == metric(1) + metric(2).substr(0, 5));
      CHECK(journal.trouble() == "metrics.jsonl: File too large");
    }
    CHECK(journal.flush());
    CHECK(journal.trouble() == "");
    CHECK(journal.marked() == 3);
    CHECK(folder.text("metrics.jsonl") == metric(1) + metric(2) + metric(3));
  }

  TEST_CASE(
      "journal: JOB-2, a mark of steps that were undone says nothing of the steps made again") {
    // While the disk hung, a checkpoint was published before its lines, and agents forgot reports.
    Folder folder;
    Journal journal(folder.path);
    journal.mark(10);
    REQUIRE(journal.flush());
    {
      FullDisk full(0);
      journal.append("metrics.jsonl", metric_line(11));
      journal.mark(38);
      journal.mark(6);
      CHECK(journal.marked() == 6);
      journal.mark(7);
      CHECK(!journal.flush());
      CHECK(journal.marked() == 6);
    }
    CHECK(journal.flush());
    CHECK(journal.marked() == 7);
  }

  TEST_CASE("journal: no line is written before the event that it refers to") {
    // Two supervisors died one after the other. The ledger named a generation that no event named.
    Folder folder;
    std::filesystem::create_directory(folder.path +
                                      "/events.jsonl");  // a file that cannot be opened
    Journal journal(folder.path);
    journal.append("events.jsonl", {{"kind", "joined"}});
    journal.append("metrics.jsonl", metric_line(1));
    CHECK(!journal.flush());
    CHECK(!std::filesystem::exists(folder.path + "/metrics.jsonl"));
    std::filesystem::remove(folder.path + "/events.jsonl");
    CHECK(journal.flush());
    CHECK(folder.text("events.jsonl") == "{\"kind\":\"joined\"}\n");
    CHECK(folder.text("metrics.jsonl") == metric(1));
  }

  TEST_CASE("journal: the last lines are tried again until the disk takes them") {
    Folder folder;
    {
      auto disk = std::make_unique<FullDisk>(10);
      int asked = 0;
      Journal journal(folder.path, [&] {
        if (++asked == 4) disk.reset();
        return true;
      });
      journal.append("metrics.jsonl", metric_line(1));
    }
    CHECK(folder.text("metrics.jsonl") == metric(1));
  }

  TEST_CASE("journal: a page that could not be written is written later, and marks wait for it") {
    Folder folder;
    folder.write("generation", "1\n");
    Journal journal(folder.path);
    {
      FullDisk full(0);
      journal.replace("generation", "2\n");
      journal.mark(1);
      CHECK(!journal.flush());
      CHECK(folder.text("generation") == "1\n");  // not empty: it was renamed before it was whole
      CHECK(journal.marked() == 0);
    }
    CHECK(journal.flush());
    CHECK(folder.text("generation") == "2\n");
    CHECK(journal.marked() == 1);
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
  }

  TEST_CASE("journal: when_written() says whether the lines before it are in the file") {
    const auto told = [](const Folder& folder, std::function<bool()> may_write) {
      std::promise<std::pair<bool, std::string>> answer;
      auto result = answer.get_future();
      Journal journal(folder.path, std::move(may_write), 100);
      journal.append("events.jsonl", {{"kind", "command"}});
      journal.when_written([&](bool written) {
        const auto text = read_text(folder.path + "/events.jsonl");
        answer.set_value({written, text.ok() ? *text : ""});
      });
      return result.get();
    };
    using Told = std::pair<bool, std::string>;
    Folder folder;
    CHECK(told(folder, nullptr) == Told{true, "{\"kind\":\"command\"}\n"});
    Folder deposed;
    CHECK(told(deposed, [] { return false; }) == Told{false, ""});
    Folder gone;
    std::filesystem::remove_all(gone.path);
    CHECK(told(gone, nullptr) == Told{false, ""});
  }

  TEST_CASE("journal: when_written() reports a dropped line once, even if there is room again") {
    Folder folder;
    std::promise<void> answers;
    Journal journal(folder.path, [hangs = answers.get_future().share()] {
      hangs.wait();
      return true;
    });
    for (int i = 0; i < 200'001; ++i) journal.append("events.jsonl", {});  // two queues full
    answers.set_value();
    CHECK(journal.flush());
    std::promise<bool> first, second;
    journal.when_written([&](bool written) { first.set_value(written); });
    CHECK(!first.get_future().get());
    journal.when_written([&](bool written) { second.set_value(written); });
    CHECK(second.get_future().get());
  }
}
