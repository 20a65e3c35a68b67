// The HTTP server of a run, for users and monitoring: / (a web page), the files that it shows, and
// /metrics and /healthz (docs/operations.md).
//
// Runs in a process of its own, a child of the supervisor's (app/processes/http_process.hpp). It
// only reads the run's folder: no request, however slow or hostile, can reach an actor or change
// the run. Answers only GET and HEAD, only of these paths. Slow clients
// delay no other client (connections.hpp).
#pragma once

#include <memory>
#include <string>

#include "runtime/base/status.hpp"
#include "runtime/run/run_folder.hpp"

namespace simplescale {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // if it is taken: another free port, and a new token
  RunFolder run;
  std::string checkpoints;  // the folder of the run's checkpoints
  std::string token;        // that every request but /healthz needs (access.hpp)
};

class HttpServer {
 public:
  /// Starts listening. The server answers on threads of its own until it is destroyed. unavailable:
  /// no port can be used at options.host.
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options);
  ~HttpServer();
  /// The server's address, without the token.
  const std::string& url() const { return url_; }
  int port() const;
  /// That of the options, unless their port was taken.
  const std::string& token() const;

 private:
  HttpServer() = default;
  struct Parts;
  std::unique_ptr<Parts> parts_;
  std::string url_;
};

}  // namespace simplescale
