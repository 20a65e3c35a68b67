#include "runtime/object_store/object_store.hpp"

#include <charconv>
#include <chrono>
#include <optional>

#include "runtime/base/log.hpp"
#include "runtime/base/words.hpp"
#include "runtime/object_store/answers.hpp"
#include "runtime/object_store/request.hpp"

namespace simplescale {

namespace {

constexpr size_t kObjectsMax = 1'000'000, kPagesMax = 10'000;

/// The pages of a list. Whether another one follows is what the server says, so they are counted.
class Pages {
 public:
  explicit Pages(const StoreLimits& limits)
      : deadline_(Clock::now() + std::chrono::milliseconds(limits.list_deadline_ms)) {}
  /// next: where the next page begins. io: it has been read already, there were too many, or they
  /// took too long.
  Status follow(const std::string& next, const std::string& url) {
    const bool ends = next != next_ && ++count_ < kPagesMax;
    next_ = next;
    if (!ends) return {Code::io, url + ": the server's list does not end"};
    if (Clock::now() < deadline_) return {};
    return {Code::io, url + ": the server's list took too long, after " + counted(count_, "page") +
                          "; try again, or look at the server"};
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline_;
  std::string next_;
  size_t count_ = 0;
};

std::optional<uint64_t> number_of(const std::string& text) {
  uint64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

}  // namespace

Result<ObjectFacts> ObjectStore::head(const std::string& key) {
  Outcome out = ask({.method = "HEAD", .key = key});
  if (!out.status.ok()) return out.status;
  const auto bytes = number_of(out.answer.header("content-length"));
  if (!bytes) return Status(Code::io, url(key) + ": the server does not tell the object's size");
  return ObjectFacts{key, *bytes, out.answer.header("etag")};
}

Result<ObjectText> ObjectStore::get(const std::string& key, size_t bytes_max) {
  Outcome out = ask({.method = "GET", .key = key, .body_bytes_max = bytes_max});
  if (!out.status.ok()) return out.status;
  return ObjectText{std::move(out.answer.body), out.answer.header("etag")};
}

Status ObjectStore::get_range(const std::string& key, uint64_t offset, std::span<char> out,
                              const std::string& etag) {
  if (out.empty()) return {};
  Call call{.method = "GET", .key = key, .into = out, .offset = offset};
  if (!etag.empty()) call.headers.push_back("If-Match: " + etag);
  return ask(call).status;
}

Result<std::string> ObjectStore::put(const std::string& key, std::span<const char> body,
                                     const PutCondition& condition) {
  Call call{.method = "PUT", .key = key, .body = body};
  if (!condition.if_etag.empty()) call.headers.push_back("If-Match: " + condition.if_etag);
  if (condition.if_absent) call.headers.push_back("If-None-Match: *");
  Outcome out = ask(call);
  if (out.status.ok()) return out.answer.header("etag");
  if (out.status.code() != Code::mismatch || out.tries == 1) return out.status;
  // An earlier try may have changed the object although its answer was lost.
  const auto now = get(key, body.size());
  if (!now.ok() || !std::ranges::equal(now->text, body)) return out.status;
  return now->etag;
}

Status ObjectStore::remove(const std::string& key) {
  const Status status = ask({.method = "DELETE", .key = key}).status;
  return status.code() == Code::not_found ? Status() : status;
}

Result<std::vector<ObjectFacts>> ObjectStore::list(const std::string& prefix) {
  std::vector<ObjectFacts> found;
  Call call{.method = "GET", .query = {{"list-type", "2"}, {"prefix", prefix}}};
  Pages pages(limits_);
  for (bool more = true; more;) {
    Outcome out = ask(call);
    if (!out.status.ok()) return out.status;
    auto page = s3_answers::parse_objects(out.answer.body);
    if (!page.ok()) return page.status().in(url(prefix));
    for (ObjectFacts& object : page->objects)
      if (object.key.starts_with(prefix)) found.push_back(std::move(object));
    if (found.size() > kObjectsMax)
      return Status(Code::io, url(prefix) + ": there are more than 1,000,000 objects");
    more = !page->next.empty();
    if (more) SS_RETURN_IF_ERROR(pages.follow(page->next, url(prefix)));
    call.query["continuation-token"] = page->next;
  }
  return found;
}

Result<MultipartUpload> ObjectStore::begin_upload(const std::string& key) {
  Outcome out = ask({.method = "POST", .key = key, .query = {{"uploads", ""}}});
  if (!out.status.ok()) return out.status;
  auto id = s3_answers::parse_upload_id(out.answer.body);
  if (!id.ok()) return id.status().in(url(key));
  return MultipartUpload{key, id.take()};
}

Result<std::string> ObjectStore::upload_part(const MultipartUpload& upload, size_t number,
                                             std::span<const char> body) {
  SS_ASSERT(number >= 1 && number <= kPartsMax);
  Outcome out = ask({.method = "PUT",
                     .key = upload.key,
                     .query = {{"partNumber", std::to_string(number)}, {"uploadId", upload.id}},
                     .body = body});
  if (!out.status.ok()) return out.status;
  return out.answer.header("etag");
}

Status ObjectStore::complete_upload(const MultipartUpload& upload,
                                    const std::vector<std::string>& etags, uint64_t bytes) {
  const std::string text = s3_answers::completion_text(etags);
  const Outcome out =
      ask({.method = "POST", .key = upload.key, .query = {{"uploadId", upload.id}}, .body = text});
  if (!out.status.ok() && out.status.code() != Code::not_found) return out.status;
  // The server forgets an upload that it has completed: an earlier try may have done that although
  // its answer was lost.
  if (!out.status.ok() && out.tries == 1) return out.status;
  SS_ASSIGN(const ObjectFacts now, head(upload.key));
  if (now.bytes != bytes)
    return {Code::io, url(upload.key) + ": it has " + std::to_string(now.bytes) +
                          " bytes, not the " + std::to_string(bytes) + " that were uploaded"};
  return {};
}

Status ObjectStore::abort_upload(const MultipartUpload& upload) {
  const Status status =
      ask({.method = "DELETE", .key = upload.key, .query = {{"uploadId", upload.id}}}).status;
  return status.code() == Code::not_found ? Status() : status;
}

Result<std::vector<MultipartUpload>> ObjectStore::uploads(const std::string& prefix) {
  std::vector<MultipartUpload> found;
  Call call{.method = "GET", .query = {{"prefix", prefix}, {"uploads", ""}}};
  Pages pages(limits_);
  for (bool more = true; more;) {
    Outcome out = ask(call);
    if (!out.status.ok()) return out.status;
    auto page = s3_answers::parse_uploads(out.answer.body);
    if (!page.ok()) return page.status().in(url(prefix));
    for (MultipartUpload& upload : page->uploads)
      if (upload.key.starts_with(prefix)) found.push_back(std::move(upload));
    more = !page->next_key.empty() && found.size() <= kObjectsMax;
    if (more) SS_RETURN_IF_ERROR(pages.follow(page->next_key + "\n" + page->next_id, url(prefix)));
    call.query["key-marker"] = page->next_key, call.query["upload-id-marker"] = page->next_id;
  }
  return found;
}

Result<std::shared_ptr<ObjectStore>> open_object_store(const S3Url& url, StoreLimits limits,
                                                       Environment environment) {
  SS_ASSIGN(S3Settings settings, s3_settings(environment));
  return std::make_shared<ObjectStore>(std::move(settings), url.bucket, std::move(limits),
                                       [environment] { return s3_settings(environment); });
}

}  // namespace simplescale
