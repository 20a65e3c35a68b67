// runtime/object_store: objects of a bucket on AWS S3 or any server with its protocol.
//
// libcurl carries and signs the requests (http_client.hpp). Each call has a deadline and a bounded
// number of tries, with growing pauses, after errors that may be temporary: no connection, a
// connection that stalls or ends early, HTTP 408, 429 and 5xx.
//
// Errors, the same for every call; each names request, URL, HTTP status and the server's code:
//   not_found   there is no such object
//   mismatch    the condition of a put or of a read does not hold
//   bad_data    the object ends before the bytes that were asked for
//   bad_config  access denied, wrong or expired credentials, no such bucket, another region, a
//               certificate that cannot be verified: trying again does not help
//   aborted     StoreLimits::http.stopped
//   io          the server could not be reached, or failed, until the last try; says nothing about
//               the object
//
// Credentials are in no message. Any thread may call; each request has a connection of its own, and
// connections are kept open between requests. All calls block.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"
#include "runtime/object_store/http_client.hpp"
#include "runtime/object_store/s3_url.hpp"
#include "runtime/object_store/settings.hpp"

namespace simplescale {

struct StoreLimits {
  HttpLimits http;                     // of one request
  int tries = 6;                       // of one call
  int64_t first_pause_ms = 200;        // doubles with each try; half of it is random
  int64_t pause_ms_max = 10'000;       // also of a server's Retry-After
  int64_t deadline_ms = 180'000;       // of one call: no try begins after it
  int64_t list_deadline_ms = 600'000;  // of a whole list: no page is asked for after it
};

struct ObjectFacts {
  std::string key;
  uint64_t bytes = 0;
  std::string etag;  // as the server writes it, with quotes. Changes with the contents
};

struct ObjectText {
  std::string text, etag;
};

/// What must hold for a put. At most one of the two.
struct PutCondition {
  std::string if_etag = {};  // the object is still the one with this etag
  bool if_absent = false;    // there is no such object
};

/// An object being uploaded in parts. It takes space until it is completed or aborted.
struct MultipartUpload {
  std::string key, id;
};

inline constexpr size_t kPartBytesMin = 5 << 20;  // of every part but the last
inline constexpr size_t kPartsMax = 10'000;

class ObjectStore {
 public:
  /// reload: called after an answer that refuses the credentials, since a session's token may have
  /// been renewed, and before they expire. Null: they stay.
  ObjectStore(S3Settings settings, std::string bucket, StoreLimits limits = {},
              std::function<Result<S3Settings>()> reload = nullptr);
  /// Another client of the bucket with other limits. It begins with the settings that this one has
  /// now, so that nobody is asked for credentials again.
  std::shared_ptr<ObjectStore> with_limits(StoreLimits limits) const;

  /// Size and etag, without the contents.
  Result<ObjectFacts> head(const std::string& key);
  /// The whole object. io: it has more than bytes_max bytes.
  Result<ObjectText> get(const std::string& key, size_t bytes_max);
  /// Fills `out` with the bytes from `offset` on. etag: mismatch if the object is another one; "":
  /// any. `out` is undefined after an error.
  Status get_range(const std::string& key, uint64_t offset, std::span<char> out,
                   const std::string& etag = "");
  /// Creates or replaces an object; the server compares a SHA-256 of the body. Returns its etag.
  /// mismatch: nothing was changed.
  Result<std::string> put(const std::string& key, std::span<const char> body,
                          const PutCondition& condition = {});
  /// ok if there is no such object.
  Status remove(const std::string& key);
  /// All objects whose keys begin with `prefix`, by key. io: there are more than 1,000,000, or the
  /// server's list does not end, or not before StoreLimits::list_deadline_ms.
  Result<std::vector<ObjectFacts>> list(const std::string& prefix);

  Result<MultipartUpload> begin_upload(const std::string& key);
  /// number: from 1. A part that is uploaded again replaces the earlier one. Returns its etag.
  Result<std::string> upload_part(const MultipartUpload& upload, size_t number,
                                  std::span<const char> body);
  /// The object appears, or replaces an earlier one, as a whole. etags: of parts 1, 2, ...; bytes:
  /// of all parts.
  Status complete_upload(const MultipartUpload& upload, const std::vector<std::string>& etags,
                         uint64_t bytes);
  /// Removes the parts. ok if there is no such upload.
  Status abort_upload(const MultipartUpload& upload);
  /// Uploads that were neither completed nor aborted, of keys that begin with `prefix`.
  Result<std::vector<MultipartUpload>> uploads(const std::string& prefix);

  /// "s3://BUCKET/KEY"
  std::string url(const std::string& key) const { return S3Url{bucket_, key}.text(); }

 private:
  struct Call;
  struct Outcome;
  Outcome ask(const Call& call);
  HttpAnswer send(const Call& call);
  Status error_of(const Call& call, const HttpAnswer& answer) const;
  bool pause(int tried, const HttpAnswer& answer, int64_t deadline_ms);
  bool renew_credentials();
  void renew_before_expiry();
  std::string request_url(const S3Settings& settings, const Call& call) const;
  S3Settings settings() const;

  const std::string bucket_;
  const StoreLimits limits_;
  const std::function<Result<S3Settings>()> reload_;
  mutable std::mutex mutex_;
  S3Settings settings_;
  int64_t renewed_s_ = 0;  // when renew_before_expiry() last tried
  HttpClient client_;
  std::atomic<uint64_t> pauses_ = 0;
};

/// Whether credentials that expire at `expires_s` (0: never) are asked for anew at `now_s`: from
/// five minutes before they expire on, and at most once a minute. tried_s: when this was done last;
/// 0: never. All in seconds since 1970. Pure.
bool expires_soon(int64_t expires_s, int64_t now_s, int64_t tried_s);

/// The store of a URL's bucket, with s3_settings(), which are read again when the server refuses
/// the credentials, and before they expire. Sends no request.
Result<std::shared_ptr<ObjectStore>> open_object_store(
    const S3Url& url, StoreLimits limits = {}, Environment environment = process_environment());

}  // namespace simplescale
