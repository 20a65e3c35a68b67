// What a disk that fails or lags behind leaves at the end of the records.
#include <doctest/doctest.h>

#include <string>

#include "actors/supervisor/records_end.hpp"
#include "tests/actors/supervisor/records_folder.hpp"

using namespace simplescale;

TEST_SUITE("job records") {
  TEST_CASE("records: the part that a failed append has written is found, wherever it ends") {
    const std::string before = "{\"step\":1}\n",
                      text = "{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n";
    for (size_t written = 0; written <= text.size(); ++written)
      for (size_t there = written; there <= text.size(); ++there) {
        test::RecordsFolder folder;
        folder.write("metrics.jsonl", before + text.substr(0, there));
        const auto found = bytes_appended(folder.path + "/metrics.jsonl", text, written);
        REQUIRE(found.ok());
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
