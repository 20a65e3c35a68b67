// HTTP for people and monitoring: /healthz, /status, /metrics, / (a page), and the run's records.
//
// Runs in a process of its own, a child of the supervisor's (app/processes/http_process.hpp). It
// reads the run's folder as anybody could, so it can change nothing, and no request, however slow
// or hostile, reaches an actor. Answers GET and HEAD of fixed paths only.
#pragma once

#include <memory>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // taken: any other that is free
  RunFolder run;
};

class HttpServer {
 public:
  /// Listens and answers until it is destroyed. unavailable: no port at that address.
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options);
  ~HttpServer();
  const std::string& url() const { return url_; }

 private:
  HttpServer() = default;
  struct Parts;
  std::unique_ptr<Parts> parts_;
  std::string url_;
};

}  // namespace simplescale
