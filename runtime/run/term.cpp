#include "runtime/run/term.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "runtime/base/create_file.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/run/agent_lock.hpp"
#include "runtime/run/run_key.hpp"
#include "runtime/run/run_state.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

constexpr const char* kPreviousEnd = "previous-end.json";

/// The names in a folder that begin with `prefix`.
Result<std::vector<std::string>> names(const std::string& folder, const std::string& prefix) {
  DIR* open = opendir(folder.c_str());
  if (!open) return system_error("cannot read", folder, errno);
  std::vector<std::string> found;
  while (const dirent* entry = readdir(open))
    if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0)
      found.push_back(entry->d_name);
  closedir(open);
  return found;
}

/// Removes the files of `folder` whose names begin with `prefix`.
Status remove_files(const std::string& folder, const std::string& prefix) {
  SS_ASSIGN(const auto found, names(folder, prefix));
  for (const std::string& name : found) unlink((folder + "/" + name).c_str());
  return {};
}

/// Modification time of a file in ns; 0: the file does not exist. Opens the file so that an NFS
/// client asks its server.
Result<int64_t> modified_ns(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return int64_t{0};
  if (fd < 0) return system_error("cannot read", path, errno);
  struct stat status {};
  const int error = fstat(fd, &status) == 0 ? 0 : errno;
  close(fd);
  if (error != 0) return system_error("cannot read", path, error);
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

/// The number after `prefix`; 0 if other text follows it, as in the temporary file
/// "term-x-3.new-aB3xYz".
uint64_t number_after(const std::string& name, const std::string& prefix) {
  char* end = nullptr;
  const uint64_t number = std::strtoull(name.c_str() + prefix.size(), &end, 10);
  return *end == 0 ? number : 0;
}

}  // namespace

TermFiles::TermFiles(RunFolder run, std::string instance)
    : run_(std::move(run)), instance_(std::move(instance)), prefix_("term-" + instance_ + "-") {}

std::string TermFiles::path(uint64_t number) const {
  return run_.control() + "/" + prefix_ + std::to_string(number);
}

Status TermFiles::begin() const {
  // LOCK-1: no agent can start until this returns. A living agent has steps to save.
  SS_ASSIGN(const AgentLock no_agents, AgentLock::exclude(run_));
  SS_RETURN_IF_ERROR(make_run_key(run_));
  const bool ended = end_of(run_, instance_of(run_)).has_value();
  SS_RETURN_IF_ERROR(write_file_atomic(run_.instance(), instance_ + "\n"));
  for (const char* kind : {"term-", "epoch-", "state-", "vote-", "room-", "name-"})
    SS_RETURN_IF_ERROR(remove_files(run_.control(), kind));
  const std::string before = run_.control() + "/" + kPreviousEnd;
  unlink(before.c_str());
  if (!ended || rename(run_.end().c_str(), before.c_str()) != 0) unlink(run_.end().c_str());
  return {};
}

bool TermFiles::previous_ended() const {
  return access((run_.control() + "/" + kPreviousEnd).c_str(), F_OK) == 0;
}

Result<bool> TermFiles::current() const {
  const auto text = read_text(run_.instance());
  // The file exists as long as the run: without it, the folder is currently unavailable.
  if (!text.ok()) return Status(Code::io, text.status().message());
  return *text == instance_ + "\n";
}

Result<bool> TermFiles::leads(uint64_t number) const {
  SS_ASSIGN(const Term term, newest());
  if (term.number != number) return false;
  return current();
}

Result<Term> TermFiles::newest() const {
  SS_ASSIGN(const auto found, names(run_.control(), prefix_));
  Term term;
  for (const std::string& name : found)
    term.number = std::max(term.number, number_after(name, prefix_));
  if (term.number == 0) return term;
  const auto text = read_text(path(term.number));
  if (text.status().code() == Code::io) return text.status();
  const json page = text.ok() ? parse_json(*text) : json();
  if (!page.is_object()) return term;
  try {
    term.node = page.value("node", "");
    term.pid = page.value("pid", 0);
    term.address = page.value("address", "");
    term.generation = page.value("generation", uint64_t{0});
  } catch (const json::exception&) {  // a value of another type
  }
  return term;
}

std::string TermFiles::room_prefix(const std::string& node) const {
  return "room-" + instance_ + "-" + node + "-";
}

Status TermFiles::keep_room(const std::string& node, int32_t pid) const {
  SS_RETURN_IF_ERROR(remove_files(run_.control(), room_prefix(node)));
  return reserve_room(run_.control() + "/" + room_prefix(node) + std::to_string(pid));
}

Result<bool> TermFiles::claim(const Term& term) const {
  const json page = {{"term", term.number},
                     {"node", term.node},
                     {"pid", term.pid},
                     {"address", term.address},
                     {"generation", term.generation}};
  return create_file(path(term.number), page.dump(1) + "\n",
                     run_.control() + "/" + room_prefix(term.node) + std::to_string(term.pid));
}

Status TermFiles::touch(uint64_t number) const {
  if (utimensat(AT_FDCWD, path(number).c_str(), nullptr, 0) == 0) return {};
  return system_error("cannot touch", path(number), errno);
}

Result<int64_t> TermFiles::touched_ns(uint64_t number) const {
  return modified_ns(path(number));
}

Status TermFiles::resign(uint64_t number) const {
  const timespec never[2] = {};
  if (utimensat(AT_FDCWD, path(number).c_str(), never, 0) == 0) return {};
  return system_error("cannot touch", path(number), errno);
}

std::string TermFiles::vote_prefix(uint64_t number) const {
  return "vote-" + instance_ + "-" + std::to_string(number) + "-";
}

Status TermFiles::vote(uint64_t number, const std::string& node) const {
  const std::string file = run_.control() + "/" + vote_prefix(number) + node;
  const int fd = open_output(file, Output::keep);
  if (fd < 0) return output_error(file, errno, Code::io);
  const int touched = futimens(fd, nullptr);
  close(fd);
  return touched == 0 ? Status() : system_error("cannot touch", file, errno);
}

Status TermFiles::withdraw_vote(uint64_t number, const std::string& node) const {
  const std::string file = run_.control() + "/" + vote_prefix(number) + node;
  return unlink(file.c_str()) == 0 || errno == ENOENT ? Status()
                                                      : system_error("cannot remove", file, errno);
}

Result<std::map<std::string, int64_t>> TermFiles::votes(uint64_t number) const {
  const std::string prefix = vote_prefix(number);
  SS_ASSIGN(const auto found, names(run_.control(), prefix));
  std::map<std::string, int64_t> votes;
  for (const std::string& name : found)
    if (const auto touched = modified_ns(run_.control() + "/" + name); touched.ok() && *touched > 0)
      votes[name.substr(prefix.size())] = *touched;
  return votes;
}

// --- TermWatch ---

/// Shared by the TermWatch and its detached thread. `mutex` guards all fields except the thread's
/// own.
struct TermWatch::Shared {
  using Clock = std::chrono::steady_clock;
  static constexpr auto kTouchEvery = std::chrono::milliseconds(450);
  static constexpr auto kVoteTimeout = std::chrono::milliseconds(2'000);
  explicit Shared(TermFiles f) : files(std::move(f)) {}
  const TermFiles files;
  std::mutex mutex;
  std::condition_variable wake;
  std::function<void(const TermView&)> on_view;
  std::vector<std::function<void(const TermView&)>> requests;
  int64_t every_ms = 0;
  uint64_t leading = 0, voting = 0;
  std::string voter;
  bool stopping = false, changed = false;
  // Used by the thread only.
  uint64_t heartbeat_term = 0;
  int64_t heartbeat_ns = 0;
  Clock::time_point heartbeat_seen_at, touched_at;
  struct Vote {
    int64_t touched_ns = 0;
    Clock::time_point at;
  };
  std::map<std::string, Vote> votes;
  uint64_t vote_cast = 0;  // the term that this node's vote file is against; 0: none

  TermView read() {
    TermView view;
    const auto newest = files.newest();
    const auto current = files.current();
    if (!newest.ok() || !current.ok()) return view;
    const auto beat = files.touched_ns(newest->number);
    view.answered = beat.ok();
    if (!view.answered) return view;
    view.newest = *newest;
    view.current = *current;
    const auto now = Clock::now();
    if (*beat != heartbeat_ns || view.newest.number != heartbeat_term) heartbeat_seen_at = now;
    heartbeat_ns = *beat;
    heartbeat_term = view.newest.number;
    view.heartbeat_age_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - heartbeat_seen_at).count();
    view.resigned = view.newest.number > 0 && *beat == 0;
    return view;
  }

  /// The nodes whose votes have been touched within kVoteTimeout.
  std::set<std::string> votes_against(uint64_t number) {
    std::set<std::string> nodes;
    const auto found = files.votes(number);
    if (!found.ok()) return nodes;
    for (const auto& [node, touched_ns] : *found) {
      Vote& vote = votes[node];
      if (vote.touched_ns != touched_ns) vote = {touched_ns, Clock::now()};
      if (Clock::now() - vote.at < kVoteTimeout) nodes.insert(node);
    }
    return nodes;
  }

  /// Renews the heartbeat and the vote, twice a second.
  void touch(uint64_t leads, uint64_t votes_against, const std::string& node) {
    if (vote_cast != votes_against) {
      if (vote_cast > 0) (void)files.withdraw_vote(vote_cast, node).ok();
      vote_cast = votes_against;
    }
    if ((leads == 0 && votes_against == 0) || Clock::now() - touched_at < kTouchEvery) return;
    // A failure needs no report: the file is not touched, which others see.
    if (leads > 0) (void)files.touch(leads).ok();
    if (votes_against > 0) (void)files.vote(votes_against, node).ok();
    touched_at = Clock::now();
  }

  void run() {
    std::unique_lock lock(mutex);
    auto next = Clock::now();
    while (!stopping) {
      if (changed) next = Clock::now();
      changed = false;
      if (requests.empty() && Clock::now() < next) {
        wake.wait_until(lock, next);
        continue;
      }
      if (requests.empty() && every_ms == 0) {
        wake.wait(lock, [this] { return stopping || changed || !requests.empty(); });
        continue;
      }
      auto due = std::move(requests);
      requests.clear();
      const uint64_t mine = leading, against = voting;
      const std::string node = voter;
      lock.unlock();
      touch(mine, against, node);
      TermView view = read();
      for (auto& done : due) done(view);
      if (mine > 0) view.votes = votes_against(mine);
      lock.lock();
      next = Clock::now() + std::chrono::milliseconds(every_ms);
      // Called under the lock, so that it is not running when the destructor returns.
      if (!stopping && on_view) on_view(view);
    }
  }
};

TermWatch::TermWatch(TermFiles files, std::function<void(const TermView&)> on_view)
    : shared_(std::make_shared<Shared>(std::move(files))) {
  shared_->on_view = std::move(on_view);
  std::thread([shared = shared_] { shared->run(); }).detach();
}

TermWatch::~TermWatch() {
  std::lock_guard lock(shared_->mutex);
  shared_->stopping = true;
  shared_->on_view = nullptr;
  shared_->requests.clear();
  shared_->wake.notify_all();
}

void TermWatch::poll_every(int64_t ms) {
  std::lock_guard lock(shared_->mutex);
  if (shared_->every_ms == ms) return;
  shared_->every_ms = ms;
  shared_->changed = ms > 0;
  shared_->wake.notify_all();
}

void TermWatch::poll(std::function<void(const TermView&)> done) {
  std::lock_guard lock(shared_->mutex);
  shared_->requests.push_back(std::move(done));
  shared_->wake.notify_all();
}

void TermWatch::lead(uint64_t number) {
  std::lock_guard lock(shared_->mutex);
  shared_->leading = number;
}

void TermWatch::vote(uint64_t number, const std::string& node) {
  std::lock_guard lock(shared_->mutex);
  shared_->voting = number;
  if (number > 0) shared_->voter = node;
  if (number == 0)
    shared_->requests.push_back([](const TermView&) {});  // to remove the file at once
  shared_->wake.notify_all();
}

}  // namespace simplescale
