// Only requests that have the token and name this server are answered.
// The Prometheus metrics of a run.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/run/run_key.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"
#include "tools/http/access.hpp"
#include "tools/http/prometheus.hpp"

using namespace simplescale;
using nlohmann::json;

TEST_CASE("http access: a request must name this server, not one that points at its address") {
  for (const char* host : {"127.0.0.1:80", "localhost", "LocalHost:8000", "[::1]:8000", "10.0.0.7",
                           "gpu07:8000", "train.example.org"})
    CHECK_MESSAGE(allowed_host(host, "train.example.org", "GPU07"), host);
  for (const char* host : {"", ":80", "evil.example.org", "127.0.0.1.evil.org:80", "localhost.evil",
                           "gpu07.evil.org", "[::1", "[", "127.0.0.1@evil", "10.0.0", "0x7f.1"})
    CHECK_MESSAGE(allowed_host(host, "train.example.org", "gpu07") == (std::string(host) == "[::1"),
                  host);
  CHECK(!allowed_host("", "", ""));
}

TEST_CASE("http access: the token comes in the header or as a parameter, as a whole") {
  const std::string token(32, 'a');
  CHECK(has_token("Bearer " + token, "", token));
  CHECK(has_token("", token, token));
  for (const std::string& wrong : {std::string(), token.substr(1), token + "a",
                                   std::string(32, 'b'), "Bearer " + token, std::string(32, '\0')})
    CHECK(!has_token("", wrong, token));
  for (const std::string& wrong :
       std::vector<std::string>{"", token, "Basic " + token, "Bearer ", "Bearer"})
    CHECK(!has_token(wrong, "", token));
  CHECK(!has_token("Bearer ", "", ""));
  CHECK(!has_token("", "", ""));
}

TEST_CASE("http access: a token stays while its file is trusted and of this host and port") {
  const test::TempFolder folder;
  const RunFolder run{folder.path};
  REQUIRE(make_control(run).ok());
  REQUIRE(write_file_atomic(run.instance(), "abc").ok());
  const auto first = page_token(run, "h", 80), second = page_token(run, "h", 80);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first->size() == 32);
  CHECK(*first != *second);
  const std::string page = R"({"host":"h","port":80,"instance":"abc","token":")" + *first + "\"}";
  REQUIRE(write_file_atomic(run.http(), page).ok());
  CHECK(*page_token(run, "h", 80) == *first);
  CHECK(*page_token(run, "other", 80) != *first);
  CHECK(*page_token(run, "h", 81) != *first);  // another process may have port 80 now
  REQUIRE(write_file_atomic(run.instance(), "next").ok());
  CHECK(*page_token(run, "h", 80) == *first);     // the run was started again
  REQUIRE(chmod(run.http().c_str(), 0666) == 0);  // other users may have chosen it
  CHECK(*page_token(run, "h", 80) != *first);
  REQUIRE(chmod(run.http().c_str(), 0600) == 0);
  for (const char* wrong : {"", "[]", "{\"token\":\"short\"}", "{\"token\":7}",
                            "{\"host\":\"h\",\"port\":80,\"token\":\"short\"}"}) {
    REQUIRE(write_file_atomic(run.http(), wrong).ok());
    CHECK(page_token(run, "h", 80)->size() == 32);
  }
  std::filesystem::remove_all(run.path);
}

TEST_CASE("http access: a request that two programs could read in two ways is refused") {
  const std::string get = "GET /status?a=b HTTP/1.1\r\n", host = "Host: localhost\r\n";
  for (const std::string& good :
       {get + host, get, get + host + "Content-Length: 0\r\n", get + host + "Range: bytes=0-1\r\n",
        get + host + "X-Empty:\r\n", "HEAD / HTTP/1.0\r\n" + host, "BREW / HTTP/1.1\r\n" + host,
        get + host + "Cookie: a\r\nCookie: b\r\n"})
    CHECK_MESSAGE(wrong_head(good + "\r\n") == "", good);
  for (const std::string& bad :
       {get + host + host,
        get + host + "HOST: evil.example\r\n",
        get + host + "Content-Length: -1\r\n",
        get + host + "Content-Length: +1\r\n",
        get + host + "Content-Length:\r\n",
        get + host + "Content-Length: 1, 1\r\n",
        get + host + "Content-Length: 0x1\r\n",
        get + host + "Content-Length: 99999999999999999999\r\n",
        get + host + "Content-Length: 0\r\ncontent-length: 0\r\n",
        get + host + "Transfer-Encoding: chunked\r\n",
        get + host + "Content-Length: 0\r\nTransfer-Encoding: identity\r\n",
        get + host + "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
        get + " Host: localhost\r\n",
        get + "Host : localhost\r\n",
        get + "Host\r\n",
        get + host + "X: a\nHost: b\r\n",
        get + host + std::string("X: a\0b\r\n", 8),
        get + host + "X: a\rb\r\n",
        get + host + "X: a\r\n folded\r\n",
        "GET  / HTTP/1.1\r\n" + host,
        "GET / HTTP/1.1 \r\n" + host,
        "GET / HTTP/2.0\r\n" + host,
        "GET /\r\n" + host,
        "GET\r\n" + host,
        "\r\n" + host,
        "G\tT / HTTP/1.1\r\n" + host,
        "GET http://evil.example/ HTTP/1.1\r\n" + host,
        "GET / a HTTP/1.1\r\n" + host,
        std::string(100, '\xff') + "\r\n"})
    CHECK_MESSAGE(wrong_head(bad + "\r\n") != "", bad);
}

TEST_SUITE("prometheus") {
  TEST_CASE("prometheus: samples of a metric are grouped, labels are escaped") {
    const json trainer = {{"name", "n0.0"}, {"state", "training"}, {"slowness", 1.25}};
    const json down = {{"name", "n1.0"}, {"state", "down"}, {"slowness", nullptr}};
    const json status = {{"run", "a \"b\"\\\n"},
                         {"state", "training"},
                         {"step", 7},
                         {"loss", nullptr},
                         {"nodes",
                          {{{"name", "n0"}, {"state", "up"}, {"trainers", {trainer}}},
                           {{"name", "n1"}, {"state", "lost"}, {"trainers", {down}}}}}};
    const std::string text = prometheus_text(status, {{"step_ms", 12.5}});
    const std::string run = "run=\"a \\\"b\\\"\\\\\\n\"";
    CHECK(has(text, "# TYPE simplescale_step gauge\nsimplescale_step{" + run + "} 7\n"));
    CHECK(text.find("simplescale_step_milliseconds{" + run + "} 12.5\n") != std::string::npos);
    CHECK(text.find("simplescale_loss") == std::string::npos);
    CHECK(text.find("simplescale_nodes{" + run + ",state=\"lost\"} 1\nsimplescale_nodes{" + run +
                    ",state=\"up\"} 1\n") != std::string::npos);
    CHECK(has(text, "simplescale_trainer_up{" + run +
                        ",node=\"n0\",trainer=\"n0.0\"} 1\nsimplescale_trainer_up{" + run +
                        ",node=\"n1\",trainer=\"n1.0\"} 0\n# HELP"));
    CHECK(text.find("simplescale_trainer_slowness{" + run +
                    ",node=\"n0\",trainer=\"n0.0\"} 1.25\n") != std::string::npos);
  }

  TEST_CASE("prometheus: the validation loss of each source has the source's name") {
    const json status = {{"run", "r"}, {"val_losses", {{"web", 1.5}, {"code", nullptr}}}};
    const std::string text = prometheus_text(status, json());
    CHECK(has(text, "simplescale_val_loss_of_source{run=\"r\",source=\"web\"} 1.5\n"));
    CHECK(text.find("source=\"code\"") == std::string::npos);
    const json by = {{"run", "r"},
                     {"val_loss_at", {{"512", 2.5}}},
                     {"val_loss_by_position", {{"0", 5.5}, {"1", nullptr}}}};
    const std::string losses = prometheus_text(by, json());
    CHECK(has(losses, "simplescale_val_loss_at_length{run=\"r\",length=\"512\"} 2.5\n"));
    CHECK(has(losses, "simplescale_val_loss_by_position{run=\"r\",position=\"0\"} 5.5\n"));
    CHECK_FALSE(has(losses, "position=\"1\""));
  }

  TEST_CASE("prometheus: the scores of each task have the task's name") {
    const json status = {{"run", "r"},
                         {"tasks",
                          {{"a", {{"acc", 0.5}, {"acc_norm", 0.75}}},
                           {"b\"", {{"acc", 0.25}, {"byte_perplexity", 1.5}}}}}};
    const std::string text = prometheus_text(status, json());
    CHECK(has(text,
              "simplescale_task_accuracy{run=\"r\",task=\"a\"} 0.5\n"
              "simplescale_task_accuracy{run=\"r\",task=\"b\\\"\"} 0.25\n"));
    CHECK(has(text, "simplescale_task_byte_perplexity{run=\"r\",task=\"b\\\"\"} 1.5\n"));
    CHECK(text.find("word_perplexity") == std::string::npos);
  }

  TEST_CASE("prometheus: a document that is not a status gives no samples") {
    for (const json& odd : {json(), json(3), json::array({1, 2}), json{{"nodes", 3}, {"step", "x"}},
                            json{{"nodes", json::array({json(), json(4), json::object()})}}})
      CHECK(prometheus_text(odd, odd).find("simplescale_step{") == std::string::npos);
  }
}
