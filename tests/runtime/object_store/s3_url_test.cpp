#include "runtime/object_store/s3_url.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

TEST_SUITE("s3_url") {
  TEST_CASE("a URL has a bucket and a key") {
    const auto url = parse_s3_url("s3://my-bucket.x/runs/a b/step-1/");
    REQUIRE(url.ok());
    CHECK(url->bucket == "my-bucket.x");
    CHECK(url->key == "runs/a b/step-1");
    CHECK(url->text() == "s3://my-bucket.x/runs/a b/step-1");
    CHECK(url->below("latest") == "runs/a b/step-1/latest");
    const auto bucket = parse_s3_url("s3://abc");
    REQUIRE(bucket.ok());
    CHECK(bucket->key.empty());
    CHECK(bucket->below("latest") == "latest");
  }

  TEST_CASE("what is no URL of an object is refused, and the error says why") {
    for (const auto& [text, why] : {std::pair{"http://abc/x", "s3://"},
                                    {"s3://", "bucket"},
                                    {"s3://ab/x", "bucket"},
                                    {"s3://-abc/x", "bucket"},
                                    {"s3://a..b/x", "bucket"},
                                    {"s3://user:pass@host/x", "no credentials"},
                                    {"s3://abc//x", "empty segment"},
                                    {"s3://abc/x//y", "empty segment"},
                                    {"s3://abc/../x", "\"..\""},
                                    {"s3://abc/x/.", "\".\""},
                                    {"s3://abc/a\nb", "control"}}) {
      const auto url = parse_s3_url(text);
      REQUIRE_MESSAGE(!url.ok(), text);
      CHECK(url.status().code() == Code::bad_config);
      CHECK_MESSAGE(url.status().message().find(why) != std::string::npos, url.status().message());
    }
  }

  TEST_CASE("names are encoded as signatures need it") {
    CHECK(percent_encoded("a b/~-_.é+*", true) == "a%20b/~-_.%C3%A9%2B%2A");
    CHECK(percent_encoded("a/b=c&d", false) == "a%2Fb%3Dc%26d");
  }
}
