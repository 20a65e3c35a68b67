// The place of a command among the commands that train one run on several hosts without a
// scheduler. Each command gets its rank and their number (--node-rank, --nnodes). They meet in the
// run's folder:
//
//   control/hosts              {"instance","nnodes","by"}: the newest start. Its commands share a
//                              lock on this file
//   control/hosts-<instance>/  where the commands of a start meet (rendezvous.hpp)
//     here/<rank>              what the command of a rank tells the other commands
//     rank-<rank>              locked by the command of the rank
//     leaving/<rank>           the command of the rank has been asked to end
//
//   LOCK-2  A command joins a start of the run only while another command of it lives and the start
//           has not ended; else it begins a new one. At most one command has a rank of a start.
//
// If a command dies, the kernel, or the file server, releases its locks. Blocks; one thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/run/rendezvous.hpp"

namespace simplescale {

/// What a command tells the other commands about its host.
struct HostFacts {
  std::string host;   // its name
  std::string scope;  // equal for commands that share the host's memory, CPUs and sockets
  int pid = 0;        // of the command
  std::vector<std::string> gpus;  // UUIDs of the GPUs that the command sees, in CUDA's order
  std::vector<std::string> own;   // those of `gpus` that only its trainers use; empty: unknown
  bool shares = false;            // its trainers share GPUs with those of other commands
};

class HostPlace {
 public:
  struct Options {
    int rank = 0, nnodes = 1;
    int64_t timeout_ms = 0;  // of each wait, but not while `ending`
    HostFacts facts;
    /// True if the start `instance` of the run has ended, so that no command may join it.
    std::function<bool(const std::string& instance)> ended;
    /// True if the start no longer waits for further commands.
    std::function<bool(const std::string& instance)> began;
    /// True if a command of an earlier start may still end its run, for example with an upload.
    std::function<bool()> ending;
    /// Called before a start is begun, while no other command of the run lives. Its error ends
    /// take().
    std::function<Status()> may_begin;
    std::function<void(const std::string& text)> say;  // called with the reason why take() waits
  };
  /// Joins the living start, or begins one. Waits until all its commands have told their facts, at
  /// most timeout_ms. The run folder must have a control/. bad_config: the start has another
  /// nnodes, or another command has the rank; unavailable: a command of an earlier start lives, and
  /// `ending` is false; errors of may_begin and Rendezvous.
  static Result<HostPlace> take(const RunFolder& run, Options options);
  HostPlace(HostPlace&& other) noexcept
      : options_(std::move(other.options_)),
        instance_(std::move(other.instance_)),
        rendezvous_(std::move(other.rendezvous_)),
        start_fd_(std::exchange(other.start_fd_, -1)),
        rank_fd_(std::exchange(other.rank_fd_, -1)) {}
  HostPlace& operator=(HostPlace&&) = delete;
  ~HostPlace();

  const std::string& instance() const { return instance_; }
  /// The facts that the commands of the start have told, by rank. A lost command counts, but not
  /// its decision about GPUs.
  std::map<int, HostFacts> told() const;
  /// Tells the other commands which GPUs only this command's trainers use; nothing: they share
  /// GPUs.
  Status tell_own(std::optional<std::vector<std::string>> gpus);
  /// Tells the other commands that this command was asked to end. Returns the ranks whose commands
  /// live and were not asked; all ranks if the folder fails. A file server shows a command of a
  /// lost host as living for a while.
  std::set<int> not_leaving() const;

 private:
  HostPlace(Options options, std::string instance, Rendezvous rendezvous, int start_fd)
      : options_(std::move(options)),
        instance_(std::move(instance)),
        rendezvous_(std::move(rendezvous)),
        start_fd_(start_fd) {}
  std::string rank_file(int rank) const;
  Status lock_rank(const RunFolder& run);
  Status tell();
  bool lives(int rank) const;

  Options options_;
  std::string instance_;
  Rendezvous rendezvous_;
  int start_fd_ = -1, rank_fd_ = -1;
};

}  // namespace simplescale
