#include "tools/http/facts.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <regex>
#include <utility>
#include <vector>

#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/config/secrets.hpp"
#include "tools/http/lines.hpp"
#include "tools/http/page.hpp"

namespace simplescale {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr size_t kCheckpointsMax = 200, kLogsMax = 64;
// Of a report: lines of metrics.jsonl and of health.jsonl, bytes of events.jsonl and of each log.
constexpr size_t kMetricsMax = 2500, kHealthMax = 2500;
constexpr size_t kEventsBytes = 1 << 20, kLogBytes = 24 << 10;

uint64_t bytes_in(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error))
    if (const auto size = file.file_size(error); !error) bytes += size;
  return bytes;
}

/// Null until the checkpoint is complete: it has a manifest. A checkpoint may have thousands of
/// files, so its size is remembered.
json checkpoint_of(const fs::path& folder) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, time_t>, uint64_t> known;
  struct stat manifest {};
  if (stat((folder / "manifest.json").c_str(), &manifest) != 0) return nullptr;
  const std::lock_guard lock(mutex);
  if (known.size() > 2 * kCheckpointsMax) known.clear();
  const auto [size, added] = known.try_emplace({folder.string(), manifest.st_mtim.tv_sec}, 0);
  if (added) size->second = bytes_in(folder);
  return {{"step", std::strtoull(folder.filename().c_str() + 5, nullptr, 10)},
          {"time", manifest.st_mtim.tv_sec},
          {"bytes", size->second}};
}

json checkpoints_of(const std::string& folder) {
  static const std::regex name("step-[0-9]+");
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (std::regex_match(entry.path().filename().string(), name)) found.push_back(entry.path());
  std::ranges::sort(found);
  json list = json::array();
  for (size_t i = found.size() - std::min(found.size(), kCheckpointsMax); i < found.size(); ++i)
    if (json one = checkpoint_of(found[i]); !one.is_null()) list.push_back(std::move(one));
  return list;
}

json starts_of(const RunFolder& run) {
  json list = json::array();
  const json document = json_of(read_text(run.control() + "/manifest.json"));
  for (const json& start : member_of(document, "starts"))
    if (start.is_object())
      list.push_back({{"time", member_of(start, "time")},
                      {"version", member_of(member_of(start, "program"), "version")}});
  return list;
}

bool is_log_name(const std::string& name) {
  static const std::regex names("(supervisor-)?n[0-9]{1,9}([.][0-9]{1,9})?");
  return std::regex_match(name, names);
}

json logs_of(const RunFolder& run) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run.logs(), error))
    if (entry.path().extension() == ".log" && is_log_name(entry.path().stem()))
      names.push_back(entry.path().stem());
  std::ranges::sort(names, {}, [](const std::string& n) { return std::pair(n.size(), n); });
  return names;
}

/// The file's lines as a list of JSON values.
json records(const std::string& path, const LineRange& range) {
  const std::string text = shown_events(read_lines(path, range).text);
  json list = json::array();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    json line = parse_json(std::string_view(text).substr(begin, end - begin));
    if (line.is_object()) list.push_back(std::move(line));
    begin = end + 1;
  }
  return list;
}

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  for (size_t at = text.find(what); !what.empty() && at != std::string::npos;
       at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

}  // namespace

std::string run_facts(const RunFolder& run, const std::string& checkpoints) {
  return json_text({{"starts", starts_of(run)},
                    {"checkpoints", checkpoints_of(checkpoints)},
                    {"logs", logs_of(run)}});
}

std::string shown_config(const RunFolder& run) {
  const auto text = read_text(run.config());
  return text.ok() ? shown_toml(*text) : "";
}

std::string log_path(const RunFolder& run, const std::string& of) {
  if (!is_log_name(of)) return "";
  const std::string path = run.logs() + "/" + of + ".log";
  struct stat file {};
  return lstat(path.c_str(), &file) == 0 && S_ISREG(file.st_mode) ? path : "";
}

std::string without_key(const RunFolder& run, std::string text) {
  const auto key = read_text(run.key());
  if (!key.ok() || key->size() < 16) return text;
  std::string hex;
  for (const unsigned char byte : *key) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  replace_all(text, *key, "(the run's key)");
  replace_all(text, hex, "(the run's key)");
  return text;
}

std::string report_page(const RunFolder& run, const std::string& checkpoints,
                        const std::string& status) {
  json data = {{"status", parse_json(status)},
               {"metrics", records(run.metrics(), {.spread = kMetricsMax})},
               {"events", records(run.events(), {.last = kEventsBytes})},
               {"health", records(run.health(), {.spread = kHealthMax})},
               {"config", shown_config(run)},
               {"facts", parse_json(run_facts(run, checkpoints))},
               {"logs", json::object()}};
  for (const json& name : data["facts"]["logs"]) {
    if (data["logs"].size() >= kLogsMax) break;
    const std::string path = log_path(run, name);
    data["logs"][name.get<std::string>()] =
        without_key(run, read_lines(path, {.last = kLogBytes}).text);
  }
  std::string text = json_text(data);
  replace_all(text, "<", "\\u003c");  // so that no text ends the script element
  std::string page(page_html);
  const std::string before = "<script>\n\"use strict\";";
  const size_t at = page.find(before);
  page.insert(at, "<script type=\"application/json\" id=\"data\">" + text + "</script>\n");
  return page;
}

}  // namespace simplescale
