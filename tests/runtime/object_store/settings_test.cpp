#include <doctest/doctest.h>

#include <filesystem>

#include "runtime/object_store/given_credentials.hpp"
#include "runtime/object_store/s3_url.hpp"
#include "runtime/object_store/settings.hpp"
#include "tests/must.hpp"
#include "tests/runtime/object_store/server_fixture.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using namespace simplescale::test;

TEST_SUITE("object store settings") {
  TEST_CASE("the environment comes first") {
    const TempFolder home;
    home.write(".aws/credentials",
               "[default]\naws_access_key_id = FILE\naws_secret_access_key = filesecret\n");
    auto settings = must(s3_settings(environment_of({{"HOME", home.path},
                                                     {"AWS_ACCESS_KEY_ID", "ENV"},
                                                     {"AWS_SECRET_ACCESS_KEY", "envsecret"},
                                                     {"AWS_SESSION_TOKEN", "token"},
                                                     {"AWS_REGION", "eu-west-1"},
                                                     {"AWS_DEFAULT_REGION", "us-west-2"},
                                                     {"AWS_ENDPOINT_URL", "http://other:1"},
                                                     {"AWS_ENDPOINT_URL_S3", "https://minio:9000/"},
                                                     {"AWS_CA_BUNDLE", "/ca.pem"}})));
    CHECK(settings->credentials.access_key_id == "ENV");
    CHECK(settings->credentials.secret_access_key == "envsecret");
    CHECK(settings->credentials.session_token == "token");
    CHECK(settings->region == "eu-west-1");
    CHECK(settings->endpoint == "https://minio:9000");
    CHECK(settings->ca_bundle == "/ca.pem");
  }

  TEST_CASE("then the profile's two files") {
    const TempFolder home;
    home.write(".aws/credentials",
               "# comment\n[default]\naws_access_key_id=A\naws_secret_access_key=B\n"
               "[ work ]\naws_access_key_id = WORK\naws_secret_access_key = work/secret+=\n"
               "aws_session_token = T\n");
    home.write(".aws/config",
               "[default]\nregion = us-west-2\n\n[profile work]\nregion = eu-north-1\n"
               "endpoint_url = http://127.0.0.1:9000\ns3 =\n  region = nested\n");
    auto work = must(s3_settings(environment_of({{"HOME", home.path}, {"AWS_PROFILE", "work"}})));
    CHECK(work->credentials.access_key_id == "WORK");
    CHECK(work->credentials.secret_access_key == "work/secret+=");
    CHECK(work->credentials.session_token == "T");
    CHECK(work->region == "eu-north-1");
    CHECK(work->endpoint == "http://127.0.0.1:9000");
    auto other = must(s3_settings(environment_of({{"HOME", home.path}})));
    CHECK(other->credentials.access_key_id == "A");
    CHECK(other->region == "us-west-2");
    CHECK(other->endpoint.empty());
    auto elsewhere = must(s3_settings(
        environment_of({{"AWS_SHARED_CREDENTIALS_FILE", home.path + "/.aws/credentials"}})));
    CHECK(elsewhere->credentials.access_key_id == "A");
    CHECK(elsewhere->region == "us-east-1");
  }

  TEST_CASE("a profile's credential_process prints them") {
    const TempFolder home;
    const std::string program = home.write("a program", "#!/bin/sh\n. \"${0%/*}/answer\"\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    const auto configure = [&](const std::string& file, const std::string& more = "") {
      home.write(file, "[default]\n" + more + "credential_process = \"" + program +
                           "\" --name 'of the user'\nregion = eu-west-1\n");
    };
    const auto settings = [&] { return s3_settings(environment_of({{"HOME", home.path}})); };
    for (const char* file : {".aws/config", ".aws/credentials"}) {
      configure(file);
      home.write("answer",
                 "[ \"$2\" = 'of the user' ] || exit 1\n"
                 "echo '{\"Version\": 1, \"AccessKeyId\": \"ID\", \"SecretAccessKey\": \"hidden\","
                 " \"SessionToken\": \"T\", \"Expiration\": \"2026-11-25T00:00:00Z\"}'\n");
      const auto found = must(settings());
      CHECK(found->credentials.access_key_id == "ID");
      CHECK(found->credentials.secret_access_key == "hidden");
      CHECK(found->credentials.session_token == "T");
      CHECK(found->credentials.expires_s == 1'795'564'800);
      for (const auto& [answer, why] :
           {std::pair{"exit 3\n", "exit code 3"}, std::pair{"echo hidden\n", "did not print JSON"},
            std::pair{"echo '{\"Version\": 2, \"AccessKeyId\": \"ID\", "
                      "\"SecretAccessKey\": \"hidden\"}'\n",
                      "did not print JSON"}}) {
        home.write("answer", answer);
        const auto wrong = settings();
        REQUIRE_FALSE(wrong.ok());
        CHECK(wrong.status().code() == Code::bad_config);
        const std::string& message = wrong.status().message();
        CHECK_MESSAGE(message.find(why) != std::string::npos, message);
        CHECK_MESSAGE(message.find(home.path + "/" + file) != std::string::npos, message);
        CHECK_MESSAGE(message.find("hidden") == std::string::npos, message);
      }
      std::filesystem::remove(home.path + "/" + file);
    }
    configure(".aws/config", "aws_access_key_id = A\naws_secret_access_key = B\n");
    CHECK(settings()->credentials.access_key_id == "A");
  }

  TEST_CASE("errors say where, and never a secret") {
    const TempFolder home;
    const std::map<std::string, std::string> good = {{"HOME", home.path},
                                                     {"AWS_ACCESS_KEY_ID", "ID"},
                                                     {"AWS_SECRET_ACCESS_KEY", "hidden"},
                                                     {"AWS_EC2_METADATA_DISABLED", "True"}};
    const auto wrong = [&](std::map<std::string, std::string> changes, const std::string& why) {
      changes.insert(good.begin(), good.end());
      const auto settings = s3_settings(environment_of(changes));
      REQUIRE(!settings.ok());
      CHECK(settings.status().code() == Code::bad_config);
      const std::string message = settings.status().message();
      CHECK_MESSAGE(message.find(why) != std::string::npos, message);
      CHECK_MESSAGE(message.find("hidden") == std::string::npos, message);
    };
    wrong({{"AWS_ACCESS_KEY_ID", ""}, {"AWS_SECRET_ACCESS_KEY", ""}}, "no credentials");
    wrong({{"AWS_ACCESS_KEY_ID", ""}}, "only one");
    wrong({{"AWS_SECRET_ACCESS_KEY", "hidden\nnewline"}}, "control character");
    wrong({{"AWS_REGION", "a:b"}}, "AWS_REGION");
    wrong({{"AWS_ENDPOINT_URL_S3", "ftp://host"}}, "https://");
    wrong({{"AWS_ENDPOINT_URL_S3", "https://user:hidden@host"}}, "no password");
    wrong({{"AWS_ENDPOINT_URL_S3", "https://host/?hidden=1"}}, "no plain URL");
    const auto without = [&](std::map<std::string, std::string> changes, const std::string& why) {
      changes.insert({{"AWS_ACCESS_KEY_ID", ""}, {"AWS_SECRET_ACCESS_KEY", ""}});
      wrong(changes, why);
    };
    without({{"AWS_WEB_IDENTITY_TOKEN_FILE", home.path + "/none"}}, "AWS_ROLE_ARN");
    without({{"AWS_WEB_IDENTITY_TOKEN_FILE", home.path + "/none"}, {"AWS_ROLE_ARN", "arn"}},
            "AWS_WEB_IDENTITY_TOKEN_FILE: ");
    home.write("token", "two\nhidden lines\n");
    without({{"AWS_WEB_IDENTITY_TOKEN_FILE", home.path + "/token"}, {"AWS_ROLE_ARN", "arn"}},
            "holds no token");
    // A token goes to this host, or over TLS.
    for (const char* url : {"http://example.com/hidden", "http://127.0.0.1.example.com/",
                            "http://127.0.0.1@example.com/", "ftp://127.0.0.1/", "/x"})
      without({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", url}}, "it must be https://");
    without({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:9/"},
             {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "a\r\nhidden: b"}},
            "more than one line");
    without({{"AWS_EC2_METADATA_DISABLED", "false"},
             {"AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://user:hidden@h"}},
            "AWS_EC2_METADATA_SERVICE_ENDPOINT");
  }

  TEST_CASE("times at which credentials expire") {
    CHECK(unix_time_of("1970-01-02T00:00:01Z") == 86'401);
    CHECK(unix_time_of("2026-11-25T06:30:00Z") == 1'795'588'200);
    CHECK(unix_time_of("2026-11-25T06:30:00.123456Z") == 1'795'588'200);
    CHECK(unix_time_of("2026-11-25T08:30:00+02:00") == 1'795'588'200);
    CHECK(unix_time_of("2026-11-25T01:00:00-05:30") == 1'795'588'200);
    for (const char* text : {"", "tomorrow", "2026-11-25", "2026-11-25T06:30:00", "never Z",
                             "2026-11-25T06:30:00Z!", "2026-11-25T06:30:00+2"})
      CHECK_MESSAGE(unix_time_of(text) == 0, text);
  }

  TEST_CASE("credentials are asked for anew before they expire, once a minute") {
    CHECK_FALSE(expires_soon(0, 1'000'000, 0));
    CHECK_FALSE(expires_soon(10'000, 9'699, 0));
    CHECK(expires_soon(10'000, 9'700, 0));
    CHECK(expires_soon(10'000, 11'000, 0));
    CHECK_FALSE(expires_soon(10'000, 9'759, 9'700));
    CHECK(expires_soon(10'000, 9'760, 9'700));
  }
}

TEST_SUITE("s3_url") {
  TEST_CASE("a URL has a bucket and a key") {
    const auto url = must(parse_s3_url("s3://my-bucket.x/runs/a b/step-1/"));
    CHECK(url->bucket == "my-bucket.x");
    CHECK(url->key == "runs/a b/step-1");
    CHECK(url->text() == "s3://my-bucket.x/runs/a b/step-1");
    CHECK(url->below("latest") == "runs/a b/step-1/latest");
    const auto bucket = must(parse_s3_url("s3://abc"));
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
      CHECK(says(url.status(), Code::bad_config, why));
    }
  }

  TEST_CASE("names are encoded as signatures need it") {
    CHECK(percent_encoded("a b/~-_.é+*", true) == "a%20b/~-_.%C3%A9%2B%2A");
    CHECK(percent_encoded("a/b=c&d", false) == "a%2Fb%3Dc%26d");
  }
}
