#include "runtime/run/rendezvous.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>

#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/run/run_key.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kFirstStage = "here";
constexpr int64_t kReportMissingMs = 3'000, kLeaveTimeoutMs = 5'000;

/// Creates a folder. Of all tasks that try, exactly one gets true.
Result<bool> create_exclusively(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) == 0) return true;
  if (errno == EEXIST) return false;
  return system_error("cannot create", folder, errno);
}

bool poll_until(int64_t timeout_ms, int64_t poll_ms, const std::function<bool()>& done) {
  const auto deadline = Clock::now() + milliseconds(timeout_ms);
  while (!done()) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(poll_ms));
  }
  return true;
}

}  // namespace

Rendezvous::Rendezvous(std::string folder, int task, int tasks, int64_t timeout_ms)
    : folder_{std::move(folder)},
      task_(task),
      tasks_(tasks),
      timeout_ms_(timeout_ms),
      poll_ms_(std::clamp<int64_t>(2 * int64_t{tasks}, 20, 2'000)) {}

Result<Rendezvous> Rendezvous::join(const std::string& folder, int task, int tasks,
                                    int64_t timeout_ms) {
  Rendezvous rendezvous(folder, task, tasks, timeout_ms);
  SS_RETURN_IF_ERROR(create_exclusively(folder).status());
  SS_RETURN_IF_ERROR(check_own(folder));  // covers everything in it
  SS_RETURN_IF_ERROR(make_control(rendezvous.folder_));
  SS_RETURN_IF_ERROR(make_first_run_key(rendezvous.folder_));
  return rendezvous;
}

std::string Rendezvous::path(const std::string& stage, int task) const {
  return folder_.path + "/" + stage + "/" + std::to_string(task);
}

Status Rendezvous::publish(const std::string& stage, const nlohmann::json& document) const {
  std::error_code error;
  fs::create_directories(folder_.path + "/" + stage, error);
  if (error)
    return Status(Code::io, "cannot create " + folder_.path + "/" + stage + ": " + error.message());
  return write_file_atomic(path(stage, task_), json_text(document));
}

std::set<int> Rendezvous::tasks_in(const std::string& stage) const {
  std::set<int> tasks;
  std::error_code error;
  for (fs::directory_iterator entry(folder_.path + "/" + stage, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int task = -1;
    const auto [last, wrong] = std::from_chars(name.data(), name.data() + name.size(), task);
    if (wrong == std::errc() && last == name.data() + name.size() && task >= 0 && task < tasks_)
      tasks.insert(task);
  }
  return tasks;
}

std::set<int> Rendezvous::wait(const std::string& stage,
                               const std::function<void(const std::set<int>&)>& missing,
                               const std::function<bool()>& enough) const {
  std::set<int> all;
  for (int task = 0; stage == kFirstStage && task < tasks_; ++task) all.insert(task);
  const auto begin = Clock::now();
  bool reported = !missing;
  std::set<int> there;
  poll_until(timeout_ms_, poll_ms_, [&] {
    if (stage != kFirstStage) all = tasks_in(kFirstStage);
    there = tasks_in(stage);
    if (std::ranges::includes(there, all) || (enough && enough())) return true;
    if (!reported && Clock::now() - begin > milliseconds(kReportMissingMs)) {
      std::set<int> late;
      std::ranges::set_difference(all, there, std::inserter(late, late.end()));
      missing(late);
      reported = true;
    }
    return false;
  });
  return there;
}

nlohmann::json Rendezvous::read(const std::string& stage, int task) const {
  return json_of(read_text(path(stage, task)));
}

bool Rendezvous::claim_conclusion() const {
  const auto alone = create_exclusively(folder_.path + "/claimed");
  return alone.ok() && *alone;
}

Status Rendezvous::publish_conclusion(const nlohmann::json& document) const {
  return write_file_atomic(folder_.path + "/conclusion", json_text(document));
}

Result<nlohmann::json> Rendezvous::wait_conclusion() const {
  const std::string file = folder_.path + "/conclusion";
  std::error_code error;
  if (!poll_until(timeout_ms_, poll_ms_, [&] { return fs::exists(file, error); }))
    return Status(Code::deadline, "the task that claimed the conclusion in " + folder_.path +
                                      " has not written it");
  SS_ASSIGN(const std::string text, read_text(file));
  auto document = parse_json(text);
  if (!document.is_object()) return Status(Code::bad_data, file + " is damaged");
  return document;
}

void Rendezvous::leave(bool concluded, const std::set<int>& others) const {
  std::error_code error;
  fs::remove(path(kFirstStage, task_), error);
  if (!concluded) return;
  poll_until(kLeaveTimeoutMs, poll_ms_, [&] {
    const std::set<int> here = tasks_in(kFirstStage);
    return std::ranges::none_of(others, [&](int task) { return here.contains(task); });
  });
  fs::remove_all(folder_.path, error);
}

}  // namespace simplescale
