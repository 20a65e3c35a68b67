#include "tools/http/server.hpp"

#include <httplib.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/json_text.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/config/secrets.hpp"
#include "runtime/run/notice.hpp"
#include "tools/http/access.hpp"
#include "tools/http/connections.hpp"
#include "tools/http/facts.hpp"
#include "tools/http/lines.hpp"
#include "tools/http/page.hpp"
#include "tools/http/prometheus.hpp"

namespace simplescale {

namespace {

using nlohmann::json;

json status_of(const RunFolder& run) {
  return json_of(read_text(run.status(), RunFolder::kFileBytesMax));
}

/// The last complete line of a file as JSON; null without one.
json last_line(const std::string& path) {
  std::ifstream file = open_lines(path);
  if (!file.is_open()) return {};
  const auto size =
      static_cast<size_t>(std::max<std::streamoff>(0, file.seekg(0, std::ios::end).tellg()));
  std::string text(std::min<size_t>(size, 4096), '\0');
  file.seekg(static_cast<std::streamoff>(size - text.size()));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  const size_t end = text.rfind('\n');
  if (end == std::string::npos || end == 0) return {};
  const size_t before = text.rfind('\n', end - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  const json line = parse_json(text.substr(begin, end - begin));
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

void serve_health(const RunFolder& run, httplib::Response& response) {
  const int64_t age_s = status_age_s(run);
  if (age_s >= 0 && age_s <= kStatusStaleS) return response.set_content("ok\n", "text/plain");
  response.status = 503;
  response.set_content(
      age_s >= 0 ? "status is " + std::to_string(age_s) + " s old\n" : "no status\n", "text/plain");
}

/// Answers a request that may not read the run; false if it may.
bool refuse(const HttpOptions& options, const std::string& machine, const httplib::Request& request,
            httplib::Response& response) {
  if (!allowed_host(request.get_header_value("Host"), options.host, machine)) {
    response.status = 421;  // Misdirected Request
    response.set_content("this is not the server that the request names\n", "text/plain");
    return true;
  }
  if (request.method != "GET" && request.method != "HEAD") {
    response.status = 405;
    response.set_header("Allow", "GET, HEAD");
    response.set_content("the page of a run only answers GET and HEAD\n", "text/plain");
    return true;
  }
  if (request.path == "/healthz" || has_token(request.get_header_value("Authorization"),
                                              request.get_param_value("token"), options.token))
    return false;
  response.status = 401;
  response.set_header("WWW-Authenticate", "Bearer");
  response.set_content(
      "the token is missing or wrong: `simplescale status RUN` shows the address "
      "with it\n",
      "text/plain");
  return true;
}

/// Every error has a text.
void add_errors(httplib::Server& server) {
  server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
    if (!response.body.empty()) return;
    response.set_content(response.status == 404
                             ? "there is nothing at this path; the page of the run is at /\n"
                             : "error " + std::to_string(response.status) + "\n",
                         "text/plain");
  });
}

/// The options outlive the server.
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
    if (const std::string notice = notice_of(run, status_of(run)); !notice.empty())
      response.set_header("X-Notice",
                          json(notice).dump(-1, ' ', true, json::error_handler_t::replace));
    if (text.ok()) return response.set_content(text.take(), "application/json");
    response.status = 503;
    response.set_content(json_text({{"error", text.status().message()}}), "application/json");
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
    response.body = shown_events(response.body);
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
       {"Cache-Control", "no-store"},
       {"Referrer-Policy", "no-referrer"}});  // the page's address has the token
  char machine[256] = "";
  gethostname(machine, sizeof machine - 1);
  server.set_pre_routing_handler([&options, machine = std::string(machine)](
                                     const httplib::Request& request, httplib::Response& response) {
    return refuse(options, machine, request, response)
               ? httplib::Server::HandlerResponse::Handled
               : httplib::Server::HandlerResponse::Unhandled;
  });
}

}  // namespace

namespace {

/// A request that has been read, and the answer to it.
class TextStream : public httplib::Stream {
 public:
  explicit TextStream(const std::string& request) : request_(request) {}
  bool is_readable() const override { return read_ < request_.size(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t bytes) override {
    const size_t got = request_.copy(to, bytes, read_);
    read_ += got;
    return static_cast<ssize_t>(got);
  }
  ssize_t write(const char* from, size_t bytes) override {
    answer.append(from, bytes);
    return static_cast<ssize_t>(bytes);
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip = "", port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip = "", port = 0; }
  socket_t socket() const override { return INVALID_SOCKET; }
  std::string answer;

 private:
  const std::string& request_;
  size_t read_ = 0;
};

/// Removes the headers Range: with many ranges the answer has many times the bytes of the page.
void drop_ranges(std::string& request) {
  constexpr std::string_view name = "\nrange:";
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  for (auto found = std::ranges::search(request, name, same); !found.empty();
       found = std::ranges::search(request, name, same))
    request.erase(found.begin(), std::find(found.begin() + 1, request.end(), '\n'));
}

std::string refusal(const std::string& wrong) {
  const std::string text = wrong + " is not understood\n";
  return "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: "
         "text/plain\r\nContent-Length: " +
         std::to_string(text.size()) + "\r\n\r\n" + text;
}

/// Parses requests and finds their answers, by httplib. HttpConnections reads and writes them.
class Router : public httplib::Server {
 public:
  std::string answer(std::string request) {
    if (const std::string wrong = wrong_head(request); !wrong.empty()) return refusal(wrong);
    drop_ranges(request);
    TextStream stream(request);
    bool closed = false;
    process_request(stream, true, closed, nullptr);
    return std::move(stream.answer);
  }
};

}  // namespace

struct HttpServer::Parts {
  HttpOptions options;
  Router router;
  std::unique_ptr<HttpConnections> connections;  // destroyed first: it calls the router
};

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options) {
  std::unique_ptr<HttpServer> http(new HttpServer);
  http->parts_ = std::make_unique<Parts>();
  http->parts_->options = options;
  Router& router = http->parts_->router;
  router.set_payload_max_length(0);
  add_errors(router);
  add_routes(router, http->parts_->options);
  const auto answer = [&router](const std::string& request) { return router.answer(request); };
  auto connections = HttpConnections::listen(options.host, options.port, answer);
  if (!connections.ok() && options.port != 0) {
    log::warn("http: port {} is taken; using another, with a new token", options.port);
    // Whoever has the port gets the old token with the next request of a bookmark.
    SS_ASSIGN(http->parts_->options.token, new_page_token());
    connections = HttpConnections::listen(options.host, 0, answer);
  }
  if (!connections.ok())
    return Status(Code::unavailable,
                  "metrics.http_host = \"" + options.host +
                      "\": no port can be used at this address; set it to an address "
                      "of this host");
  http->parts_->connections = connections.take();
  const bool bare_v6 = options.host.find(':') != std::string::npos;
  http->url_ = "http://" + (bare_v6 ? "[" + options.host + "]" : options.host) + ":" +
               std::to_string(http->parts_->connections->port()) + "/";
  return http;
}

HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  return parts_->connections->port();
}

const std::string& HttpServer::token() const {
  return parts_->options.token;
}

}  // namespace simplescale
