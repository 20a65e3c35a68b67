// Only requests that have the token and name this server are answered.
#include "runtime/http/access.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/run/run_key.hpp"

using namespace simplescale;

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

TEST_CASE("http access: a token stays while its file is trusted and of this start and host") {
  char name[] = "/tmp/simplescale-token-XXXXXX";
  const RunFolder run{mkdtemp(name)};
  REQUIRE(make_control(run).ok());
  REQUIRE(write_file_atomic(run.instance(), "abc").ok());
  const auto first = page_token(run, "h"), second = page_token(run, "h");
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first->size() == 32);
  CHECK(*first != *second);
  REQUIRE(
      write_file_atomic(run.http(), R"({"host":"h","instance":"abc","token":")" + *first + "\"}")
          .ok());
  CHECK(*page_token(run, "h") == *first);
  CHECK(*page_token(run, "other") != *first);
  REQUIRE(write_file_atomic(run.instance(), "next").ok());
  CHECK(*page_token(run, "h") != *first);
  REQUIRE(write_file_atomic(run.instance(), "abc").ok());
  REQUIRE(chmod(run.http().c_str(), 0666) == 0);  // other users may have chosen it
  CHECK(*page_token(run, "h") != *first);
  REQUIRE(chmod(run.http().c_str(), 0600) == 0);
  for (const char* wrong : {"", "[]", "{\"token\":\"short\"}", "{\"token\":7}"}) {
    REQUIRE(write_file_atomic(run.http(), wrong).ok());
    CHECK(page_token(run, "h")->size() == 32);
  }
  std::filesystem::remove_all(run.path);
}
