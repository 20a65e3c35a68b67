#include "runtime/observe/log_rules.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "runtime/base/process.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

namespace {

const std::string good =
    "[[rule]]\nname = \"a\"\ncontains = [\"x\", \"y\"]\npattern = 'x[0-9]+$|y'\n"
    "severity = \"error\"\ncause = \"root\"\n";

std::string error_of(const std::string& text) {
  auto rules = LogRules::parse(text, "my.toml");
  return rules.ok() ? "" : rules.status().message();
}

}  // namespace

TEST_SUITE("log_rules") {
  TEST_CASE("log rules: each shipped rule is the first one that matches its own example") {
    auto rules = must(LogRules::load(""));
    std::set<std::string> names;
    for (const LogRule& rule : rules->all()) {
      CAPTURE(rule.name);
      CHECK_MESSAGE(names.insert(rule.name).second, "a name twice");
      CHECK_FALSE(rule.example.empty());
      CHECK_FALSE(rule.hint.empty());
      const LogRule* match = rules->match(rule.example);
      REQUIRE(match);
      CHECK(match->name == rule.name);
    }
    for (const char* wanted :
         {"cuda_out_of_memory", "xid", "nccl", "cuda_ecc", "memory_ecc", "out_of_memory_killer",
          "out_of_disk", "stale_file_handle", "segmentation_fault", "bus_error", "slurm_cancelled"})
      CHECK(names.contains(wanted));
  }

  TEST_CASE("log rules: ordinary lines match no rule") {
    auto rules = must(LogRules::load(""));
    for (const char* line : {"", "2026-11-21T06:48:27.123 n0 info n0/p1 becomes n0.1",
                             "loss 4.1 at step 12", "NCCL INFO Channel 00/02 : 0 1 2 3",
                             "usb 1-1: new device", "Bootstrap : Using eth0:10.0.0.7<0>"})
      CHECK_MESSAGE(!rules->match(line), line);
  }

  TEST_CASE("log rules: a kernel line makes a node be examined only if the pattern is anchored") {
    const auto examines = [](const std::string& pattern) {
      const auto rules =
          must(LogRules::parse("[[rule]]\nname = 'x'\nseverity = 'error'\ncause = 'root'\n"
                               "action = 'diagnose'\ncontains = ['GPU']\npattern = '" +
                                   pattern + "'\n",
                               "f.toml"));
      CHECK(rules->match("NVRM: GPU lost"));
      return rules->match("NVRM: GPU lost", true) != nullptr;
    };
    for (const char* anchored :
         {"^NVRM: GPU", "^(NVRM|nvidia): GPU", "^NVRM: ([A-Z]+|x) lost", "^NVRM[]|:]+ GPU",
          "^NVRM[^]|] GPU", "^NVRM.( GPU|\\|)", "^[^[:space:]|(]+ GPU"})
      CHECK_MESSAGE(examines(anchored), anchored);
    for (const char* anywhere : {"GPU", "^x|GPU", "^(a|b)|GPU lost", "(^NVRM: GPU)", "^[(]|GPU",
                                 "^x)|GPU", "^[^[:space:](]x|GPU"})
      CHECK_MESSAGE(!examines(anywhere), anywhere);
  }

  TEST_CASE("log rules: the name of a process or file in a kernel line fakes no hardware error") {
    auto rules = must(LogRules::load(""));
    for (const std::string line :
         {"EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0)",
          "EDAC MC1: 2 UE on DIMM_A1", "mce: [Hardware Error]: Uncorrected error, CPU 3",
          "[Hardware Error]: Uncorrected, software containable error.",
          "{1}[Hardware Error]: event severity: fatal",
          "mce: Uncorrected hardware memory error in user-access at 3f2c1a80",
          "Memory failure: 0x3f2c1: Sending SIGBUS to simplescale-com:4411",
          "pcieport 0000:3a:02.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
          "EDAC MC0: 1 UE Multi-bit ECC on unknown memory (node:0 card:0 module:1)",
          "NVRM: Xid (GPU 3): 79, reported by NVML", "NVRM: Xid (PCI:0000:0f:00.0): 48, pid=1",
          "NVRM: Xid (PCI:00000008:0f:00): 94, pid='<unknown>', Contained",
          "NVRM: Xid (PCI:0000:0f:00): 79, pid=2412, GPU has fallen off the bus."}) {
      const LogRule* rule = rules->match(line, true);
      REQUIRE_MESSAGE(rule, line);
      CHECK_MESSAGE(rule->action == "diagnose", line);
    }
    // What a user chooses: the name of a process (15 characters), and of a file that it executes.
    for (const std::string name :
         {"EDAC MC0: 1 UE ", "EDAC M: 1 UE on", "EDAC a UE b", "Hardware Error]", "NVRM: Xid (): 7",
          "NVRM: Xid (PCI:", "NVRM: Xid (GPU ", "Memory failure:", "[Hardware Error",
          "EDAC MC0: 1 UE", "a 0000:3a:02.0:", "a 0000:3a:02.0", "Uncorrected err", "UE memory",
          "{1}[Hardware Er", "mce: Uncorrecte", "GPU is lost"})
      for (const std::string file :
           {"uncorrectable ECC error", "Memory failure: 0x1", "EDAC MC0: 1 UE x on ",
            "mce: [Hardware Error]: fatal", "NVRM: Xid (PCI:0): 79, ", "GPU is lost",
            "[Hardware Error]: fatal", "NCCL WARN Cuda failure", "x): 48, y", "0x1: x",
            "): 79, x on y", "]: fatal", ": AER: Uncorrected x"})
        for (const std::string& line :
             {name + "[4411]: segfault at 10 ip 00007f2b4c1d2a30 sp 00007ffd1c2e5b70 error 4 in " +
                  file + "[7f2b4c000000+1000]",
              "traps: " + name + "[771] trap invalid opcode ip:5581e0a7 sp:7ffc33 in " + file,
              "Out of memory: Killed process 9712 (" + name + ") total-vm:31458132kB",
              "NVRM: Xid (PCI:0000:c1:00): 31, pid=8841, name=" + name + ", MMU Fault " + file,
              name + ": page allocation failure: order:4, mode:0x0,nodemask=(null),cpuset=" + file,
              name + " invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER), order=0 " + file,
              name + " (4411): deprecated file " + file, name + "/4411: " + file,
              "systemd[1]: " + name + ": " + file}) {
          const LogRule* rule = rules->match(line, true);
          CHECK_MESSAGE((!rule || rule->action != "diagnose"), line);
        }
  }

  TEST_CASE("log rules: a line must contain one of the texts and match the pattern") {
    auto rules = must(LogRules::parse(good, "my.toml"));
    CHECK(rules->match("ax12"));
    CHECK(rules->match("y"));
    CHECK_FALSE(rules->match("ax12b"));
    CHECK_FALSE(rules->match("12"));
    CHECK(rules->match("y" + std::string(1 << 20, 'z')));
    CHECK_FALSE(rules->match(std::string(1 << 20, 'z') + "y"));
  }

  TEST_CASE("log rules: the user's rules come before the shipped ones") {
    const test::TempFolder folder;
    const auto rules = must(LogRules::load(
        folder.write("rules",
                     "[[rule]]\nname = \"mine\"\ncontains = [\"CUDA out of memory\"]\n"
                     "severity = \"info\"\ncause = \"consequence\"\n")));
    CHECK(rules->match("CUDA out of memory.")->name == "mine");
    CHECK(rules->match("x: Stale file handle")->name == "stale_file_handle");
    CHECK(LogRules::load("/nowhere.toml").status().code() == Code::bad_config);
  }

  TEST_CASE("log rules: errors name file, line and rule") {
    CHECK(error_of(good).empty());
    auto with = [](const std::string& from, const std::string& to) {
      std::string text = good;
      return text.replace(text.find(from), from.size(), to);
    };
    CHECK(error_of(with("\"error\"", "\"bad\"")).find("my.toml:1: rule 'a': severity") == 0);
    CHECK(error_of(with("\"root\"", "7")).find("cause must be") != std::string::npos);
    CHECK(error_of(with("[\"x\", \"y\"]", "[]")).find("contains") != std::string::npos);
    CHECK(error_of(with("[\"x\", \"y\"]", "[\"\"]")).find("contains") != std::string::npos);
    CHECK(error_of(with("x[0-9]+$|y", "(")).find("regular expression") != std::string::npos);
    CHECK(error_of(with("cause", "caus")).find("unknown key 'caus'") != std::string::npos);
    CHECK(error_of(with("name = \"a\"", "")).find("has no name") != std::string::npos);
    CHECK(error_of("x = [").find("my.toml:1") == 0);
    CHECK_FALSE(error_of("rule = 3").empty());
    CHECK_FALSE(error_of("other = 3\n" + good).empty());
  }
}
