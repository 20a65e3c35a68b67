// Marks of the journal that are given while it writes.
#include <doctest/doctest.h>

#include <future>

#include "actors/supervisor/journal.hpp"
#include "tests/actors/supervisor/records_folder.hpp"

using namespace simplescale;

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
}
