// One HTTP request with libcurl, without retries; signed, unless it asks for credentials. Used in
// runtime/object_store/ only.
//
// libcurl 7.88 signs what it is given: neither does it sort or encode a query, nor does it send the
// header x-amz-content-sha256. The caller gives a URL in its canonical form, and this file adds the
// header.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/object_store/settings.hpp"

namespace simplescale {

struct HttpLimits {
  int64_t connect_timeout_ms = 10'000;
  int64_t stall_timeout_s = 20;         // without a byte in either direction
  int64_t request_timeout_ms = 60'000;  // from the connection to the last byte of the answer
  uint64_t send_bytes_per_s_max = 0;    // 0: no limit
  std::function<bool()> stopped;        // true: the request ends soon. Called often
};

struct HttpRequest {
  std::string method;  // GET, HEAD, PUT, POST or DELETE
  std::string url;     // its query is sorted and percent_encoded()
  std::vector<std::string> headers = {};
  std::span<const char> body = {};
  std::string range = {};     // "0-99": bytes, both ends included; "": the whole object
  std::span<char> into = {};  // GET: takes the body of a 2xx answer; empty: HttpAnswer::body does
  size_t body_bytes_max = 16 << 20;  // of the body of a 2xx answer
  bool is_signed = true;             // with the settings' credentials
  bool direct = false;               // through no proxy, whatever the environment says
};

struct HttpAnswer {
  enum class Failure : unsigned char {
    none,         // there is an answer of the server, whatever it says
    network,      // no connection, no answer, or half of one; may be temporary
    certificate,  // TLS: the server is not the one that it should be
    stopped,
    malformed,  // the answer is larger than it may be
  };
  Failure failure = Failure::network;
  std::string failure_text;
  long status = 0;
  std::string body;                            // of an error: its first 64 KiB
  size_t bytes = 0;                            // of the body that `into` or `body` took
  std::map<std::string, std::string> headers;  // by name in lower case
  std::string header(const std::string& name) const;
};

/// Keeps connections open between requests. Any thread; each request has a connection of its own.
class HttpClient {
 public:
  HttpClient() = default;
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();
  /// Blocks for at most limits.request_timeout_ms. Follows no redirect.
  HttpAnswer send(const HttpRequest& request, const S3Settings& settings, const HttpLimits& limits);

 private:
  void* take();
  void give_back(void* handle);
  std::mutex mutex_;
  std::vector<void*> idle_;
};

/// 64 hex digits.
std::string sha256_hex(std::span<const char> data);

}  // namespace simplescale
