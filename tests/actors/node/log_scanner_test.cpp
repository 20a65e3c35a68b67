#include "actors/node/log_scanner.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/process.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

struct Scan {
  const test::TempFolder temporary;
  const fs::path folder = temporary.path;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<LogFinding> found;
  std::string batch;
  std::unique_ptr<LogScanner> scanner;

  void start(uint64_t file_bytes_max = 1 << 20, const std::string& kernel_log = "") {
    LogScannerOptions options;
    options.folder = folder;
    options.node = "n1";
    options.batch = batch;
    options.rules = load();
    options.file_bytes_max = file_bytes_max;
    options.kernel_log = kernel_log;
    options.scan_interval = std::chrono::milliseconds(1);
    options.found = [this](LogFinding finding) {
      std::lock_guard lock(mutex);
      found.push_back(std::move(finding));
      changed.notify_all();
    };
    scanner = std::make_unique<LogScanner>(std::move(options));
  }
  static std::shared_ptr<LogRules> load() {
    return std::make_shared<LogRules>(must(LogRules::load("")).take());
  }
  void add(const std::string& file, const std::string& text) const {
    std::ofstream(folder / file, std::ios::app) << text;
  }
  /// Waits for at least `count` findings and returns all.
  std::vector<LogFinding> wait(size_t count) {
    std::unique_lock lock(mutex);
    REQUIRE(
        changed.wait_for(lock, std::chrono::seconds(30), [&] { return found.size() >= count; }));
    return found;
  }
};

}  // namespace

TEST_SUITE("log_scanner") {
  TEST_CASE("log scanner: a line that matches a rule is reported with its file and line number") {
    Scan scan;
    scan.add("n1.0.log", "Bus error before it began\n");
    scan.start();
    scan.add("n10.log", "another node's Bus error\n");
    scan.add("n1.p2.log", "fine\nNo space left ");
    scan.add("n1.p2.log", "on device\n");
    auto found = scan.wait(1);
    CHECK(found[0].rule == "out_of_disk");
    CHECK(found[0].source == "n1.p2");
    CHECK(found[0].file == "n1.p2.log");
    CHECK(found[0].line == 2);
    CHECK(found[0].text == "No space left on device");
    CHECK(found[0].root);
    scan.add("n1.p2.log", "No space left on device\n");  // the same rule again: not reported
    scan.add("n1.0.log", "Segmentation fault\n");
    found = scan.wait(2);
    CHECK(found.size() == 2);
    CHECK(found[1].rule == "segmentation_fault");
    CHECK(found[1].line == 0);  // unknown: the lines from before the start are not counted
  }

  TEST_CASE("log scanner: of this program's own lines, only a trainer's errors are matched") {
    Scan scan;
    scan.start();
    const std::string stamp = "2026-11-21T06:48:27.123 ";
    scan.add("n1.log", stamp + "n1 error n1.0 has ended: killed by signal 7 (Bus error)\n");
    scan.add("supervisor-n1.log", "Bus error\n");
    scan.add("n1.1.log", stamp + "n1.1 warning generation 3 ended: n0.0: Bus error\n" + stamp +
                             "n1.1 error cannot write x: No space left on device\n");
    auto found = scan.wait(1);
    CHECK(found[0].rule == "out_of_disk");
    scan.add("n1.log", "Bus error\n");
    found = scan.wait(2);
    CHECK(found[1].source == "n1");
    CHECK(found.size() == 2);
  }

  TEST_CASE("log scanner: in Slurm's file, lines of Slurm are matched, this program's are not") {
    Scan scan;
    scan.batch = "slurm-12.out";
    scan.start();
    scan.add("slurm-7.out", "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0\n");
    scan.add("slurm-12.out",
             "incident 1   abort: trainer n0.0 Bus error (3 ms)\n"
             "simplescale: n0: ended early; n0 was killed by signal 7 (Bus error)\n"
             "2026-11-21T06:48:27.123 requeue error scontrol failed: No space left on device\n"
             "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0\n");
    const auto found = scan.wait(1);
    CHECK(found[0].rule == "out_of_memory_killer");
    CHECK(found[0].source == "n1");
    CHECK(found[0].file == "slurm-12.out");
    CHECK(found[0].line == 4);
    CHECK(found.size() == 1);
  }

  TEST_CASE("log scanner: a long file is rotated without loss") {
    Scan scan;
    scan.start(500);
    std::string text;
    for (int i = 0; i < 100; ++i) text += "line " + std::to_string(i) + "\n";
    scan.add("n1.0.log", text + "Bus error\n");
    scan.wait(1);
    // Rotation follows the scan that reported the first finding; the next one is of a later scan.
    scan.add("n1.1.log", "Segmentation fault\n");
    scan.wait(2);
    scan.scanner.reset();
    CHECK(test::contents(scan.folder / "n1.0.log.1") == text + "Bus error\n");
    CHECK(fs::file_size(scan.folder / "n1.0.log") == 0);
  }

  TEST_CASE("log scanner: no byte written during a rotation is lost") {
    Scan scan;
    const auto file = scan.folder / "n1.0.log";
    constexpr int count = 150'000;  // 1.6 MB: one rotation
    std::string text;
    for (int i = 0; i < count; ++i) text += std::to_string(1'000'000'000 + i) + "\n";
    scan.start(1 << 20);
    const int out = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    REQUIRE(out >= 0);
    for (size_t at = 0; at < text.size(); at += 11 * 50) {
      const std::string lines = text.substr(at, 11 * 50);
      REQUIRE(write(out, lines.data(), lines.size()) == static_cast<ssize_t>(lines.size()));
      scan.scanner->scan_now();
    }
    close(out);
    scan.add("n1.1.log", "Segmentation fault\n");
    scan.wait(1);
    scan.scanner.reset();
    const std::string older = test::contents(file.string() + ".1"), newer = test::contents(file);
    CHECK(older.size() > 0);
    if (fs::file_size(file.string() + ".1") % 4096 != 0)
      MESSAGE("SKIPPED: this file system cannot cut the beginning of a file");
    else
      CHECK((older + newer == text));
  }

  TEST_CASE("log scanner: of more bytes than a scan may read, only the newest are matched") {
    Scan scan;
    scan.start(64 << 20);
    scan.add("whole", "Bus error\n" + std::string(8 << 20, '\n') + "Segmentation fault\n");
    fs::rename(scan.folder / "whole", scan.folder / "n1.0.log");
    const auto found = scan.wait(1);
    CHECK(found[0].rule == "segmentation_fault");
    CHECK(found[0].line == 0);
  }

  TEST_CASE("log scanner: an Xid from NVML is matched only if the kernel's log is not read") {
    for (const bool readable : {false, true}) {
      Scan scan;
      scan.start(1 << 20, readable ? "/dev/null" : "");
      scan.scanner->add_kernel_line("NVRM: Xid (GPU 3): 79, reported by NVML");
      scan.scanner->add_kernel_line("nothing to mind");
      if (!readable) {
        const auto found = scan.wait(1);
        CHECK(found[0].rule == "xid_fatal");
        CHECK(found[0].file == "kernel");
        CHECK(found[0].action == "diagnose");
      }
      scan.add("n1.0.log", "No space left on device\n");  // found in the same scan or later
      const auto found = scan.wait(readable ? 1 : 2);
      CHECK(found.back().rule == "out_of_disk");
    }
  }

  TEST_CASE("log scanner: what a program writes to the kernel's log leads to no diagnosis") {
    Scan scan;
    int kmsg[2];  // O_DIRECT: one read() returns one record, as of /dev/kmsg
    REQUIRE(pipe2(kmsg, O_DIRECT | O_CLOEXEC) == 0);
    scan.start(1 << 20, "/proc/self/fd/" + std::to_string(kmsg[0]));
    const auto add = [&](int priority, const std::string& text) {
      const std::string record = std::to_string(priority) + ",1,2,-;" + text + "\n KEY=value\n";
      REQUIRE(write(kmsg[1], record.data(), record.size()) == static_cast<ssize_t>(record.size()));
    };
    const std::string xid = "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.";
    for (const int facility : {1, 3, 23}) add(facility << 3 | 4, xid);
    add(4, "Out of memory: Killed process 9712 (python3) total-vm:3kB");  // read last
    const auto found = scan.wait(1);
    CHECK(found[0].file == "kernel");
    CHECK(found[0].text.starts_with("Out of memory"));
    for (const int fd : kmsg) close(fd);
  }

  TEST_CASE("log scanner: process_in finds the pid in a line of the kernel's log") {
    CHECK(process_in("Out of memory: Killed process 9712 (simplescale-com) total-vm:3kB") == 9712);
    CHECK(process_in("simplescale-com[4411]: segfault at 10 ip 00007f2b") == 4411);
    CHECK(process_in("oom-kill:constraint=CONSTRAINT_NONE,task=python,pid=31,uid=0") == 31);
    CHECK(process_in("NVRM: Xid (PCI:0000:0f:00): 79, pid=2412, GPU has fallen") == 2412);
    CHECK_FALSE(process_in("EDAC MC0: 1 UE memory read error on CPU"));
    CHECK_FALSE(process_in("[ 12] nothing"));
    CHECK_FALSE(process_in(""));
  }
}
