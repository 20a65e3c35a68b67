#include "tools/prepare/token_piece.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using test::contents;
namespace fs = std::filesystem;

namespace {

constexpr int kTokenBytes = 2;
constexpr uint64_t kKeepBytes = 100;
constexpr uint64_t kRecords = 40;

/// The record of this number in the piece that all writers make.
TokenRecord record(uint64_t number) {
  TokenRecord made{.begins_document = number % 3 == 0};
  for (uint64_t i = 0; i <= number % 7; ++i) made.ids.push_back(static_cast<int32_t>(number + i));
  return made;
}
const PieceFacts kFacts{.documents = 14, .text_bytes = 500, .made_from = {1, 2}};

void write(PieceWriter& out, uint64_t begin, uint64_t end) {
  for (; begin < end; ++begin) REQUIRE(out.write(record(begin)).ok());
}

/// A folder with the piece as one process makes it, and the same piece as it is made by several.
struct Fixture {
  Fixture() {
    PieceWriter out(expected, kTokenBytes, kKeepBytes);
    write(out, 0, kRecords);
    REQUIRE(out.finish(kFacts).ok());
  }
  size_t files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()));
  }
  test::TempFolder folder;
  const std::string expected = folder.path + "/expected.tokens", piece = folder.path + "/a.tokens";
};

/// Without the facts: those of a piece that was synced on the way have no hash of the records.
std::string records_of(const std::string& piece) {
  return contents(piece).substr(sizeof(PieceFacts));
}

}  // namespace

TEST_SUITE("prepare") {
  TEST_CASE("prepare: PREPARE-5, a process without the lock of a piece shares no file of it") {
    // It went on after ten minutes. The holder of the lock then took its file for one that a dead
    // process had left, and both wrote that file.
    for (const bool alone_first : {true, false}) {
      CAPTURE(alone_first);
      const Fixture f;
      PieceWriter alone(f.piece, kTokenBytes, std::nullopt);
      write(alone, 0, 30);
      PieceWriter holder(f.piece, kTokenBytes, kKeepBytes);
      const auto there = must(holder.resume());
      CHECK(*there == 0);
      write(holder, *there, 20);
      write(alone, 30, 35);
      write(holder, 20, kRecords);
      if (!alone_first) CHECK(holder.finish(kFacts).ok());
      write(alone, 35, kRecords);
      CHECK(alone.finish(kFacts).ok());
      CHECK(records_of(f.piece) == records_of(f.expected));
      if (alone_first) CHECK(holder.finish(kFacts).ok());
      CHECK(records_of(f.piece) == records_of(f.expected));
      CHECK(f.files() == 2);
    }
  }

  TEST_CASE("prepare: a process without the lock of a piece keeps nothing that is not finished") {
    const Fixture f;
    {
      PieceWriter alone(f.piece, kTokenBytes, std::nullopt);
      write(alone, 0, kRecords);
      CHECK(f.files() == 2);
      fs::create_directory(f.piece);  // so that the piece cannot get its name
      CHECK(alone.finish(kFacts).code() == Code::io);
    }
    fs::remove(f.piece);
    CHECK(f.files() == 1);
  }
}
