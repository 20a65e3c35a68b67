#include "runtime/run/host_place.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "runtime/base/json_text.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/process.hpp"

namespace simplescale {

namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{50};
constexpr int64_t kProbedMs = 1'000;  // a probe by lives() holds a rank's lock so long at most
constexpr int64_t kSayMs = 3'000;
constexpr size_t kStartBytesMax = 4096;

struct Start {
  std::string instance, by;
  int nnodes = 0;
};

Result<int> open_lock(const std::string& path) {
  const int fd = open_output(path, Output::keep);
  if (fd < 0) return output_error(path, errno, Code::io);
  return fd;
}

/// False: another process holds the lock.
Result<bool> lock(int fd, int operation, const std::string& path) {
  if (flock(fd, operation | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK || errno == EINTR) return false;
  return system_error("cannot lock", path, errno);
}

/// Returns an empty instance if the file is empty or damaged.
Start read_start(int fd) {
  std::string text(kStartBytesMax, '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  const json page = parse_json(text);
  try {
    if (page.is_object()) return {page.at("instance"), page.at("by"), page.at("nnodes")};
  } catch (const json::exception&) {  // a member is missing or has another type
  }
  return {};
}

/// Writes in place, because the file's inode is locked.
Status write_start(int fd, const Start& start, const std::string& path) {
  const std::string text =
      json_text({{"instance", start.instance}, {"by", start.by}, {"nnodes", start.nnodes}}) + "\n";
  if (ftruncate(fd, 0) == 0 &&
      pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
      fsync(fd) == 0)
    return {};
  return system_error("cannot write", path, errno);
}

/// LOCK-2: returns the start that this command belongs to. Sets fd, which from now on shares the
/// lock of the start's file.
Result<Start> join_start(const RunFolder& run, const HostPlace::Options& o, int& fd) {
  const std::string path = run.control() + "/hosts";
  const auto begin = Clock::now();
  for (bool said = false;;) {
    SS_ASSIGN(fd, open_lock(path));  // opened again, so that an NFS client asks its server
    SS_ASSIGN(const bool alone, lock(fd, LOCK_EX, path));
    if (alone) {
      SS_RETURN_IF_ERROR(o.may_begin());
      SS_RETURN_IF_ERROR(write_start(
          fd, {unique_id(), "n" + std::to_string(o.rank) + " on " + o.facts.host, o.nnodes}, path));
    }
    if (const Start seen = read_start(fd); !seen.instance.empty() && !o.ended(seen.instance)) {
      SS_ASSIGN(const bool shared, lock(fd, LOCK_SH, path));
      // While this command shares the lock, no command begins another start.
      if (shared && read_start(fd).instance == seen.instance) return seen;
    }
    close(std::exchange(fd, -1));
    const auto waited = Clock::now() - begin;
    if (waited > milliseconds(o.timeout_ms) && !o.ending())
      return Status(Code::unavailable, "an earlier start of " + run.path +
                                           " has ended, but a command of it still runs after " +
                                           std::to_string(o.timeout_ms / 1000) +
                                           " s: end it, or, if its host is lost, remove " + path);
    if (!said && waited > milliseconds(kSayMs)) {
      o.say("waits for the commands of an earlier start of " + run.path + " to end");
      said = true;
    }
    std::this_thread::sleep_for(kPoll);  // flock has no timeout
  }
}

/// What the user of a further host may have meant.
std::string or_join(const RunFolder& run) {
  return "; a further host joins the run while it trains by: simplescale train --join " + run.path;
}

json to_json(const HostFacts& facts) {
  return {{"host", facts.host}, {"scope", facts.scope}, {"pid", facts.pid},
          {"gpus", facts.gpus}, {"own", facts.own},     {"shares", facts.shares}};
}

/// Returns a host without a name if the document is damaged.
HostFacts facts_of(const json& document) {
  try {
    if (document.is_object())
      return {document.at("host"), document.at("scope"), document.at("pid"),
              document.at("gpus"), document.at("own"),   document.at("shares")};
  } catch (const json::exception&) {
  }
  return {};
}

}  // namespace

Result<HostPlace> HostPlace::take(const RunFolder& run, Options options) {
  int fd = -1;
  const auto start = join_start(run, options, fd);
  if (!start.ok()) {
    if (fd >= 0) close(fd);
    return start.status();
  }
  const std::string folder = run.control() + "/hosts-" + start->instance;
  auto rendezvous = Rendezvous::join(folder, options.rank, options.nnodes, options.timeout_ms);
  if (!rendezvous.ok()) {
    close(fd);
    return rendezvous.status();
  }
  HostPlace place(std::move(options), start->instance, rendezvous.take(), fd);
  if (start->nnodes != place.options_.nnodes)
    return Status(Code::bad_config, "--nnodes is " + std::to_string(place.options_.nnodes) +
                                        " here, but " + std::to_string(start->nnodes) + " at " +
                                        start->by + ", which began this start of " + run.path +
                                        ": give all hosts the same number" + or_join(run));
  SS_RETURN_IF_ERROR(place.lock_rank(run));
  SS_RETURN_IF_ERROR(place.tell());
  return place;
}

HostPlace::~HostPlace() {
  for (const int fd : {rank_fd_, start_fd_})
    if (fd >= 0) close(fd);
}

std::string HostPlace::rank_file(int rank) const {
  return rendezvous_.folder().path + "/rank-" + std::to_string(rank);
}

Status HostPlace::lock_rank(const RunFolder& run) {
  const int rank = options_.rank;
  const std::string path = rank_file(rank);
  SS_ASSIGN(rank_fd_, open_lock(path));
  const auto begin = Clock::now();
  for (bool said = false;;) {
    SS_ASSIGN(const bool locked, lock(rank_fd_, LOCK_EX, path));
    if (locked) return {};
    const HostFacts holder = facts_of(rendezvous_.read("here", rank));
    const std::string text = "another command has --node-rank=" + std::to_string(rank) +
                             ": process " + std::to_string(holder.pid) + " on " + holder.host;
    // A file server may hold the lock of a lost host for a while.
    const bool may_be_lost = holder.scope != options_.facts.scope;
    if (Clock::now() - begin > milliseconds(may_be_lost ? options_.timeout_ms : kProbedMs))
      return Status(Code::bad_config, text + ": give each host a rank of its own" + or_join(run));
    if (may_be_lost && !said && Clock::now() - begin > milliseconds(kProbedMs)) {
      options_.say(text + "; waiting for " + std::to_string(options_.timeout_ms / 1000) +
                   " s, in case it is lost");
      said = true;
    }
    std::this_thread::sleep_for(kPoll);  // flock has no timeout
  }
}

Status HostPlace::tell() {
  std::error_code error;  // of an earlier command with this rank
  std::filesystem::remove(rendezvous_.folder().path + "/leaving/" + std::to_string(options_.rank),
                          error);
  SS_RETURN_IF_ERROR(rendezvous_.publish("here", to_json(options_.facts)));
  rendezvous_.wait(
      "here",
      [this](const std::set<int>& late) {
        options_.say("still waiting for " + std::to_string(late.size()) + " of " +
                     std::to_string(options_.nnodes) +
                     " hosts, first for --node-rank=" + std::to_string(*late.begin()));
      },
      [this] { return options_.began(instance_); });
  return {};
}

std::map<int, HostFacts> HostPlace::told() const {
  std::map<int, HostFacts> all;
  for (const int rank : rendezvous_.tasks_in("here")) {
    HostFacts& facts = all[rank] = facts_of(rendezvous_.read("here", rank));
    if ((!facts.own.empty() || facts.shares) && !lives(rank)) {
      facts.own.clear();
      facts.shares = false;
    }
  }
  all[options_.rank] = options_.facts;
  return all;
}

Status HostPlace::tell_own(std::optional<std::vector<std::string>> gpus) {
  options_.facts.shares = !gpus;
  options_.facts.own = std::move(gpus).value_or(std::vector<std::string>());
  return rendezvous_.publish("here", to_json(options_.facts));
}

bool HostPlace::lives(int rank) const {
  const int fd = open(rank_file(rank).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = flock(fd, LOCK_SH | LOCK_NB) != 0;
  close(fd);
  return held;
}

std::set<int> HostPlace::not_leaving() const {
  const bool told = rendezvous_.publish("leaving", json::object()).ok();
  const std::set<int> leaving = rendezvous_.tasks_in("leaving");
  std::set<int> others;
  for (int rank = 0; rank < options_.nnodes; ++rank)
    if (!told || (!leaving.contains(rank) && lives(rank))) others.insert(rank);
  return others;
}

}  // namespace simplescale
