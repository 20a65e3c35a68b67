// Clients that want to keep others out of the HTTP server, or to get more bytes than they send.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/process.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"
#include "tools/http/connections.hpp"
#include "tools/http/server.hpp"

using namespace simplescale;

namespace {

constexpr int kDeadlineMs = 20'000;

struct Served {
  Served() {
    std::filesystem::create_directories(folder / "control");
    auto started =
        must(HttpServer::start({"127.0.0.1", 0, {folder.path}, folder / "checkpoints", "t"}));
    server = started.take();
    port = std::atoi(server->url().c_str() + server->url().rfind(':') + 1);
  }
  explicit Served(int at) : port(at) {}
  int connect() const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) return fd;
    close(fd);
    return -1;
  }
  /// The whole answer; "" if the server closes the connection or the deadline passes before it.
  std::string ask(const std::string& request) const {
    const int fd = connect();
    if (fd < 0) return "";
    (void)!send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    std::string answer;
    char chunk[4096];
    pollfd polled{fd, POLLIN, 0};
    while (poll(&polled, 1, kDeadlineMs) == 1) {
      const ssize_t got = recv(fd, chunk, sizeof chunk, 0);
      if (got <= 0) break;
      answer.append(chunk, static_cast<size_t>(got));
    }
    close(fd);
    return answer;
  }
  const test::TempFolder folder;
  std::unique_ptr<HttpServer> server;
  int port = 0;
};

}  // namespace

TEST_CASE("http: clients that connect without end and send nothing keep no other client out") {
  const Served served;
  std::atomic<bool> stop = false;
  std::vector<std::thread> floods;
  for (int i = 0; i < 3; ++i)
    floods.emplace_back([&] {
      std::deque<int> open;
      while (!stop) {
        if (const int fd = served.connect(); fd >= 0) open.push_back(fd);
        if (open.size() < 64) continue;
        close(open.front());
        open.pop_front();
      }
      for (const int fd : open) close(fd);
    });
  int answered = 0;
  for (int i = 0; i < 60; ++i)
    answered +=
        served.ask("GET /config HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with("HTTP/1.1 401");
  stop = true;
  for (std::thread& flood : floods) flood.join();
  CHECK(answered == 60);
}

TEST_CASE("http: requests of clients that have gone away are not kept while answers are slow") {
  std::mutex mutex;
  std::condition_variable released;
  bool slow = true;
  int asked = 0;
  auto made = HttpConnections::listen("127.0.0.1", 0, [&](const std::string&) {
    std::unique_lock lock(mutex);
    ++asked;
    released.wait(lock, [&] { return !slow; });
    return std::string("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  });
  REQUIRE(made.ok());
  const auto release = [&] {
    {
      std::lock_guard lock(mutex);
      slow = false;
    }
    released.notify_all();
  };
  const std::shared_ptr<void> at_end(nullptr, [&](void*) { release(); });
  Served client((*made)->port());
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  for (int i = 0; i < 3000; ++i) {
    const int fd = client.connect();
    REQUIRE(fd >= 0);
    (void)!send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    const linger reset{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (i % 2) std::this_thread::yield();
    close(fd);
  }
  // Answered by the thread of the connections, which has seen all earlier ones by then.
  CHECK(client.ask(std::string(9'000, 'x')).starts_with("HTTP/1.1 431"));
  release();
  CHECK(client.ask(request).starts_with("HTTP/1.1 200"));
  std::lock_guard lock(mutex);
  CHECK(asked <= 4 + 96 + 1);  // threads that answer, connections, and the last one
}

TEST_CASE("http: ranges do not make an answer larger than the page") {
  const Served served;
  std::string many = "-";
  while (many.size() < 7'000) many += ",-";
  for (const std::string name : {"Range", "range", "X: y\nRANGE"}) {
    const std::string answer = served.ask("GET /config HTTP/1.1\r\nHost: localhost\r\n" + name +
                                          ": bytes=" + many + "\r\n\r\n");
    const bool wrong = name.find('\n') != std::string::npos;  // httplib would take it for a header
    CHECK(answer.starts_with(wrong ? "HTTP/1.1 400" : "HTTP/1.1 401"));
    CHECK(answer.size() < 2'000);
  }
}

TEST_CASE("http: a request with two hosts or a length that is none is answered with 400") {
  const Served served;
  const std::string begin = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n";
  CHECK(served.ask(begin + "\r\n").starts_with("HTTP/1.1 503"));
  for (const char* header : {"Host: evil.example\r\n", "Content-Length: -1\r\n"})
    CHECK(served.ask(begin + header + "\r\n").starts_with("HTTP/1.1 400"));
}
