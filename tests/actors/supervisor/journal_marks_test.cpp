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
      if (asked == 2) undoes->mark(6);
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
}
