#include "app/launch/manifest.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <ucp/api/ucp_version.h>

#include <caf/config.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "actors/supervisor/journal.hpp"
#include "app/launch/begin_from.hpp"
#include "app/launch/data_facts.hpp"
#include "app/launch/moved_run.hpp"
#include "app/launch/prepare_tasks.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/base/process.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/feed/run_data.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kStartsMax = 100;  // entries kept

/// The value of the first line "key : value" of a file in /proc; "unknown" if there is no such
/// line.
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
          {"ucx", fmt::format("{}.{}", UCP_API_MAJOR, UCP_API_MINOR)},
          {"libtorch", SIMPLESCALE_TORCH},
          {"nccl", SIMPLESCALE_NCCL},
          {"compiler", __VERSION__}};
}

/// bad_data: a file of the configuration has other contents than at the previous start.
Status unchanged(const json& before, const json& now, const std::string& key,
                 const std::string& remedy) {
  const bool known = before.contains("bytes");
  if (known ? same_contents(before, now) : before.value("name", json()) == now["name"]) return {};
  return Status(Code::bad_data, path_of_text(now["name"].get<std::string>()) + " (" + key +
                                    ") has changed since this run began; restore it, or " + remedy);
}

std::string manifest_path(const RunFolder& run) {
  return run.control() + "/manifest.json";
}

json read_starts(const RunFolder& run) {
  return json_of(read_text(manifest_path(run)));
}

/// Null: none is recorded.
json last_start(const json& document) {
  const json& starts = member_of(document, "starts");
  return starts.is_array() && !starts.empty() ? starts.back() : json();
}

/// Facts of the files that this start reads: {"data", "tasks", "tokenizer"}. document: what the
/// manifest records. Errors as check_same_inputs().
Result<json> inputs_of(const json& document, const RunFolder& run, const Config& config,
                       const DataFiles& files,
                       const std::function<bool(const std::string&)>& trained) {
  const json before = last_start(document);
  json was_data = member_of(before, "data"), was_tokenizer = member_of(before, "tokenizer");
  const json was_tasks = member_of(before, "tasks");
  // Without a record (the file was removed) places are all that is known.
  SS_ASSIGN(const std::optional<Config> was, recorded_config(run));
  if (was && !was_data.is_object()) was_data = data_places(*was);
  if (was && !was_tokenizer.is_object() && !was->tokenizer.path.empty())
    was_tokenizer = {{"name", path_as_text(tokenizer_file(*was))}};
  json inputs = {{"data", data_facts(config, files, was_data)}};
  SS_RETURN_IF_ERROR(same_data(was_data, inputs["data"], trained));
  if (!config.train.tasks.empty()) {
    inputs["tasks"] =
        uses_kept_tasks(run, config) ? was_tasks : file_facts(config.train.tasks, was_tasks);
    // Scores before and after could not be compared.
    if (was_tasks.is_object() && inputs["tasks"].is_object() &&
        was_tasks.value("name", json()) == inputs["tasks"]["name"])
      SS_RETURN_IF_ERROR(unchanged(was_tasks, inputs["tasks"], "train.tasks",
                                   "name the new file with --train.tasks=OTHER_FILE"));
    if (inputs["tasks"].is_null()) inputs.erase("tasks");
  }
  if (!config.tokenizer.path.empty()) {
    inputs["tokenizer"] = file_facts(tokenizer_file(config), was_tokenizer);
    if (was_tokenizer.is_object())
      SS_RETURN_IF_ERROR(unchanged(was_tokenizer, inputs["tokenizer"], "tokenizer.path",
                                   "start a new run with --run=FOLDER"));
  }
  return inputs;
}

}  // namespace

std::string recorded_parent(const RunFolder& run) {
  const json document = read_starts(run);
  const json::json_pointer identity("/starts/0/from/identity");
  const bool known = document.is_object() && document.contains(identity);
  return known && document[identity].is_string() ? document[identity].get<std::string>() : "";
}

std::string program_facts() {
  const json all = libraries();
  return fmt::format("simplescale {} {}, UCX {}, CAF {}, libtorch {}", SIMPLESCALE_VERSION,
                     SIMPLESCALE_COMMIT, all["ucx"].get<std::string>(),
                     all["caf"].get<std::string>(), SIMPLESCALE_TORCH);
}

std::optional<Signature> recorded_signature(const RunFolder& run) {
  return signature_in(member_of(last_start(read_starts(run)), "signature"));
}

std::vector<ConfigChange> recorded_changes(const RunFolder& run) {
  std::vector<ConfigChange> changes;
  const json start = last_start(read_starts(run));
  for (const json& change : member_of(start, "changes"))
    if (change.is_array() && change.size() == 2 && change[0].is_string() && change[1].is_string())
      changes.push_back({change[0], change[1]});
  return changes;
}

Status check_same_inputs(const RunFolder& run, const Config& config, const DataFiles& files,
                         const std::function<bool(const std::string&)>& trained) {
  return inputs_of(read_starts(run), run, config, files, trained).status();
}

Status record_start(const RunFolder& run, const Config& config, const DataFiles& files,
                    uint64_t step, const Signature& signature,
                    const std::vector<ConfigChange>& changes,
                    const std::function<bool(const std::string&)>& trained) {
  json document = read_starts(run);
  SS_ASSIGN(const json inputs, inputs_of(document, run, config, files, trained));
  if (!member_of(document, "starts").is_array()) document = {{"starts", json::array()}};
  json& starts = document["starts"];
  if (!starts.empty() && starts.back().contains("signature"))
    starts.back()["signature"].erase("fields");  // those of the newest start say all
  starts.push_back({{"time", wall_time_s()},
                    {"program", {{"version", SIMPLESCALE_VERSION}, {"commit", SIMPLESCALE_COMMIT}}},
                    {"libraries", libraries()},
                    {"host", host()},
                    {"signature", json_of(signature)}});
  starts.back().update(inputs);
  if (!config.run.from.empty()) {
    starts.back()["from"] = {{"path", path_as_text(config.run.from)},
                             {"with_optimizer", config.run.with_optimizer},
                             {"step", step}};
    if (starts.size() == 1)  // later, another parent may be there
      starts.back()["from"]["identity"] = identity_of_parent(config.run.from);
  }
  if (config.run.from.empty() && starts.size() == 1 && step > 0 &&
      !config.checkpoint.upload.empty())
    starts.back()["from"] = {// the folder was lost: earlier steps have no records here
                             {"path", config.checkpoint.upload},
                             {"with_optimizer", true},
                             {"step", step}};
  for (const ConfigChange& change : changes)
    starts.back()["changes"].push_back({change.key, change.reason});
  if (starts.size() > kStartsMax) starts.erase(starts.begin() + 1);  // keeps the first one
  return write_file_atomic(manifest_path(run), json_text(document, 1) + "\n");
}

}  // namespace simplescale
