// Requests to the HTTP server of a supervisor, each on its own connection.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/fuzz/driver.hpp"
#include "tests/temp_folder.hpp"
#include "tools/http/server.hpp"

using namespace simplescale;

namespace {

int port() {
  static const test::TempFolder folder;
  static const std::unique_ptr<HttpServer> server = [] {
    folder.write("control/status.json", R"({"run":"r","nodes":[]})");
    folder.write("metrics.jsonl", "{\"step\":1}\n");
    auto started = HttpServer::start({"127.0.0.1", 0, {folder.path}, folder / "checkpoints", "t"});
    if (!started.ok()) std::abort();
    return started.take();
  }();
  const std::string& url = server->url();
  return std::atoi(url.c_str() + url.rfind(':') + 1);
}

}  // namespace

static void run(const uint8_t* data, size_t bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port()));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0)
    std::abort();  // the server has ended
  (void)!send(fd, data, bytes, MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  char answer[4096];
  while (recv(fd, answer, sizeof answer, 0) > 0) {
  }
  close(fd);
}

static std::vector<std::string> seeds() {
  std::vector<std::string> made;
  for (const char* path :
       {"/", "/status", "/metrics", "/healthz", "/metrics.jsonl?after=3", "/metrics.jsonl?spread=3",
        "/metrics.jsonl?last=9", "/log?of=n0.0&last=9", "/log?of=..%2Fcontrol%2Fkey", "/config",
        "/facts", "/health.jsonl?spread=3"})
    made.push_back(
        "GET " + std::string(path) +
        " HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer t\r\nConnection: close\r\n\r\n");
  made.push_back(
      "POST /status?token=t HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nConnection: "
      "close\r\n\r\nhello");
  made.push_back(
      "GET /status?token=t HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: "
      "chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
  made.push_back(
      "GET /?token=t HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-5,7-9\r\nAccept-Encoding: gzip, "
      "br\r\n\r\n");
  return made;
}

static const FuzzTarget target("http", run, seeds);
