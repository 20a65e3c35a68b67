#include "app/launch/manifest.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <caf/config.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "actors/supervisor/journal.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/process.hpp"
#include "runtime/data/data_location.hpp"
#include "runtime/data/loss_mask.hpp"
#include "runtime/data/manifest.hpp"
#include "runtime/object_store/s3_url.hpp"
#include "transport/ucx/version.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kStartsMax = 100;                       // entries kept
constexpr uint64_t kHashBytesMax = uint64_t{256} << 20;  // larger files are not hashed

/// The value of the first line "key : value" of a file in /proc; "unknown" without such a line.
std::string fact(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "unknown";
}

json host() {
  utsname name{};
  uname(&name);
  return {{"name", name.nodename},
          {"kernel", name.release},
          {"machine", name.machine},
          {"cpu", fact("/proc/cpuinfo", "model name")},
          {"cores", usable_cores()},
          {"memory", fact("/proc/meminfo", "MemTotal")},
          {"nvidia_driver", fs::exists("/proc/driver/nvidia/version")
                                ? fact("/proc/driver/nvidia/version", "NVRM version")
                                : "none"}};
}

json libraries() {
  return {{"caf", fmt::format("{}.{}.{}", CAF_MAJOR_VERSION, CAF_MINOR_VERSION, CAF_PATCH_VERSION)},
          {"ucx", ucx::version()},
          {"libtorch", SIMPLESCALE_TORCH},
          {"nccl", SIMPLESCALE_NCCL},
          {"compiler", __VERSION__}};
}

json file_facts(const std::string& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  json facts = {{"name", path}, {"bytes", bytes}, {"xxh3_128", nullptr}};
  if (error || bytes > kHashBytesMax) return facts;
  if (const auto hash = hash_file(path); hash.ok()) facts["xxh3_128"] = *hash;
  return facts;
}

json record_facts(const FileRecord& record) {
  return {{"name", record.name}, {"bytes", record.bytes}, {"xxh3_128", record.hash}};
}

/// Of a source in a bucket: the etag of each object stands for its hash.
json bucket_facts(const std::string& source, const DataFiles& files) {
  const auto found = files.find(source);
  json facts = {{"path", found.ok() ? *found : source}, {"files", json::array()}};
  for (const DataFiles::Object& object : files.listed(facts["path"]))
    facts["files"].push_back({{"name", object.path},
                              {"bytes", object.bytes},
                              {"etag", object.etag},
                              {"xxh3_128", nullptr}});
  return facts;
}

/// Of data.source.
json source_facts(const Config& config, const DataFiles& data_files) {
  const std::string path = token_path(config);
  if (is_s3_url(path)) return bucket_facts(path, data_files);
  json facts = {{"path", path}, {"files", json::array()}};
  std::error_code error;
  if (const auto made = read_manifest(path); made.ok()) {
    facts["source"] = made->source;
    facts["source_xxh3_128"] = made->source_hash;
    facts["tokenizer_seed"] = made->seed;
    for (const FileRecord* record : made->files())
      if (!record->hash.empty()) facts["files"].push_back(record_facts(*record));
    return facts;
  }
  const bool folder = fs::is_directory(path, error);
  for (const std::string& file :
       folder ? DataFiles().token_files(path) : std::vector{token_file_of(path)}) {
    facts["files"].push_back(file_facts(file));
    const std::string mask = loss_mask_of(file);
    if (mask != file && fs::exists(mask, error)) facts["files"].push_back(file_facts(mask));
  }
  return facts;
}

/// Of data.source; with data.blend: of each source by its name.
json data(const Config& config, const DataFiles& files) {
  if (config.data.blend.empty()) return source_facts(config, files);
  json facts = json::object();
  for (const auto& [name, of] : sources_of(config)) facts["blend"][name] = source_facts(of, files);
  return facts;
}

/// The recorded files by their names.
std::map<std::string, json> files_of(const json& data) {
  std::map<std::string, json> files;
  if (data.is_object() && data.contains("files") && data["files"].is_array())
    for (const json& file : data["files"])
      if (file.is_object() && file.contains("name") && file["name"].is_string())
        files[file["name"]] = file;
  return files;
}

/// True for tokens and their loss masks.
bool makes_samples(const std::string& file) {
  return is_token_name(file) || file.ends_with(".mask") || file.ends_with(".idx");
}

/// Of one source. bad_data: a data file has another size or hash than at the previous start, or
/// token files were added or removed, so that the same sample would be other tokens.
Status same_source(const json& before, const json& now) {
  const auto was = files_of(before), is = files_of(now);
  const bool same_place =
      before.is_object() && now.contains("path") && before.value("path", json()) == now["path"];
  const auto failed = [](const std::string& name, const char* what) {
    return Status(Code::bad_data, name + " " + what +
                                      " since this run began; restore it, or start a new run with "
                                      "--run=FOLDER");
  };
  for (const auto& [name, file] : is)
    if (same_place && !was.empty() && !was.contains(name) && makes_samples(name))
      return failed(name, "was added");
  for (const auto& [name, file] : was) {
    const auto found = is.find(name);
    if (found == is.end() && same_place && makes_samples(name)) return failed(name, "is missing");
    if (found == is.end()) continue;
    const json hash = file.value("xxh3_128", json()), hash_now = found->second["xxh3_128"];
    const bool other_hash = hash.is_string() && hash_now.is_string() && hash != hash_now;
    if (file.value("bytes", json()) != found->second["bytes"] || other_hash ||
        file.value("etag", json()) != found->second.value("etag", json()))
      return failed(name, "has changed");
  }
  return {};
}

/// same_source() for data.source, or for each source of data.blend that was there before.
Status same_data(const json& before, const json& now) {
  const json::json_pointer blend("/blend");
  if (!before.is_object() || !before.contains(blend) || !now.contains(blend))
    return same_source(before, now);
  for (const auto& [name, facts] : now["blend"].items())
    if (before[blend].is_object() && before[blend].contains(name))
      SS_RETURN_IF_ERROR(same_source(before[blend][name], facts));
  return {};
}

/// bad_data: a file that the configuration names has changed since the previous start. before: of
/// the previous start; null without the key.
Status same_file(const json& before, const json& now, const std::string& key,
                 const std::string& remedy) {
  if (!before.is_object() || before.value("name", json()) != now["name"]) return {};
  for (const char* fact : {"bytes", "xxh3_128"})
    if (before.value(fact, json()) != now[fact])
      return Status(Code::bad_data, now["name"].get<std::string>() + " (" + key +
                                        ") has changed since this run began; restore it, or " +
                                        remedy);
  return {};
}

std::string manifest_path(const RunFolder& run) {
  return run.control() + "/manifest.json";
}

json read_starts(const RunFolder& run) {
  const auto text = read_text(manifest_path(run));
  return text.ok() ? parse_json(*text) : json();
}

}  // namespace

std::string program_facts() {
  const json all = libraries();
  return fmt::format("simplescale {} {}, UCX {}, CAF {}, libtorch {}", SIMPLESCALE_VERSION,
                     SIMPLESCALE_COMMIT, all["ucx"].get<std::string>(),
                     all["caf"].get<std::string>(), SIMPLESCALE_TORCH);
}

std::vector<ConfigChange> recorded_changes(const RunFolder& run) {
  const json document = read_starts(run);
  std::vector<ConfigChange> changes;
  if (!document.is_object() || !document.contains("starts")) return changes;
  const json& starts = document["starts"];
  if (!starts.is_array() || starts.empty() || !starts.back().is_object()) return changes;
  for (const json& change : starts.back().value("changes", json::array()))
    if (change.is_array() && change.size() == 2 && change[0].is_string() && change[1].is_string())
      changes.push_back({change[0], change[1]});
  return changes;
}

Status record_start(const RunFolder& run, const Config& config, const DataFiles& files,
                    uint64_t step, const std::vector<ConfigChange>& changes) {
  json document = read_starts(run);
  if (!document.is_object() || !document.contains("starts") || !document["starts"].is_array())
    document = {{"starts", json::array()}};
  json& starts = document["starts"];
  json facts = data(config, files), tasks, tokenizer;
  if (!config.train.tasks.empty()) tasks = file_facts(config.train.tasks);
  if (!config.tokenizer.path.empty()) tokenizer = file_facts(tokenizer_file(config));
  if (!starts.empty() && starts.back().is_object()) {
    const json& before = starts.back();
    if (before.contains("data")) SS_RETURN_IF_ERROR(same_data(before["data"], facts));
    if (!tasks.is_null())  // scores before and after could not be compared
      SS_RETURN_IF_ERROR(same_file(before.value("tasks", json()), tasks, "train.tasks",
                                   "name the new file with --train.tasks=OTHER_FILE"));
    if (!tokenizer.is_null())
      SS_RETURN_IF_ERROR(same_file(before.value("tokenizer", json()), tokenizer, "tokenizer.path",
                                   "start a new run with --run=FOLDER"));
  }
  starts.push_back({{"time", wall_time_s()},
                    {"program", {{"version", SIMPLESCALE_VERSION}, {"commit", SIMPLESCALE_COMMIT}}},
                    {"libraries", libraries()},
                    {"host", host()},
                    {"data", std::move(facts)}});
  if (!tasks.is_null()) starts.back()["tasks"] = std::move(tasks);
  if (!tokenizer.is_null()) starts.back()["tokenizer"] = std::move(tokenizer);
  if (!config.run.from.empty())
    starts.back()["from"] = {
        {"path", config.run.from}, {"with_optimizer", config.run.with_optimizer}, {"step", step}};
  else if (starts.size() == 1 && step > 0 && !config.checkpoint.upload.empty())
    starts.back()["from"] = {// the folder was lost: earlier steps have no records here
                             {"path", config.checkpoint.upload},
                             {"with_optimizer", true},
                             {"step", step}};
  for (const ConfigChange& change : changes)
    starts.back()["changes"].push_back({change.key, change.reason});
  if (starts.size() > kStartsMax) starts.erase(starts.begin() + 1);  // keeps the first
  return write_file_atomic(manifest_path(run), json_text(document, 1) + "\n");
}

}  // namespace simplescale
