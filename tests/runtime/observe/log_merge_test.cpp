#include "runtime/observe/log_merge.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/process.hpp"
#include "runtime/base/regex.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

std::string line(int ms, const std::string& text) {
  char stamp[64];
  std::snprintf(stamp, sizeof stamp, "2026-11-21T06:48:%02d.%03d", ms / 1000, ms % 1000);
  return std::string(stamp) + " " + text + "\n";
}

struct Folder : test::TempFolder {
  void add(const std::string& file, const std::string& text) const {
    std::ofstream(*this / file, std::ios::app) << text;
  }
  /// Rotates as the agent does: copies the file, then truncates it.
  void rotate(const std::string& file) const {
    fs::copy_file(*this / file, *this / (file + ".1"), fs::copy_options::overwrite_existing);
    fs::resize_file(*this / file, 0);
  }
};

TEST_CASE("logs: the level of a line, and which levels are worse") {
  CHECK(level_of(line(1, "n1.0 warning disk is full")) == "warning");
  CHECK(level_of(line(1, "n1.0 error")) == "error");
  CHECK(level_of("Segmentation fault\n") == "");
  CHECK(level_of(line(1, "n1.0")) == "");
  CHECK(severity_of("debug") < severity_of("info"));
  CHECK(severity_of("") == severity_of("info"));
  CHECK(severity_of("info") < severity_of("warning"));
  CHECK(severity_of("warning") < severity_of("error"));
  CHECK(severity_of("critical") == severity_of("error"));
}

std::string merged(LogMerger& merger, bool more) {
  std::string text;
  merger.read(more, [&](const std::string&, const LogRecord& record) {
    text += record.text;
    return true;
  });
  return text;
}

}  // namespace

TEST_SUITE_BEGIN("log_merge");

TEST_CASE("logs: a stamp is an ISO date and time with milliseconds at the beginning of a line") {
  CHECK(stamp_of("2026-11-21T06:48:27.123 n0 info x") == "2026-11-21T06:48:27.123");
  CHECK(stamp_of("2026-11-21 06:48:27.123 n0 info x") == "");
  CHECK(stamp_of(" 2026-11-21T06:48:27.123") == "");
  CHECK(stamp_of("2026-11-21T06:48:27.12") == "");
  CHECK(stamp_of("") == "");
}

TEST_CASE("logs: records of all files are ordered by stamp, with their lines without a stamp") {
  Folder folder;
  folder.add("n0.log", line(1, "a") + line(5, "trace:") + "  at x\n  at y\n" + line(9, "c"));
  folder.add("n0.1.log", line(2, "d") + line(5, "e") + line(6, "f"));
  folder.add("notes.txt", line(3, "not a log"));
  LogMerger merger(folder.path, "");
  CHECK(merged(merger, false) == line(1, "a") + line(2, "d") + line(5, "trace:") +
                                     "  at x\n  at y\n" + line(5, "e") + line(6, "f") +
                                     line(9, "c"));
  CHECK(merged(merger, false) == "");
}

TEST_CASE("logs: a clock that was set back does not change the order within a file") {
  Folder folder;
  folder.add("n0.log", line(5, "a") + line(1, "b") + line(7, "c"));
  folder.add("n1.log", line(3, "d") + line(6, "e"));
  LogMerger merger(folder.path, "");
  CHECK(merged(merger, false) ==
        line(3, "d") + line(5, "a") + line(1, "b") + line(6, "e") + line(7, "c"));
}

TEST_CASE("logs: following returns new whole lines, also of new and of rotated files") {
  Folder folder;
  folder.add("n0.log", line(1, "a") + "2026-11-21T06:48:00.002 ha");
  LogMerger merger(folder.path, "");
  CHECK(merged(merger, true) == line(1, "a"));
  folder.add("n0.log", "lf\n");
  folder.add("n0.0.log", line(3, "new"));
  CHECK(merged(merger, true) == line(2, "half") + line(3, "new"));
  folder.add("n0.log", line(4, "before it is rotated"));
  folder.rotate("n0.log");
  folder.add("n0.log", line(5, "and after"));
  CHECK(merged(merger, true) == line(4, "before it is rotated") + line(5, "and after"));
  folder.add("n0.log", "the rest of it\n");
  merger.read(true, [&](const std::string& name, const LogRecord& record) {
    CHECK(name == "n0");
    CHECK(record.continued);
    CHECK(record.text == "the rest of it\n");
    return true;
  });
  LogMerger later(folder.path, "n0");
  CHECK(merged(later, false) == line(1, "a") + line(2, "half") + line(3, "new") +
                                    line(4, "before it is rotated") + line(5, "and after") +
                                    "the rest of it\n");
}

TEST_CASE("logs: following a file whose beginning is moved away returns each line exactly once") {
  Folder folder;
  const std::string first = line(1, "a") + line(2, "b"), half = first.substr(0, first.size() - 5);
  // As log_scanner.hpp does: the older file gets the beginning, the file keeps the rest.
  folder.add("n0.log.1", half);
  folder.add("n0.log", first.substr(half.size()));
  LogMerger later(folder.path, "n0");
  CHECK(merged(later, false) == first);
  // The beginning is moved away while a reader has the file open.
  folder.add("n2.log", first);
  LogMerger merger(folder.path, "n2");
  CHECK(merged(merger, true) == first);
  folder.add("n2.log.1", half);
  fs::resize_file(folder / "n2.log", 0);
  folder.add("n2.log", first.substr(half.size()));
  CHECK(merged(merger, true) == "");
  folder.add("n2.log", line(3, "c"));
  CHECK(merged(merger, true) == line(3, "c"));
}

TEST_CASE("logs: an end without a newline is a line, and a very long line is split") {
  Folder folder;
  folder.add("n0.log", line(1, "a") + "no end");
  LogMerger merger(folder.path, "");
  CHECK(merged(merger, false) == line(1, "a") + "no end\n");
  folder.add("n1.log", std::string(1 << 20, 'x'));
  CHECK(merged(merger, true).size() > (1 << 19));
}

TEST_CASE(
    "logs: a node's name selects its agent, trainers and supervisor, a trainer's only its own") {
  CHECK(log_selected("n1.log", ""));
  CHECK(log_selected("n1.log", "n1"));
  CHECK(log_selected("n1.0.log", "n1"));
  CHECK(log_selected("supervisor-n1.log", "n1"));
  CHECK(log_selected("supervisor-n1.log", "supervisor"));
  CHECK(log_selected("slurm-12.out", ""));
  CHECK_FALSE(log_selected("n10.log", "n1"));
  CHECK_FALSE(log_selected("n1.0.log", "n1.1"));
  CHECK_FALSE(log_selected("n1.log", "n1.0"));
  CHECK_FALSE(log_selected("n1.log.1", "n1"));
}

TEST_CASE("regex: matches as grep -E does, and reports what is wrong with a pattern") {
  auto regex = must(Regex::compile("step [0-9]+: (a|b)$"));
  CHECK(regex->matches("x step 12: b"));
  CHECK_FALSE(regex->matches("x step 12: bc"));
  CHECK(Regex::compile("(").status().code() == Code::usage);
}

TEST_SUITE_END();
