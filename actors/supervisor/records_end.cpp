#include "actors/supervisor/records_end.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/run/run_state.hpp"

namespace simplescale {

using nlohmann::json;

namespace {

// The end of a file is read in windows, which grow until they contain what the caller needs.
constexpr uint64_t kWindow = 256 << 10, kWindowMax = 64 << 20;

// An NFS client may write a whole page where only a part of it changed. So the gap is longer than
// one write by some pages.
constexpr size_t kGap = kRecordsWriteMax + (16 << 10);

constexpr const char* kRecords[] = {"metrics.jsonl", "events.jsonl", "ledger.jsonl",
                                    "health.jsonl"};

uint64_t number(const json& line, const char* key) {
  return unsigned_of(line, key).value_or(0);
}

/// The whole lines at the end of a file.
struct Tail {
  std::vector<json> lines;  // in the order of the file; lines that are not JSON are dropped
  bool all = true;          // `lines` has all lines of the file
};

/// Returns the last `window` bytes of a file, and their position. "" if there is no file.
Result<std::pair<std::string, uint64_t>> read_end(const std::string& path, uint64_t window) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return std::pair(std::string(), uint64_t{0});
  if (fd < 0) return system_error("cannot read", path, errno);
  const off_t size = lseek(fd, 0, SEEK_END);
  const uint64_t bytes = size < 0 ? 0 : static_cast<uint64_t>(size);
  std::string text(std::min(bytes, window), '\0');
  size_t done = 0;
  ssize_t got = size < 0 ? -1 : 1;
  while (got > 0 && done < text.size()) {
    got = pread(fd, text.data() + done, text.size() - done,
                static_cast<off_t>(bytes - text.size() + done));
    if (got > 0) done += static_cast<size_t>(got);
  }
  const int error = errno;
  close(fd);
  if (got < 0) return system_error("cannot read", path, error);
  if (done < text.size()) return Status(Code::io, "cannot read the end of " + path);
  const uint64_t begin = bytes - text.size();
  return std::pair(std::move(text), begin);
}

Result<Tail> read_tail(const std::string& path, uint64_t window) {
  SS_ASSIGN(const auto end, read_end(path, window));
  const auto& [text, begin] = end;
  Tail tail{{}, begin == 0};
  // A window that begins after the file's begin may begin within a line: skip to the next line.
  size_t from = begin == 0 ? 0 : std::min(text.find('\n'), text.size() - 1) + 1;
  for (size_t to; (to = text.find('\n', from)) != std::string::npos; from = to + 1) {
    json line = parse_json(std::string_view(text).substr(from, to - from));
    if (line.is_object()) tail.lines.push_back(std::move(line));
  }
  return tail;
}

/// Writes `text` at `begin`. LEAD-1: asks may_write after the caller has read the file's end. If
/// this process still leads then, no successor has written behind that end.
Status overwrite(const std::string& path, const std::string& text, uint64_t begin,
                 const MayWrite& may_write) {
  if (may_write) {
    SS_ASSIGN(const bool may, may_write());
    if (!may) return Status(Code::aborted, "another supervisor leads");
  }
  const int fd = open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return system_error("cannot write", path, errno);
  const ssize_t put = pwrite(fd, text.data(), text.size(), static_cast<off_t>(begin));
  const int error = put < 0 ? errno : ENOSPC;
  const bool closed = close(fd) == 0;
  if (put == static_cast<ssize_t>(text.size()) && closed) return {};
  return system_error("cannot write spaces at the end of", path, error);
}

/// Overwrites half a line at the end of the file with spaces. If another process did the same and
/// has appended since, its lines stay.
Status blank_half_line(const std::string& path, const MayWrite& may_write) {
  SS_ASSIGN(const auto end, read_end(path, kWindowMax));
  const auto& [text, begin] = end;
  const size_t whole = text.rfind('\n') + 1;  // npos + 1 = 0: no whole line
  const std::string blank(text.size() - whole, ' ');
  if (text.compare(whole, std::string::npos, blank) == 0) return {};
  return overwrite(path, blank, begin + whole, may_write);
}

using Position = RecordedSteps::Position;

Position position(const json& line) {
  return {number(line, "generation"), number(line, "step")};
}

uint64_t samples_of(const json& line) {
  uint64_t count = 0;
  if (const json& samples = member_of(line, "samples"); samples.is_array())
    for (const json& run : samples)
      if (run.is_array() && run.size() == 2 && run[1].is_number_unsigned())
        count += run[1].get<uint64_t>();
  return count;
}

/// True if the ledger has all samples of the step.
bool whole(const RecordedSteps& steps, const Position& at, const BatchSchedule& batch) {
  const auto found = steps.ledger.find(at);
  if (found == steps.ledger.end()) return false;
  uint64_t samples = 0;
  for (const auto& [trainer, count] : found->second) samples += count;
  return samples == batch.size(at.second);
}

/// Returns the newest step that both files have. If there is none, a full disk may have lost the
/// lines of one file. Only `said` proves that a user has removed that file.
std::optional<Position> newest_whole(const RecordedSteps& steps, const BatchSchedule& batch,
                                     uint64_t said) {
  for (auto at = steps.metrics.rbegin(); at != steps.metrics.rend(); ++at)
    if (whole(steps, *at, batch)) return *at;
  if (!steps.all) return std::nullopt;
  for (auto at = steps.metrics.rbegin(); at != steps.metrics.rend(); ++at)
    if (at->second <= said) return *at;
  for (auto at = steps.ledger.rbegin(); at != steps.ledger.rend(); ++at)
    if (at->first.second <= said && whole(steps, at->first, batch)) return at->first;
  return std::nullopt;
}

Result<RecordedSteps> read_steps(const std::string& folder, bool ledger, uint64_t window) {
  SS_ASSIGN(const Tail metrics, read_tail(folder + "/metrics.jsonl", window));
  RecordedSteps steps;
  steps.all = metrics.all;
  for (const json& line : metrics.lines) {
    if (position(line).second == 0) continue;
    if (const double time = real_of(line, "time"); time > steps.newest_time)
      steps.newest_time = time;
    steps.metrics.insert(position(line));
    if (json members = validation_of(line); !members.empty())
      steps.validations[position(line).second] = std::move(members);
  }
  if (!ledger) return steps;
  SS_ASSIGN(const Tail samples, read_tail(folder + "/ledger.jsonl", window));
  steps.all = steps.all && samples.all;
  for (const json& line : samples.lines)
    if (position(line).second > 0)
      steps.ledger[position(line)][step_line(line).trainer] = samples_of(line);
  return steps;
}

/// Reads the newest incident and generation in events.jsonl, and whether the newest start has
/// recorded its end.
Status read_events(const std::string& path, RecordsEnd& end) {
  for (uint64_t window = kWindow;; window *= 16) {
    SS_ASSIGN(const Tail events, read_tail(path, window));
    bool ended = events.lines.empty();
    for (const json& line : events.lines) {
      end.incidents = std::max(end.incidents, number(line, "incident"));
      end.newest_generation = std::max(end.newest_generation, number(line, "generation"));
      const std::string kind = text_of(line, "kind");
      if (kind == "started" || ends_run(kind)) ended = ends_run(kind);
      if (const double time = real_of(line, "time"); time > end.newest_time) end.newest_time = time;
    }
    end.unended = !ended;
    if (end.incidents > 0 || events.all || window >= kWindowMax) return {};
  }
}

}  // namespace

StepLine step_line(const json& line) {
  return {number(line, "generation"), number(line, "step"), text_of(line, "trainer")};
}

json validation_of(const json& line) {
  json members = json::object();
  for (const char* name :
       {"val_loss", "val_losses", "val_loss_at", "val_loss_by_position", "tasks"})
    if (const auto found = line.find(name); found != line.end()) members[name] = *found;
  return members;
}

RecordsEnd end_of_steps(RecordedSteps steps, bool ledger, const BatchSchedule& batch,
                        uint64_t said) {
  std::optional<Position> last = newest_whole(steps, batch, said);
  if (!ledger && !steps.metrics.empty()) last = *steps.metrics.rbegin();
  const Position at = last.value_or(Position());
  RecordsEnd end;
  end.any = last.has_value();
  end.newest_time = steps.newest_time;
  std::tie(end.generation, end.step) = at;
  end.validations = std::move(steps.validations);
  if (!steps.metrics.empty()) end.newest_generation = steps.metrics.rbegin()->first;
  if (!steps.ledger.empty())
    end.newest_generation = std::max(end.newest_generation, steps.ledger.rbegin()->first.first);
  for (const Position& p : steps.metrics)
    if (p > at) end.beyond.insert({p.first, p.second, ""});
  for (const auto& [p, trainers] : steps.ledger)
    if (p > at)
      for (const auto& [trainer, samples] : trainers)
        end.beyond.insert({p.first, p.second, trainer});
  return end;
}

bool hosts_can_append(const std::string& folder) {
  struct statfs about {};
  return statfs(folder.c_str(), &about) != 0 || about.f_type != NFS_SUPER_MAGIC;
}

Status leave_gap(const std::string& folder, const MayWrite& may_write) {
  for (const char* file : kRecords) {
    const std::string path = folder + "/" + file;
    SS_ASSIGN(const auto end, read_end(path, 1));
    if (!end.first.empty())
      SS_RETURN_IF_ERROR(overwrite(path, std::string(kGap, ' '), end.second + 1, may_write));
  }
  return {};
}

Result<size_t> bytes_appended(const std::string& path, std::string_view text, size_t written,
                              const MayWrite& may_write) {
  const size_t line = written == 0 ? 0 : text.rfind('\n', written - 1) + 1;  // npos + 1 = 0
  SS_ASSIGN(const auto end, read_end(path, text.size() - line));
  const std::string_view tail = end.first;
  for (size_t there = line + tail.size(); there > line; --there)
    if (there >= written && tail.ends_with(text.substr(line, there - line))) return there;
  SS_RETURN_IF_ERROR(blank_half_line(path, may_write));
  return line;
}

Result<RecordsEnd> end_of_records(const std::string& folder, bool ledger,
                                  const BatchSchedule& batch, const MayWrite& may_write,
                                  uint64_t said) {
  for (const char* file : kRecords)
    SS_RETURN_IF_ERROR(blank_half_line(folder + "/" + file, may_write));
  RecordsEnd found;
  SS_RETURN_IF_ERROR(read_events(folder + "/events.jsonl", found));
  for (uint64_t window = kWindow;; window *= 16) {
    SS_ASSIGN(RecordedSteps steps, read_steps(folder, ledger, window));
    const bool all = steps.all;
    RecordsEnd end = end_of_steps(std::move(steps), ledger, batch, said);
    if (!end.any && !all && window < kWindowMax) continue;
    end.incidents = found.incidents;
    end.newest_generation = std::max(found.newest_generation, end.newest_generation);
    end.unended = found.unended;
    end.newest_time = std::max(found.newest_time, end.newest_time);
    return end;
  }
}

}  // namespace simplescale
