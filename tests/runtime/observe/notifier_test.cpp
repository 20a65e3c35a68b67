#include "runtime/observe/notifier.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "runtime/base/process.hpp"
#include "runtime/base/run_command.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;
using nlohmann::json;

TEST_CASE("notifier: at most so many notices in any period") {
  NoticeLimit limit(2, 1000);
  CHECK(limit.take(0));
  CHECK(limit.take(500));
  CHECK_FALSE(limit.take(999));
  CHECK(limit.take(1000));  // the first one is over
  CHECK_FALSE(limit.take(1499));
  CHECK(limit.take(1500));
}

TEST_CASE("notifier: a URL is called by curl, anything else by a shell") {
  CHECK(shell_text(notice_command("mail -s x me", 1)).find("mail") == std::string::npos);
  const std::string call = shell_text(notice_command("https://h/x?a=b", 1500));
  CHECK(call.starts_with("curl "));
  CHECK(call.find("--max-time 2 ") != std::string::npos);
  CHECK(call.ends_with("--config -"));
  CHECK(notice_input("mail -s x me", "{}\n") == "{}\n");
}

TEST_CASE("notifier: a URL gets the notice by POST, and no process shows the URL to other users") {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof at;
  REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&at), bytes) == 0);
  REQUIRE(listen(listener, 1) == 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&at), &bytes);
  const std::string secret = "secret-" + unique_id();
  const json notice = {{"kind", "recovered"}, {"reason", "it's \"a\\b\"\n\tc \xC3\xA9 'd' # @"}};
  Notifier notifier("http://127.0.0.1:" + std::to_string(ntohs(at.sin_port)) + "/" + secret);
  notifier.send(notice);
  constexpr int kDeadlineMs = 20'000;
  pollfd polled{listener, POLLIN, 0};
  REQUIRE(poll(&polled, 1, kDeadlineMs) == 1);
  const int fd = accept(listener, nullptr, nullptr);
  polled.fd = fd;
  std::string request;
  char chunk[4096];
  while (!request.ends_with("\n") || request.ends_with("\r\n")) {
    REQUIRE(poll(&polled, 1, kDeadlineMs) == 1);
    const ssize_t got = recv(fd, chunk, sizeof chunk, 0);
    REQUIRE(got > 0);
    request.append(chunk, static_cast<size_t>(got));
  }
  for (const auto& process : fs::directory_iterator("/proc")) {  // curl waits for the answer
    std::ifstream words(process.path() / "cmdline", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(words), {}};
    CHECK_MESSAGE(text.find(secret) == std::string::npos, text);
  }
  CHECK(request.starts_with("POST /" + secret + " HTTP/1.1\r\n"));
  CHECK(request.find("Content-Type: application/json\r\n") != std::string::npos);
  json got = json::parse(request.substr(request.find("\r\n\r\n") + 4));
  got.erase("skipped");
  CHECK(got == notice);
  const std::string_view answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
  CHECK(send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) == std::ssize(answer));
  close(fd);
  close(listener);
}

TEST_CASE("notifier: the command gets each notice as a line of JSON; too many are counted") {
  const test::TempFolder folder;
  const std::string file = folder / "notices";
  {
    Notifier notifier("cat >>" + file);
    for (int i = 0; i < 12; ++i) notifier.send({{"kind", "recovered"}, {"number", i}});
  }
  std::ifstream in(file);
  std::vector<json> notices;
  for (std::string line; std::getline(in, line);) notices.push_back(json::parse(line));
  REQUIRE(notices.size() == 10);
  for (size_t i = 0; i < notices.size(); ++i)
    CHECK(notices[i] == json{{"kind", "recovered"}, {"number", i}, {"skipped", 0}});
}

TEST_CASE("notifier: a command that fails or hangs holds nobody up for longer than its deadline") {
  Notifier failing("exit 3");
  failing.send({{"kind", "failed"}});
  failing.finish();
  Notifier hanging("sleep 1000", 50);
  hanging.send({{"kind", "failed"}});
  hanging.finish();  // returns
}

TEST_CASE("notifier: the command is on no command line of ours") {
  const test::TempFolder folder;
  const std::string file = folder / "notices";
  {
    Notifier notifier("cat /proc/$$/cmdline >" + file + "; env | grep -c T0PSECRET >>" + file);
    notifier.send({{"kind", "recovered"}});
  }
  const std::string words = test::contents(file);
  CHECK(words.starts_with(std::string("/bin/sh\0-c\0", 11)));
  CHECK(words.find("cmdline") == std::string::npos);
  CHECK(words.ends_with("0\n"));  // its own children do not have it, either
}
