#include "app/launch/data_facts.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "app/terminal.hpp"
#include "runtime/base/bare_path.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/data/loss_mask.hpp"
#include "runtime/data/manifest.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/object_store/s3_url.hpp"

namespace simplescale {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kHashBytesMax = uint64_t{256} << 20;  // smaller files are hashed at each start
constexpr uint64_t kToldBytes = uint64_t{4} << 30;       // hashing more takes long

/// The recorded files of a source.
std::vector<json> files_of(const json& facts) {
  std::vector<json> files;
  for (const json& file : member_of(facts, "files"))
    if (member_of(file, "name").is_string()) files.push_back(file);
  return files;
}

json fact_of(const std::vector<json>& files, const std::string& name) {
  for (const json& file : files)
    if (file["name"] == path_as_text(name)) return file;
  return {};
}

json record_facts(const FileRecord& record) {
  return {{"name", record.name}, {"bytes", record.bytes}, {"xxh3_128", record.hash}};
}

/// The facts of a source in a bucket: the etag of each object replaces its hash.
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

/// The facts of data.source.
json source_facts(const Config& config, const DataFiles& data_files, const json& before) {
  const std::string path = token_path(config);
  if (is_s3_url(path)) return bucket_facts(path, data_files);
  json facts = {{"path", path_as_text(path)}, {"files", json::array()}};
  std::error_code error;
  if (const auto made = read_manifest(path); made.ok()) {
    facts["source"] = path_as_text(made->source);
    facts["source_xxh3_128"] = made->source_hash;
    facts["tokenizer_seed"] = made->seed;
    for (const FileRecord* record : made->files())
      if (!record->hash.empty()) facts["files"].push_back(record_facts(*record));
    return facts;
  }
  const std::vector<json> known = files_of(before);
  const bool folder = fs::is_directory(path, error);
  for (const std::string& file :
       folder ? DataFiles().token_files(path) : std::vector{token_file_of(path)}) {
    facts["files"].push_back(file_facts(file, fact_of(known, file)));
    for (const std::string& beside :
         {loss_mask_of(file), fs::path(file).replace_extension(".idx").string()})
      if (beside != file && fs::exists(beside, error))
        facts["files"].push_back(file_facts(beside, fact_of(known, beside)));
  }
  return facts;
}

// -- Comparison -----------------------------------------------------------------------------------

/// True for tokens, their loss masks and their indices.
bool makes_samples(const std::string& file) {
  return is_token_name(file) || file.ends_with(".mask") || file.ends_with(".idx");
}

/// The name of a file within its source: its path in the folder or, if the source is one file, its
/// extension. So neither the place of a source nor the name of its only file matters.
std::string name_in(const std::string& source, const std::string& file) {
  if (!file.starts_with('/') && !is_s3_url(file)) return file;  // of a prepared folder
  const fs::path inside = fs::path(file).lexically_relative(source);
  const bool in_folder = !inside.empty() && inside != "." && *inside.begin() != "..";
  return in_folder ? inside.string() : "file" + fs::path(file).extension().string();
}

/// Compares contents by a fact that both have. Null: they have no such fact.
json same_file(const json& before, const json& now) {
  if (member_of(before, "bytes") != member_of(now, "bytes")) return false;
  for (const char* fact : {"xxh3_128", "etag"})
    if (member_of(before, fact).is_string() && member_of(now, fact).is_string())
      return before[fact] == now[fact];
  return {};
}

/// A difference between the files of two starts.
struct Difference {
  std::string name;   // of the present file, or of the earlier one
  const char* what;   // "has changed"
  bool known = true;  // false: the contents cannot be compared
};

using ByName = std::map<std::string, json>;

ByName by_name(const json& facts) {
  ByName files;
  for (const json& file : files_of(facts))
    files[name_in(text_of(facts, "path"), file["name"])] = file;
  return files;
}

bool holds_indices(const ByName& files) {
  return std::ranges::any_of(files, [](const auto& file) { return file.first.ends_with(".idx"); });
}

/// True if the files have the same order and contents and only other names, so the samples are the
/// same. False for files whose names tell their purpose.
bool only_renamed(const ByName& was, const ByName& is) {
  if (was.size() != is.size() || was.contains("train.bin") || is.contains("train.bin"))
    return false;
  for (auto a = was.begin(), b = is.begin(); a != was.end(); ++a, ++b)
    if (fs::path(a->first).extension() != fs::path(b->first).extension() ||
        is_for_validation(a->first) != is_for_validation(b->first) ||
        same_file(a->second, b->second) != true)
      return false;
  return true;
}

std::optional<Difference> difference(const json& before, const json& now, bool same_place) {
  const ByName was = by_name(before), is = by_name(now);
  if (was.empty()) {  // no files were recorded
    if (same_place) return std::nullopt;
    return Difference{"", "cannot be compared", false};
  }
  if (only_renamed(was, is)) return std::nullopt;
  for (const auto& [name, file] : is)
    if (!was.contains(name) && makes_samples(name) &&
        (holds_indices(was) || !name.ends_with(".idx")))  // earlier versions recorded no index
      return Difference{file["name"], "was added"};
  for (const auto& [name, file] : was) {
    const auto found = is.find(name);
    if (found == is.end() && makes_samples(name)) return Difference{file["name"], "is missing"};
    if (found == is.end()) continue;
    const json same = same_file(file, found->second);
    if (same == false) return Difference{found->second["name"], "has changed"};
    if (same.is_null() && !same_place)
      return Difference{found->second["name"], "cannot be compared", false};
  }
  return std::nullopt;
}

std::string shown(const json& path) {
  return path.is_string() ? path_of_text(path.get<std::string>()) : "other data";
}

/// As same_data(), for one source. key: its key in the configuration.
Status same_source(const json& before, const json& now, const std::string& key) {
  if (!before.is_object()) return {};  // the run begins
  const json was_at = member_of(before, "path"), is_at = member_of(now, "path");
  const auto bare = [](const json& path) {  // earlier versions recorded a slash at the end
    return path.is_string() ? bare_path(path.get<std::string>()) : "";
  };
  const bool same_place = bare(was_at) == bare(is_at);
  const auto other = difference(before, now, same_place);
  if (!other) return {};
  if (same_place)
    return Status(Code::bad_data, path_of_text(other->name) + " " + other->what +
                                      " since this run began; restore it, or start a new run with "
                                      "--run=FOLDER");
  const std::string places =
      key + ": the run was trained on " + shown(was_at) + ", and " + shown(is_at);
  if (other->known)
    return Status(Code::bad_config, places + " holds other data: " + path_of_text(other->name) +
                                        " " + other->what +
                                        "; to train on other data, begin a new run from its "
                                        "weights: train CONFIG --from RUN --run=NEW_FOLDER");
  return Status(Code::bad_config,
                places +
                    " cannot be compared with it, because no hash of its contents was "
                    "recorded; put it back and start the run once, which records it, or "
                    "begin a new run from its weights: train CONFIG --from RUN "
                    "--run=NEW_FOLDER");
}

}  // namespace

nlohmann::json file_facts(const std::string& path, const nlohmann::json& before) {
  struct stat info {};
  json facts = {{"name", path_as_text(path)}, {"bytes", 0}, {"xxh3_128", nullptr}};
  if (::stat(path.c_str(), &info) != 0) return facts;
  const auto bytes = static_cast<uint64_t>(info.st_size);
  const int64_t changed_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
  facts["bytes"] = bytes;
  facts["changed_ns"] = changed_ns;
  if (bytes > kHashBytesMax && member_of(before, "name") == facts["name"] &&
      member_of(before, "bytes") == bytes && member_of(before, "changed_ns") == changed_ns &&
      member_of(before, "xxh3_128").is_string()) {
    facts["xxh3_128"] = before["xxh3_128"];
    return facts;
  }
  if (bytes > kToldBytes) terminal::error("recording a hash of %s\n", path.c_str());
  if (const auto hash = hash_file(path); hash.ok()) facts["xxh3_128"] = *hash;
  return facts;
}

nlohmann::json data_facts(const Config& config, const DataFiles& files,
                          const nlohmann::json& before) {
  if (config.data.blend.empty()) return source_facts(config, files, before);
  json facts = json::object();
  const json blend = member_of(before, "blend");
  for (const auto& [name, of] : sources_of(config))
    facts["blend"][name] = source_facts(of, files, member_of(blend, name.c_str()));
  return facts;
}

nlohmann::json data_places(const Config& config) {
  json facts = json::object();
  for (const auto& [name, of] : sources_of(config))
    (name.empty() ? facts : facts["blend"][name])["path"] = path_as_text(token_path(of));
  return facts;
}

Status same_data(const nlohmann::json& before, const nlohmann::json& now,
                 const std::function<bool(const std::string&)>& trained) {
  const json blend = member_of(before, "blend"), blend_now = member_of(now, "blend");
  if (!blend.is_object() || !blend_now.is_object())
    return trained("") ? same_source(before, now, "data.source") : Status();
  for (const auto& [name, facts] : blend_now.items())
    if (blend.contains(name) && trained(name))
      SS_RETURN_IF_ERROR(same_source(blend[name], facts, "data.blend: \"" + name + "\""));
  return {};
}

bool same_contents(const nlohmann::json& before, const nlohmann::json& now) {
  return same_file(before, now) == true;
}

}  // namespace simplescale
