#include "runtime/object_store/object_store.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <thread>

#include "runtime/base/splitmix64.hpp"
#include "tests/must.hpp"
#include "tests/runtime/object_store/shared_server.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using namespace simplescale::test;
using nlohmann::json;

namespace {

/// Uploads in parts of 5 MiB.
Status upload(ObjectStore& store, const std::string& key, const std::string& bytes) {
  SS_ASSIGN(const MultipartUpload upload, store.begin_upload(key));
  std::vector<std::string> etags;
  for (size_t begin = 0; begin < bytes.size(); begin += kPartBytesMin) {
    const std::span<const char> part(bytes.data() + begin,
                                     std::min(kPartBytesMin, bytes.size() - begin));
    SS_ASSIGN(std::string etag, store.upload_part(upload, etags.size() + 1, part));
    etags.push_back(std::move(etag));
  }
  return store.complete_upload(upload, etags, bytes.size());
}

}  // namespace

TEST_SUITE("object store") {
  TEST_CASE("an object is put, read whole and in ranges, listed and removed") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    const std::string bytes = random_bytes(300'000, 1);
    const auto etag = must(store.put("basic/a", bytes));
    const auto head = must(store.head("basic/a"));
    CHECK(head->bytes == bytes.size());
    CHECK(head->etag == *etag);
    const auto got = must(store.get("basic/a", 1 << 20));
    CHECK(got->text == bytes);
    std::string range(1000, 0);
    REQUIRE(store.get_range("basic/a", 12'345, range, *etag).ok());
    CHECK(range == bytes.substr(12'345, 1000));
    REQUIRE(store.put("basic/b/c", std::string("x")).ok());
    const auto listed = must(store.list("basic/"));
    REQUIRE(listed->size() == 2);
    CHECK(listed->at(0).key == "basic/a");
    CHECK(listed->at(0).bytes == bytes.size());
    CHECK(listed->at(0).etag == *etag);
    CHECK(listed->at(1).key == "basic/b/c");
    CHECK(store.remove("basic/a").ok());
    CHECK(store.remove("basic/a").ok());
    CHECK(store.head("basic/a").status().code() == Code::not_found);
  }

  // The server signs each request again with botocore and compares.
  TEST_CASE("names of every kind are signed as Amazon's library signs them") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    for (const std::string name :
         {"a b", "a+b", "ü/é", "100%", "a=b&c", "*'()!~", "k:v@w,x;y", "#?", "\"<&>\"", "a%20b"}) {
      CAPTURE(name);
      const std::string key = "names/" + name;
      const auto put = must(store.put(key, name));
      const auto got = must(store.get(key, 100));
      CHECK(got->text == name);
      const auto listed = must(store.list(key));
      REQUIRE(listed->size() == 1);
      CHECK(listed->at(0).key == key);
    }
  }

  TEST_CASE("a list of more than one page is complete") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    for (int i = 0; i < 1001; ++i)
      REQUIRE(store.put("many/" + std::to_string(10'000 + i), std::string("x")).ok());
    const auto listed = must(store.list("many/"));
    REQUIRE(listed->size() == 1001);
    CHECK(listed->back().key == "many/11000");
  }

  TEST_CASE("a hostile list ends, names what was asked for only, and puts nothing in a header") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    const auto answers = [&](const std::string& match, const std::string& body) {
      s3->set_faults({{{"match", match}, {"kind", "body"}, {"body", body}}});
    };
    const auto objects = [&](const std::string& inside) {
      answers("list-type=2", "<ListBucketResult>" + inside + "</ListBucketResult>");
      return store.list("hostile/");
    };
    const auto object = [](const std::string& key, const std::string& etag) {
      return "<Contents><Key>" + key + "</Key><Size>1</Size><ETag>" + etag + "</ETag></Contents>";
    };
    const auto listed = must(objects(object("x", "e") + object("hostile/a", "e")));
    REQUIRE(listed->size() == 1);
    CHECK(listed->front().key == "hostile/a");
    CHECK(has(objects(object("hostile/a", "e&#13;&#10;x-amz-acl: public-read")).status(), "ETag"));
    CHECK(has(objects(object("hostile/a", std::string(300, 'e'))).status(), "ETag"));
    CHECK(has(objects(object("hostile/" + std::string(1024, 'a'), "e")).status(), "key"));
    const std::string more = "<IsTruncated>true</IsTruncated>";
    CHECK(has(objects(more + "<NextContinuationToken>t</NextContinuationToken>").status(),
              "does not end"));
    answers("uploads", "<ListMultipartUploadsResult>" + more +
                           "<NextKeyMarker>k</NextKeyMarker></ListMultipartUploadsResult>");
    CHECK(has(store.uploads("hostile/").status(), "does not end"));
    StoreLimits no_time;
    no_time.list_deadline_ms = 0;
    CHECK(has(store.with_limits(no_time)->uploads("hostile/").status(), "took too long"));
    for (const auto& [key, id] : {std::pair{std::string(1025, 'k'), std::string("i")},
                                  {"", "i"},
                                  {"hostile/a", std::string(1025, 'i')},
                                  {"hostile/a", ""}}) {
      answers("uploads", "<ListMultipartUploadsResult><Upload><Key>" + key + "</Key><UploadId>" +
                             id + "</UploadId></Upload></ListMultipartUploadsResult>");
      CHECK(has(store.uploads("hostile/").status(), "at most 1024 bytes"));
    }
    s3->clear_faults();
  }

  TEST_CASE("a conditional put changes nothing if its condition does not hold") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    const auto first = must(store.put("latest", std::string("1"), {.if_absent = true}));
    CHECK(store.put("latest", std::string("2"), {.if_absent = true}).status().code() ==
          Code::mismatch);
    const auto second = must(store.put("latest", std::string("2"), {.if_etag = *first}));
    CHECK(store.put("latest", std::string("3"), {.if_etag = *first}).status().code() ==
          Code::mismatch);
    CHECK(store.get("latest", 10)->text == "2");
    std::string out(1, 0);
    CHECK(store.get_range("latest", 0, out, *first).code() == Code::mismatch);
  }

  TEST_CASE("a conditional put whose answer was lost has succeeded") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    s3->set_faults({{{"match", "PUT /bucket/lost"}, {"kind", "lost"}, {"times", 1}}});
    const auto put = must(store.put("lost", std::string("mine"), {.if_absent = true}));
    CHECK(*put == store.head("lost")->etag);
    // Of another writer it has not.
    s3->set_faults({{{"match", "PUT /bucket/lost"}, {"kind", "refuse"}, {"times", 1}}});
    CHECK(store.put("lost", std::string("yours"), {.if_absent = true}).status().code() ==
          Code::mismatch);
    CHECK(store.get("lost", 10)->text == "mine");
  }

  TEST_CASE("a multipart upload appears as a whole, and is found until then") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    const std::string bytes = random_bytes(kPartBytesMin + 1000, 2);
    const auto left = must(store.begin_upload("parts/left"));
    REQUIRE(store.upload_part(*left, 1, std::string("x")).ok());
    REQUIRE(upload(store, "parts/a", bytes).ok());
    CHECK(store.get("parts/a", 6 << 20)->text == bytes);
    CHECK(store.head("parts/left").status().code() == Code::not_found);
    const auto found = must(store.uploads("parts/"));
    REQUIRE(found->size() == 1);
    CHECK(found->at(0).key == "parts/left");
    CHECK(store.abort_upload(found->at(0)).ok());
    CHECK(store.abort_upload(found->at(0)).ok());
    CHECK(store.uploads("parts/")->empty());
  }

  TEST_CASE("a completed upload whose answer was lost is complete") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    const std::string bytes = random_bytes(1000, 3);
    s3->set_faults({{{"match", "POST .*lost-end.uploadId"}, {"kind", "lost"}, {"times", 1}}});
    CHECK(works(upload(store, "lost-end", bytes)));
    CHECK(store.get("lost-end", 1000)->text == bytes);
  }

  TEST_CASE("temporary errors of every kind are tried again") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    const std::string bytes = random_bytes(100'000, 4);
    for (const json& fault :
         {json{{"kind", "status"}, {"status", 500}, {"code", "InternalError"}},
          json{{"kind", "status"}, {"status", 503}, {"code", "SlowDown"}},
          json{{"kind", "status"}, {"status", 429}, {"code", "TooManyRequests"}},
          json{{"kind", "status"}, {"status", 400}, {"code", "RequestTimeout"}},
          json{{"kind", "status"}, {"status", 409}, {"code", "ConditionalRequestConflict"}},
          json{{"kind", "refuse"}}, json{{"kind", "lost"}}, json{{"kind", "truncate"}},
          json{{"kind", "short"}}}) {
      CAPTURE(fault.dump());
      json rule = fault;
      rule["match"] = "/bucket/again", rule["times"] = 3;
      s3->set_faults(json::array({rule}));
      REQUIRE(store.put("again", bytes).ok());
      s3->set_faults(json::array({rule}));
      std::string out(50'000, 0);
      must(store.get_range("again", 100, out));
      CHECK(out == bytes.substr(100, 50'000));
      if (rule.value("status", 503) > 409) {  // HEAD has no body that could tell the code
        s3->set_faults(json::array({rule}));
        REQUIRE(store.head("again").ok());
      }
      s3->set_faults(json::array({rule}));
      CHECK(store.get("again", 1 << 20)->text == bytes);
    }
  }

  TEST_CASE("under random faults every byte read is right") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const char* given = std::getenv("SIMPLESCALE_TEST_SEED");
    const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : 7;
    CAPTURE(seed);
    StoreLimits limits = S3Server::limits();
    limits.tries = 50;
    ObjectStore store = s3->store(limits);
    s3->set_faults(
        {{{"match", "/bucket/random"}, {"kind", "random"}, {"percent", 40}, {"seed", seed}}});
    for (uint64_t i = 0; i < 20; ++i) {
      const std::string bytes = random_bytes(1 + splitmix64_at(seed, i) % 200'000, i);
      const std::string key = "random/" + std::to_string(i);
      if (i % 2) {
        REQUIRE(store.put(key, bytes).ok());
      } else {
        must(upload(store, key, bytes));
      }
      const size_t offset = splitmix64_at(seed + 1, i) % bytes.size();
      std::string out(bytes.size() - offset, 0);
      REQUIRE(store.get_range(key, offset, out).ok());
      CHECK(out == bytes.substr(offset));
    }
  }

  TEST_CASE("tries are bounded, and the error says what the server said") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    s3->set_faults({{{"match", "/bucket/down"}, {"kind", "status"}}});
    const size_t before = s3->count("GET /bucket/down");
    const auto got = store.get("down", 10);
    CHECK(says(got.status(), Code::io, "s3://bucket/down"));
    CHECK(has(got.status(), "503 SlowDown"));
    CHECK(has(got.status(), s3->endpoint()));
    CHECK(s3->count("GET /bucket/down") - before == 6);
    // A pause that would end after the deadline is not made.
    StoreLimits limits;
    limits.first_pause_ms = 3'600'000, limits.pause_ms_max = 3'600'000;
    ObjectStore hasty = s3->store(limits);
    CHECK(hasty.get("down", 10).status().code() == Code::io);
  }

  TEST_CASE("a server that hangs is left after the stall timeout") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    StoreLimits limits = S3Server::limits();
    limits.http.stall_timeout_s = 1, limits.tries = 2;
    ObjectStore store = s3->store(limits);
    s3->set_faults({{{"match", "/bucket/hang"}, {"kind", "hang"}}});
    CHECK(store.get("hang", 10).status().code() == Code::io);
    limits.http.stopped = [] { return true; };
    ObjectStore stopping = s3->store(limits);
    CHECK(stopping.get("hang", 10).status().code() == Code::aborted);
    s3->clear_faults();
  }

  TEST_CASE("what does not help is not tried again, and the error says what to do") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    const auto missing = store.get("missing", 10);
    CHECK(says(missing.status(), Code::not_found, "NoSuchKey"));
    CHECK(s3->count("GET /bucket/missing") == 1);
    REQUIRE(store.put("five", std::string("12345")).ok());
    std::string ten(10, 0);
    CHECK(store.get_range("five", 0, ten).code() == Code::bad_data);
    CHECK(store.get_range("five", 5, ten).code() == Code::bad_data);
    CHECK(!store.get("five", 4).ok());

    ObjectStore nowhere(s3->settings(), "no-such-bucket", S3Server::limits());
    CHECK(nowhere.put("x", ten).status().code() == Code::bad_config);
    CHECK(has(nowhere.put("x", ten).status(), "NoSuchBucket"));
    S3Settings settings = s3->settings();
    settings.region = "eu-west-1";
    ObjectStore other_region(settings, "bucket", S3Server::limits());
    CHECK(has(other_region.get("x", 10).status(), "AWS_REGION"));
    S3Settings closed = s3->settings();
    closed.endpoint = "http://127.0.0.1:1";
    ObjectStore unreachable(closed, "bucket", S3Server::limits());
    CHECK(unreachable.get("x", 10).status().code() == Code::io);
    CHECK(has(unreachable.get("x", 10).status(), "AWS_ENDPOINT_URL_S3"));
  }

  TEST_CASE("no error shows a secret") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    S3Settings settings = s3->settings();
    settings.credentials.secret_access_key = "hidden-secret";
    settings.credentials.session_token = kToken;
    ObjectStore store(settings, "bucket", S3Server::limits());
    const auto got = store.get("x", 10);
    CHECK(says(got.status(), Code::bad_config, "SignatureDoesNotMatch"));
    CHECK(!has(got.status(), "hidden-secret"));
    CHECK(!has(got.status(), kToken));
  }

  TEST_CASE("a server whose certificate is not known is refused, and gets no request") {
    if (!shared_server()) return;
    const TempFolder folder;
    const std::string certificate = folder.path + "/certificate.pem";
    const auto tls = S3Server::start(certificate);
    REQUIRE(tls);
    ObjectStore unknown = tls->store();
    CHECK(says(unknown.put("x", std::string("x")).status(), Code::bad_config, "AWS_CA_BUNDLE"));
    S3Settings settings = tls->settings();
    settings.ca_bundle = certificate;
    ObjectStore known(settings, "bucket", S3Server::limits());
    CHECK(known.head("x").status().code() == Code::not_found);
    CHECK(known.put("x", std::string("x")).ok());
    // The certificate is of another host.
    settings.endpoint.replace(settings.endpoint.find("127.0.0.1"), 9, "localhost");
    ObjectStore other_host(settings, "bucket", S3Server::limits());
    CHECK(other_host.head("x").status().code() == Code::bad_config);
  }

  TEST_CASE("credentials that were renewed are used after a refusal") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    S3Settings old = s3->settings(), renewed = old;
    old.credentials.session_token = "expired";
    renewed.credentials.session_token = kToken;
    int reads = 0;
    ObjectStore store(old, "bucket", S3Server::limits(), [&]() -> Result<S3Settings> {
      ++reads;
      return renewed;
    });
    const auto put = store.put("renewed", std::string("x"));
    CHECK_MESSAGE(put.ok(), put.status().message());
    CHECK(store.get("renewed", 10).ok());
    CHECK(reads == 1);
    ObjectStore expired(old, "bucket", S3Server::limits(),
                        [&]() -> Result<S3Settings> { return old; });
    CHECK(has(expired.get("renewed", 10).status(), "ExpiredToken"));
  }

  TEST_CASE("many threads share a store") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    ObjectStore store = s3->store();
    const std::string bytes = random_bytes(100'000, 5);
    REQUIRE(store.put("shared", bytes).ok());
    std::vector<std::thread> threads;
    std::atomic<int> right = 0;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        for (size_t i = 0; i < 10; ++i) {
          std::string out(1000, 0);
          const size_t offset = static_cast<size_t>(t) * 10'000 + i * 500;
          right += store.get_range("shared", offset, out).ok() && out == bytes.substr(offset, 1000);
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(right == 80);
  }
}
