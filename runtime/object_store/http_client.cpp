#include "runtime/object_store/http_client.hpp"

#include <curl/curl.h>
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>
#include <utility>

namespace simplescale {

namespace {

constexpr size_t kIdleMax = 8;
constexpr size_t kHeadersMax = 100;
constexpr size_t kErrorBytesMax = 64 << 10;  // the rest of an error is dropped
constexpr long kBufferBytes = 256 << 10;

/// One request's state, which libcurl's callbacks share.
struct Transfer {
  CURL* handle;
  const HttpRequest& request;
  const HttpLimits& limits;
  HttpAnswer answer;
  size_t sent = 0;
  bool too_large = false, was_stopped = false;

  bool succeeded() const {
    long status = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    return status >= 200 && status < 300;
  }
};

size_t take_body(char* data, size_t, size_t bytes, void* context) {
  auto& t = *static_cast<Transfer*>(context);
  if (!t.succeeded()) {
    t.answer.body.append(data, std::min(bytes, kErrorBytesMax - t.answer.body.size()));
    return bytes;
  }
  const bool direct = !t.request.into.empty();
  const size_t room = (direct ? t.request.into.size() : t.request.body_bytes_max) - t.answer.bytes;
  if (bytes > room) {
    t.too_large = true;
    return 0;
  }
  if (direct)
    std::memcpy(t.request.into.data() + t.answer.bytes, data, bytes);
  else
    t.answer.body.append(data, bytes);
  t.answer.bytes += bytes;
  return bytes;
}

size_t take_header(char* data, size_t, size_t bytes, void* context) {
  auto& t = *static_cast<Transfer*>(context);
  const std::string line(data, bytes);
  if (line.starts_with("HTTP/")) t.answer.headers.clear();  // after 100 Continue
  const size_t colon = line.find(':');
  if (colon == std::string::npos || t.answer.headers.size() >= kHeadersMax) return bytes;
  std::string name = line.substr(0, colon);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  const size_t begin = line.find_first_not_of(" \t", colon + 1);
  const size_t end = line.find_last_not_of(" \t\r\n");
  t.answer.headers[name] =
      begin == std::string::npos || end < begin ? "" : line.substr(begin, end - begin + 1);
  return bytes;
}

size_t give_body(char* to, size_t, size_t bytes, void* context) {
  auto& t = *static_cast<Transfer*>(context);
  const size_t piece = std::min(bytes, t.request.body.size() - t.sent);
  std::memcpy(to, t.request.body.data() + t.sent, piece);
  t.sent += piece;
  return piece;
}

/// libcurl sends the body again if a connection that it kept turns out to be closed.
int seek_body(void* context, curl_off_t offset, int origin) {
  auto& t = *static_cast<Transfer*>(context);
  if (origin != SEEK_SET || offset < 0 || static_cast<size_t>(offset) > t.request.body.size())
    return CURL_SEEKFUNC_FAIL;
  t.sent = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

int progress(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& t = *static_cast<Transfer*>(context);
  t.was_stopped = t.limits.stopped && t.limits.stopped();
  return t.was_stopped ? 1 : 0;
}

/// Programs that this process starts must not inherit the connection.
curl_socket_t open_socket(void*, curlsocktype, curl_sockaddr* address) {
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

using Headers = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

Headers headers_of(const HttpRequest& request, const S3Settings& settings) {
  curl_slist* list = nullptr;
  auto add = [&](const std::string& line) { list = curl_slist_append(list, line.c_str()); };
  for (const std::string& line : request.headers) add(line);
  if (!request.is_signed) return {list, curl_slist_free_all};
  add("x-amz-content-sha256: " + sha256_hex(request.body));
  if (!settings.credentials.session_token.empty())
    add("x-amz-security-token: " + settings.credentials.session_token);
  return {list, curl_slist_free_all};
}

void set_method(CURL* curl, Transfer& t) {
  const HttpRequest& request = t.request;
  if (request.method == "HEAD") {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT") {
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, give_body);
    curl_easy_setopt(curl, CURLOPT_READDATA, &t);
    curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, seek_body);
    curl_easy_setopt(curl, CURLOPT_SEEKDATA, &t);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  } else if (request.method == "POST") {
    curl_easy_setopt(curl, CURLOPT_POST, 1L);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
  } else if (request.method != "GET") {
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  if (!request.range.empty()) curl_easy_setopt(curl, CURLOPT_RANGE, request.range.c_str());
}

void set_limits(CURL* curl, Transfer& t) {
  const HttpLimits& limits = t.limits;
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(limits.connect_timeout_ms));
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(limits.request_timeout_ms));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(limits.stall_timeout_s));
  curl_easy_setopt(curl, CURLOPT_MAX_SEND_SPEED_LARGE,
                   static_cast<curl_off_t>(limits.send_bytes_per_s_max));
  curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);  // do not wait for a resolver that hangs
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &t);
}

void set_server(CURL* curl, const HttpRequest& request, const S3Settings& settings) {
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, open_socket);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L);
  curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 2L);
  if (!settings.ca_bundle.empty())
    curl_easy_setopt(curl, CURLOPT_CAINFO, settings.ca_bundle.c_str());
  if (request.direct) curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  if (!request.is_signed) return;
  curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, ("aws:amz:" + settings.region + ":s3").c_str());
  curl_easy_setopt(curl, CURLOPT_USERNAME, settings.credentials.access_key_id.c_str());
  curl_easy_setopt(curl, CURLOPT_PASSWORD, settings.credentials.secret_access_key.c_str());
}

HttpAnswer::Failure failure_of(CURLcode code, const Transfer& t) {
  if (t.was_stopped) return HttpAnswer::Failure::stopped;
  if (t.too_large) return HttpAnswer::Failure::malformed;
  switch (code) {
    case CURLE_OK:
      return HttpAnswer::Failure::none;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return HttpAnswer::Failure::certificate;
    default:
      return HttpAnswer::Failure::network;
  }
}

}  // namespace

std::string sha256_hex(std::span<const char> data) {
  unsigned char hash[crypto_hash_sha256_BYTES];
  crypto_hash_sha256(hash, reinterpret_cast<const unsigned char*>(data.data()), data.size());
  char hex[2 * sizeof hash + 1];
  return sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
}

std::string HttpAnswer::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpClient::~HttpClient() {
  for (void* handle : idle_) curl_easy_cleanup(handle);
}

void* HttpClient::take() {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) return nullptr;
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return curl_easy_init();
  void* handle = idle_.back();
  idle_.pop_back();
  return handle;
}

void HttpClient::give_back(void* handle) {
  curl_easy_reset(handle);  // drops the credentials, keeps the connection
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kIdleMax)
    idle_.push_back(handle);
  else
    curl_easy_cleanup(handle);
}

HttpAnswer HttpClient::send(const HttpRequest& request, const S3Settings& settings,
                            const HttpLimits& limits) {
  CURL* curl = take();
  if (!curl) return {.failure_text = "libcurl cannot be initialised"};
  Transfer t{curl, request, limits, {}};
  char error[CURL_ERROR_SIZE] = "";
  const Headers headers = headers_of(request, settings);
  set_server(curl, request, settings);
  set_limits(curl, t);
  set_method(curl, t);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &t);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &t);
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &t.answer.status);
  t.answer.failure = failure_of(code, t);
  if (code != CURLE_OK) t.answer.failure_text = *error ? error : curl_easy_strerror(code);
  if (t.too_large) t.answer.failure_text = "the answer has more bytes than it may have";
  give_back(curl);
  return std::move(t.answer);
}

}  // namespace simplescale
