#include "runtime/run/notice.hpp"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "runtime/base/json_members.hpp"

namespace simplescale {

namespace {

using nlohmann::json;

constexpr uint64_t kFullBytes = 64 << 10;  // with less free space, a disk counts as full

/// What is wrong with the file system of the folder, or "".
std::string disk_trouble(const std::string& folder) {
  struct statvfs about {};
  if (statvfs(folder.c_str(), &about) != 0 || about.f_blocks == 0) return "";
  const uint64_t free = uint64_t{about.f_bavail} * about.f_frsize;
  if (free < kFullBytes) return "its disk is full (" + std::to_string(free) + " bytes are free)";
  if (about.f_files > 0 && about.f_favail == 0) return "its disk has no room for another file";
  if ((about.f_flag & ST_RDONLY) != 0) return "its disk is mounted read-only";
  return "";
}

}  // namespace

int64_t status_age_s(const RunFolder& run) {
  struct stat file {};
  if (stat(run.status().c_str(), &file) != 0) return -1;
  return std::max<int64_t>(0, time(nullptr) - file.st_mtime);
}

std::string notice_text(const std::string& run, int64_t age_s, const std::string& disk,
                        const json& status) {
  const std::string unwritten = text_of(status, "unwritten");
  std::string text;
  if (age_s > kStatusStaleS || !unwritten.empty()) {
    text = age_s > kStatusStaleS ? "the records in " + run + " are " + std::to_string(age_s) +
                                       " s old, and what is shown may be, too"
                                 : "the run's newest records are not on the disk";
    text += !unwritten.empty() ? ": the supervisor cannot write " + unwritten
            : disk.empty() ? ": the supervisor has not written them since (logs/supervisor-*.log)"
                           : "";
    if (!disk.empty()) text += ": " + disk;
    text += "; no checkpoint is published until they are written";
  }
  const json& failed = member_of(status, "checkpoint_failed");
  if (failed.is_object())
    text += std::string(text.empty() ? "" : ". ") + "step " +
            std::to_string(whole_of(failed, "step")) +
            " could not be saved: " + text_of(failed, "reason");
  return text;
}

std::string notice_of(const RunFolder& run, const json& status) {
  return notice_text(run.path, status_age_s(run), disk_trouble(run.path), status);
}

}  // namespace simplescale
