#include "runtime/http/server.hpp"

#include <httplib.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/http/facts.hpp"
#include "runtime/http/lines.hpp"
#include "runtime/http/page.hpp"
#include "runtime/http/prometheus.hpp"

namespace simplescale {

namespace {

using nlohmann::json;

constexpr size_t kThreads = 16;  // a silent connection occupies one for kTimeoutS
constexpr int kTimeoutS = 2;
constexpr int kStaleS = 10;  // the supervisor writes its status every second

json status_of(const RunFolder& run) {
  const auto text = read_text(run.status());
  return text.ok() ? json::parse(*text, nullptr, false) : json();
}

/// The last complete line of a file as JSON; null without one.
json last_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const auto size = static_cast<size_t>(std::max<std::streamoff>(0, file.tellg()));
  std::string text(std::min<size_t>(size, 4096), '\0');
  file.seekg(static_cast<std::streamoff>(size - text.size()));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  const size_t end = text.rfind('\n');
  if (end == std::string::npos || end == 0) return {};
  const size_t before = text.rfind('\n', end - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  const json line = json::parse(text.substr(begin, end - begin), nullptr, false);
  return line.is_discarded() ? json() : line;
}

size_t number(const httplib::Request& request, const char* name) {
  return std::strtoull(request.get_param_value(name).c_str(), nullptr, 10);
}

/// Answers with lines of a file. The header X-Next has the offset behind them, for the next
/// request. Parameters: after, last, spread, as in LineRange.
void serve_lines(const std::string& path, const httplib::Request& request,
                 httplib::Response& response) {
  FileLines lines = read_lines(
      path, {number(request, "after"), number(request, "last"), number(request, "spread")});
  response.set_header("X-Next", std::to_string(lines.next));
  response.set_content(std::move(lines.text), "application/x-ndjson");
}

/// Answers with lines of the log of a node, trainer or supervisor: of=n1.0, and as above.
void serve_log(const RunFolder& run, const httplib::Request& request, httplib::Response& response) {
  const std::string path = log_path(run, request.get_param_value("of"));
  if (path.empty()) {
    response.status = 404;
    return response.set_content("there is no such log\n", "text/plain");
  }
  FileLines lines = read_lines(path, {number(request, "after"), number(request, "last"), 0});
  response.set_header("X-Next", std::to_string(lines.next));
  response.set_content(without_key(run, std::move(lines.text)), "text/plain; charset=utf-8");
}

/// Seconds since the supervisor last wrote status.json; -1: there is none.
int64_t status_age_s(const RunFolder& run) {
  struct stat file {};
  return stat(run.status().c_str(), &file) == 0 ? time(nullptr) - file.st_mtime : -1;
}

void serve_health(const RunFolder& run, httplib::Response& response) {
  const int64_t age_s = status_age_s(run);
  if (age_s >= 0 && age_s <= kStaleS) return response.set_content("ok\n", "text/plain");
  response.status = 503;
  response.set_content(
      age_s >= 0 ? "status is " + std::to_string(age_s) + " s old\n" : "no status\n", "text/plain");
}

void add_routes(httplib::Server& server, const HttpOptions& options) {
  const RunFolder& run = options.run;
  server.Get("/", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(page_html.data(), page_html.size(), "text/html; charset=utf-8");
  });
  server.Get("/healthz", [run](const httplib::Request&, httplib::Response& response) {
    serve_health(run, response);
  });
  server.Get("/status", [run](const httplib::Request&, httplib::Response& response) {
    auto text = read_text(run.status());
    response.set_header("X-Age", std::to_string(status_age_s(run)));  // seconds
    if (text.ok()) return response.set_content(text.take(), "application/json");
    response.status = 503;
    response.set_content(json{{"error", text.status().message()}}.dump(), "application/json");
  });
  server.Get("/metrics", [run](const httplib::Request&, httplib::Response& response) {
    response.set_content(prometheus_text(status_of(run), last_line(run.metrics())),
                         "text/plain; version=0.0.4; charset=utf-8");
  });
  server.Get("/metrics.jsonl", [run](const httplib::Request& request, httplib::Response& response) {
    serve_lines(run.metrics(), request, response);
  });
  server.Get("/events.jsonl", [run](const httplib::Request& request, httplib::Response& response) {
    serve_lines(run.events(), request, response);
  });
  server.Get("/health.jsonl", [run](const httplib::Request& request, httplib::Response& response) {
    serve_lines(run.health(), request, response);
  });
  server.Get("/log", [run](const httplib::Request& request, httplib::Response& response) {
    serve_log(run, request, response);
  });
  server.Get("/config", [run](const httplib::Request&, httplib::Response& response) {
    response.set_content(shown_config(run), "text/plain; charset=utf-8");
  });
  server.Get("/facts", [run, checkpoints = options.checkpoints](const httplib::Request&,
                                                                httplib::Response& response) {
    response.set_content(run_facts(run, checkpoints), "application/json");
  });
  server.set_default_headers(
      {{"X-Content-Type-Options", "nosniff"},
       {"Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src "
        "'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors "
        "'none'"},
       {"Cache-Control", "no-store"}});
}

}  // namespace

struct HttpServer::Parts {
  httplib::Server server;
  std::thread thread;
};

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options) {
  std::unique_ptr<HttpServer> http(new HttpServer);
  http->parts_ = std::make_unique<Parts>();
  httplib::Server& server = http->parts_->server;
  server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  server.set_read_timeout(kTimeoutS);  // per read; slower clients are disconnected
  server.set_write_timeout(5);
  server.set_keep_alive_timeout(kTimeoutS);
  server.set_keep_alive_max_count(1);  // an open web page would otherwise hold several threads
  server.set_payload_max_length(0);
  // Not httplib's default SO_REUSEPORT: two supervisors on a host would share the port.
  server.set_socket_options([](socket_t fd) {
    const int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  add_routes(server, options);
  int port = options.port;
  if (port == 0 || !server.bind_to_port(options.host, port)) {
    if (port != 0) log::warn("http: port {} is taken; using another", port);
    port = server.bind_to_any_port(options.host);
  }
  if (port < 0)
    return Status(Code::unavailable,
                  "metrics.http_host = \"" + options.host +
                      "\": no port can be used at this address; set it to an address "
                      "of this host");
  const bool bare_v6 = options.host.find(':') != std::string::npos;
  http->url_ = "http://" + (bare_v6 ? "[" + options.host + "]" : options.host) + ":" +
               std::to_string(port) + "/";
  http->parts_->thread = std::thread([&server] { server.listen_after_bind(); });
  // stop() has no effect until the thread runs. The socket listens already, so that is soon.
  for (int i = 0; i < 1000 && !server.is_running(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return http;
}

HttpServer::~HttpServer() {
  if (!parts_ || !parts_->thread.joinable()) return;
  parts_->server.stop();
  parts_->thread.join();
}

}  // namespace simplescale
