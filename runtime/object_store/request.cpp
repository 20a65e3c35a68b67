#include "runtime/object_store/request.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <thread>

#include "runtime/base/log.hpp"
#include "runtime/base/printable.hpp"
#include "runtime/base/splitmix64.hpp"
#include "runtime/base/words.hpp"
#include "runtime/object_store/answers.hpp"

namespace simplescale {

namespace {

using Failure = HttpAnswer::Failure;

int64_t now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

bool succeeded(const HttpAnswer& answer) {
  return answer.failure == Failure::none && answer.status >= 200 && answer.status < 300;
}

/// True if the same request may succeed later. code: of parse_error().
bool may_pass(const HttpAnswer& answer, const std::string& code) {
  if (answer.failure != Failure::none) return answer.failure == Failure::network;
  constexpr std::array codes = {"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable",
                                // The body was damaged or cut on its way.
                                "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch",
                                // Another request for the same key is under way.
                                "OperationAborted", "ConditionalRequestConflict"};
  return answer.status == 408 || answer.status == 429 || answer.status >= 500 ||
         std::ranges::find(codes, code) != codes.end();
}

/// What shows that a good answer is not all that was asked for although the object has more, or "".
std::string shortness_of(const HttpRequest& request, const HttpAnswer& answer) {
  if (!succeeded(answer) || request.method != "GET") return "";
  if (answer.header("content-length").empty() && answer.header("transfer-encoding").empty())
    return "the answer does not say how long it is";
  // "bytes 100-199/1000": the first and the last byte, and the object's size.
  unsigned long long first = 0, last = 0, total = 0;
  if (answer.bytes >= request.into.size() ||
      std::sscanf(answer.header("content-range").c_str(), "bytes %llu-%llu/%llu", &first, &last,
                  &total) != 3 ||
      total <= first + answer.bytes)
    return "";
  return "the answer has " + std::to_string(answer.bytes) + " bytes, not the " +
         std::to_string(request.into.size()) + " that were asked for";
}

/// What a refusal means for the user, by the server's code or, for answers without one (HEAD), by
/// the HTTP status.
struct Meaning {
  Code code;
  std::string remedy;
};

Meaning meaning_of(const HttpAnswer& answer, const std::string& code) {
  const long status = answer.status;
  auto is = [&](std::initializer_list<const char*> codes) {
    return std::ranges::find(codes, code) != codes.end();
  };
  if (is({"NoSuchBucket"})) return {Code::bad_config, "create the bucket, or correct its name"};
  if (is({"ExpiredToken", "TokenRefreshRequired"}))
    return {Code::bad_config, "renew the credentials; AWS_SESSION_TOKEN has expired"};
  if (is({"RequestTimeTooSkewed"})) return {Code::bad_config, "correct the clock of this host"};
  if (is({"SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken"}))
    return {Code::bad_config, "check the credentials and their endpoint"};
  if ((status >= 300 && status < 400) || is({"AuthorizationHeaderMalformed"})) {
    const std::string region = answer.header("x-amz-bucket-region");
    return {Code::bad_config, "set AWS_REGION to the region of the bucket" +
                                  (region.empty() ? "" : ", " + printable(region))};
  }
  if (status == 401 || status == 403)
    return {Code::bad_config, "allow it to these credentials, or use others"};
  if (status == 404) return {Code::not_found, "check the name"};
  if (status == 412) return {Code::mismatch, "the object has been changed meanwhile"};
  if (status == 416) return {Code::bad_data, "the object is shorter than it was"};
  if (status == 501) return {Code::bad_config, "the server cannot do this; use one that can"};
  if (status == 400) return {Code::bad_config, "check credentials, region and endpoint"};
  return {Code::io, "try again, or look at the server"};
}

}  // namespace

ObjectStore::ObjectStore(S3Settings settings, std::string bucket, StoreLimits limits,
                         std::function<Result<S3Settings>()> reload)
    : bucket_(std::move(bucket)),
      limits_(std::move(limits)),
      reload_(std::move(reload)),
      settings_(std::move(settings)) {}

std::shared_ptr<ObjectStore> ObjectStore::with_limits(StoreLimits limits) const {
  return std::make_shared<ObjectStore>(settings(), bucket_, std::move(limits), reload_);
}

S3Settings ObjectStore::settings() const {
  const std::lock_guard lock(mutex_);
  return settings_;
}

/// Custom endpoints have the bucket in the path. AWS has it in the host's name, if its certificate
/// holds for that: not with a dot in the bucket's name.
std::string ObjectStore::request_url(const S3Settings& settings, const Call& call) const {
  const bool in_host = settings.endpoint.empty() && bucket_.find('.') == std::string::npos;
  std::string url = settings.endpoint;
  if (url.empty())
    url = "https://" + (in_host ? bucket_ + "." : "") + "s3." + settings.region + ".amazonaws.com";
  if (!in_host) url += "/" + bucket_;
  url += "/" + percent_encoded(call.key, true);
  if (!in_host && call.key.empty()) url.pop_back();
  char separator = '?';
  for (const auto& [name, value] : call.query) {
    if (name != "uploads" && value.empty()) continue;
    url += separator + percent_encoded(name, false) + "=" + percent_encoded(value, false);
    separator = '&';
  }
  return url;
}

HttpAnswer ObjectStore::send(const Call& call) {
  const S3Settings settings = this->settings();
  HttpRequest request{call.method, request_url(settings, call), call.headers, call.body};
  if (call.method == "POST") request.headers.push_back("Content-Type: application/xml");
  request.into = call.into;
  request.body_bytes_max = call.body_bytes_max;
  if (!call.into.empty())
    request.range =
        std::to_string(call.offset) + "-" + std::to_string(call.offset + call.into.size() - 1);
  HttpAnswer answer = client_.send(request, settings, limits_.http);
  // A multipart upload that fails at its end is answered with 200 and an error.
  if (succeeded(answer) && call.method == "POST" &&
      !s3_answers::parse_error(answer.body).code.empty())
    answer.status = 500;
  if (const std::string what = shortness_of(request, answer); !what.empty()) {
    answer.failure = Failure::network;
    answer.failure_text = what;
  }
  return answer;
}

/// ok, or what is wrong with the answer.
Status ObjectStore::error_of(const Call& call, const HttpAnswer& answer) const {
  const std::string endpoint = settings().endpoint;
  const std::string what =
      call.method + " " + url(call.key) + (endpoint.empty() ? "" : " at " + endpoint) + ": ";
  switch (answer.failure) {
    case Failure::none:
      break;
    case Failure::stopped:
      return {Code::aborted, what + "stopped"};
    case Failure::certificate:
      return {Code::bad_config, what + printable(answer.failure_text) +
                                    "; name the server's certificate in AWS_CA_BUNDLE"};
    case Failure::network:
      return {Code::io, what + printable(answer.failure_text) +
                            "; check the network and AWS_ENDPOINT_URL_S3"};
    case Failure::malformed:
      return {Code::io, what + answer.failure_text};
  }
  if (!succeeded(answer)) {
    const auto error = s3_answers::parse_error(answer.body);
    const Meaning meaning = meaning_of(answer, error.code);
    std::string said = "HTTP " + std::to_string(answer.status);
    if (!error.code.empty()) said += " " + error.code;
    if (!error.message.empty()) said += " (" + error.message + ")";
    return {meaning.code, what + said + "; " + meaning.remedy};
  }
  if (call.into.empty()) return {};
  const std::string range = answer.header("content-range");
  const std::string begins = "bytes " + std::to_string(call.offset) + "-";
  if (answer.status != 206 || !range.starts_with(begins))
    return {Code::bad_config, what + "the server does not answer ranges; use one that does"};
  if (answer.bytes != call.into.size())
    return {Code::bad_data, what + "the object ends at byte " +
                                std::to_string(call.offset + answer.bytes) + ", before byte " +
                                std::to_string(call.offset + call.into.size())};
  return {};
}

/// Sleeps before the next try. False: it would begin too late, or the caller is stopping.
bool ObjectStore::pause(int tried, const HttpAnswer& answer, int64_t deadline_ms) {
  int64_t pause_ms = limits_.first_pause_ms << std::min(tried - 1, 20);
  if (const std::string after = answer.header("retry-after");
      !after.empty() && after.size() < 6 &&
      std::ranges::all_of(after, [](unsigned char c) { return std::isdigit(c); }))
    pause_ms = std::max<int64_t>(pause_ms, 1000 * std::stoll(after));
  pause_ms = std::min(pause_ms, limits_.pause_ms_max);
  // Random, so that clients that failed together do not come back together.
  const uint64_t seed = reinterpret_cast<uintptr_t>(this) ^ static_cast<uint64_t>(now_ms());
  if (pause_ms > 1)
    pause_ms -= static_cast<int64_t>(splitmix64_at(seed, pauses_++) %
                                     static_cast<uint64_t>(pause_ms / 2 + 1));
  const int64_t until_ms = now_ms() + pause_ms;
  if (until_ms > deadline_ms) return false;
  constexpr int64_t look_ms = 100;  // how often `stopped` is asked
  for (int64_t left = pause_ms; left > 0; left = until_ms - now_ms()) {
    if (limits_.http.stopped && limits_.http.stopped()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(left, look_ms)));
  }
  return true;
}

/// True if there are other credentials than before.
bool ObjectStore::renew_credentials() {
  if (!reload_) return false;
  auto found = reload_();
  if (!found.ok()) return false;
  const std::lock_guard lock(mutex_);
  const S3Credentials &old = settings_.credentials, &now = found->credentials;
  if (old.access_key_id == now.access_key_id && old.secret_access_key == now.secret_access_key &&
      old.session_token == now.session_token)
    return false;
  settings_.credentials = now;
  return true;
}

bool expires_soon(int64_t expires_s, int64_t now_s, int64_t tried_s) {
  constexpr int64_t kEarlyS = 300, kPauseS = 60;
  return expires_s > 0 && now_s >= expires_s - kEarlyS && now_s >= tried_s + kPauseS;
}

/// The first thread that finds the credentials near their end asks for new ones; the other threads
/// send with the old ones meanwhile. If no new ones are given, all threads send with the old ones
/// until the server refuses those.
void ObjectStore::renew_before_expiry() {
  const int64_t now_s = std::time(nullptr);
  {
    const std::lock_guard lock(mutex_);
    if (!reload_ || !expires_soon(settings_.credentials.expires_s, now_s, renewed_s_)) return;
    renewed_s_ = now_s;
  }
  renew_credentials();
}

ObjectStore::Outcome ObjectStore::ask(const Call& call) {
  const int64_t deadline_ms = now_ms() + limits_.deadline_ms;
  bool renewed = false;
  for (int tried = 1;; ++tried) {
    renew_before_expiry();
    HttpAnswer answer = send(call);
    const Status status = error_of(call, answer);
    if (status.ok() || status.code() == Code::aborted) return {status, std::move(answer), tried};
    const std::string code = s3_answers::parse_error(answer.body).code;
    const bool refused = answer.failure == Failure::none &&
                         (answer.status == 400 || answer.status == 401 || answer.status == 403);
    if (refused && !renewed && renew_credentials()) {
      renewed = true;
      continue;
    }
    if (!may_pass(answer, code)) return {status, std::move(answer), tried};
    if (tried < limits_.tries) log::warn("trying again: {}", status.message());
    if (tried >= limits_.tries || !pause(tried, answer, deadline_ms)) {
      const bool stopped = limits_.http.stopped && limits_.http.stopped();
      return {Status(stopped ? Code::aborted : Code::io,
                     status.message() + "; tried " + counted(tried, "time")),
              std::move(answer), tried};
    }
  }
}

}  // namespace simplescale
