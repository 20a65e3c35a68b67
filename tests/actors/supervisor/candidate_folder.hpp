// A run's folder on a real disk, and a process that claims terms in it.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "actors/supervisor/claim.hpp"
#include "runtime/base/files.hpp"
#include "tests/temp_folder.hpp"

namespace simplescale::test {

/// The candidate is on node n1. Its pauses take no time: `meanwhile` is called instead, with the
/// number of the pause, from 1. No supervisor answers, unless a test replaces candidate.supervisor_answers.
struct CandidateFolder {
  using Ms = std::chrono::milliseconds;

  explicit CandidateFolder(int64_t join_timeout_ms = 0) {
    candidate.join_timeout_ms = join_timeout_ms;
    std::filesystem::create_directories(run.control());
    REQUIRE(write_file_atomic(run.instance(), "a\n").ok());
    candidate.supervisor_answers = [](const std::string&) { return false; };
    candidate.pause = [this](Ms time) {
      pauses.push_back(time);
      if (meanwhile) meanwhile(pauses.size());
    };
  }

  /// A supervisor on node n0 claims the term and uses generations above `above`.
  void lead(uint64_t term, uint64_t above = 0) const {
    REQUIRE(*files.claim({term, "n0", 4711, "address of n0", above}));
    beat(term, 1'000);
  }
  /// The heartbeat of the term's supervisor, by an explicit time: the file system's clock has ticks.
  void beat(uint64_t term, int64_t time_s) const {
    set_time(run.control() + "/term-a-" + std::to_string(term), time_s);
  }
  void vote(uint64_t term, const std::string& node, int64_t time_s) const {
    REQUIRE(files.vote(term, node).ok());
    set_time(run.control() + "/vote-a-" + std::to_string(term) + "-" + node, time_s);
  }
  /// The supervisor of `term` leaves its state in the folder.
  void leave_state(uint64_t term, const SupervisorState& state) const {
    const std::vector<uint8_t> bytes = encode(state);
    REQUIRE(write_file_atomic(run.path + "/" + state_page("a", term),
                              std::string(bytes.begin(), bytes.end()))
                .ok());
  }
  /// From now on every call below control/ fails, as one by an NFS client whose server is away.
  void fail() const {
    std::filesystem::rename(run.control(), run.path + "/aside");
    std::filesystem::create_symlink(run.control(), run.control());
  }
  void work_again() const {
    std::filesystem::remove(run.control());
    std::filesystem::rename(run.path + "/aside", run.control());
  }
  /// From now on this file cannot be read.
  static void make_unreadable(const std::string& path) {
    std::filesystem::remove(path);
    std::filesystem::create_symlink(path, path);
  }
  static void set_time(const std::string& path, int64_t time_s) {
    const timespec both[2] = {{time_s, 0}, {time_s, 0}};
    REQUIRE(utimensat(AT_FDCWD, path.c_str(), both, 0) == 0);
  }

  TempFolder folder;
  RunFolder run{folder.path};
  TermFiles files{run, "a"};
  supervisor::Candidate candidate{.run = run,
                                  .instance = "a",
                                  .node = "n1",
                                  .address = "address of n1",
                                  .files = files,
                                  .read_retries = {0, Ms(0)}};
  std::vector<Ms> pauses;
  std::function<void(size_t number)> meanwhile;
};

/// A state of the supervisor of `term` after `sequence` decisions.
inline SupervisorState state_of(uint64_t term, uint64_t sequence, uint64_t generation) {
  SupervisorState state;
  state.job = job::make_state({1, 1, 1, 1, 1}, {"n0"});
  state.job.generation = generation;
  state.term = term;
  state.sequence = sequence;
  return state;
}

}  // namespace simplescale::test
