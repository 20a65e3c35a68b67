#include "app/launch/bucket_check.hpp"

#include <array>
#include <filesystem>

#include "runtime/base/process.hpp"
#include "runtime/base/words.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/object_store/object_store.hpp"

namespace simplescale {

namespace {

StoreLimits short_limits() {
  StoreLimits limits;
  limits.tries = 3, limits.deadline_ms = 10'000;
  limits.http.stall_timeout_s = 10, limits.http.request_timeout_ms = 10'000;
  return limits;
}

/// What was found, or the error. path: of the source.
Result<std::string> check_source(const std::string& path) {
  SS_ASSIGN(const S3Url url, parse_s3_url(path));
  SS_ASSIGN(const auto store, open_object_store(url, short_limits()));
  const std::string stem = std::filesystem::path(url.key).replace_extension("").string();
  SS_ASSIGN(std::vector<ObjectFacts> objects, store->list(stem));
  std::erase_if(objects, [&](const ObjectFacts& object) {
    return object.bytes == 0 || !(object.key == url.key || object.key.starts_with(stem + ".") ||
                                  object.key.starts_with(url.key.empty() ? "" : url.key + "/"));
  });
  if (objects.empty())
    return Status(Code::bad_data, url.text() +
                                      ": the bucket holds no such object; correct the "
                                      "name, or upload it");
  std::array<char, 1> byte{};
  const ObjectFacts& first = objects.front();
  SS_RETURN_IF_ERROR(store->get_range(first.key, first.bytes - 1, byte, first.etag));
  uint64_t bytes = 0;
  for (const ObjectFacts& object : objects) bytes += object.bytes;
  return url.text() + ": " + counted(static_cast<int64_t>(objects.size()), "object") + ", " +
         std::to_string(bytes) + " bytes, listed and read";
}

/// Puts an object, and checks that both conditions keep it from being replaced.
Status check_conditions(ObjectStore& store, const std::string& key) {
  const auto refused = [&](const char* header, const Result<std::string>& put) -> Status {
    if (put.status().code() == Code::mismatch) return {};
    if (!put.ok()) return put.status();
    return {Code::bad_config, store.url(key) + ": the server ignores the condition of a put (" +
                                  header +
                                  "), which protects the checkpoints; use a server that keeps it"};
  };
  const std::string text = "written by simplescale doctor", other = text + " again";
  SS_RETURN_IF_ERROR(store.put(key, text, {.if_absent = true}).status());
  SS_RETURN_IF_ERROR(refused("If-None-Match", store.put(key, other, {.if_absent = true})));
  SS_RETURN_IF_ERROR(refused("If-Match", store.put(key, other, {.if_etag = "\"0\""})));
  return store.get(key, 1 << 10).status();
}

Result<std::string> check_upload(const std::string& path) {
  SS_ASSIGN(const S3Url url, parse_s3_url(path));
  SS_ASSIGN(const auto store, open_object_store(url, short_limits()));
  SS_RETURN_IF_ERROR(store->list(url.below("doctor-")).status());
  const std::string key = url.below("doctor-" + unique_id());
  const Status conditions = check_conditions(*store, key);
  const Status removed = store->remove(key);
  SS_RETURN_IF_ERROR(conditions);
  SS_RETURN_IF_ERROR(removed);
  return url.text() + ": listed, written with conditions, read and removed";
}

CheckResult result_of(const std::string& key, const Result<std::string>& found) {
  return {"bucket", found.ok(), 0, "",
          key + ": " + (found.ok() ? *found : found.status().message())};
}

}  // namespace

std::vector<CheckResult> check_buckets(const Config& config) {
  std::vector<CheckResult> results;
  for (const auto& [name, of] : sources_of(config))
    if (is_s3_url(of.data.source))
      results.push_back(result_of(name.empty() ? "data.source" : "data.blend: " + name,
                                  check_source(of.data.source)));
  if (!config.checkpoint.upload.empty())
    results.push_back(result_of("checkpoint.upload", check_upload(config.checkpoint.upload)));
  return results;
}

}  // namespace simplescale
