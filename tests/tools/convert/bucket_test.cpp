#include "runtime/checkpoint/bucket.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"
#include "tests/runtime/object_store/shared_server.hpp"
#include "tools/verify/verify_bucket.hpp"

using namespace simplescale;
using namespace simplescale::test;
using nlohmann::json;

namespace {

/// A checkpoint of one shard of 5.3 MiB: two parts.
ModelShape large_shape() {
  ModelShape s;
  s.dim = 64, s.hidden = 128, s.layers = 1, s.heads = 4, s.kv_heads = 4, s.vocab = 3300;
  s.block_size = 16;
  return s;
}

std::string step_name(uint64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "/step-%08llu", static_cast<unsigned long long>(step));
  return name;
}

Status save_step(const std::string& checkpoints, uint64_t step, uint32_t seed,
                 const ModelShape& shape = tiny_shape(),
                 std::optional<double> val_loss = std::nullopt) {
  CheckpointInfo info;
  info.step = step, info.shape = shape, info.val_loss = val_loss;
  return save(checkpoints, random_state(shape, seed), info, shape == tiny_shape() ? 2 : 1).status();
}

std::string manifest_of(const Checkpoint& checkpoint) {
  return contents(checkpoint.folder() + "/manifest.json");
}

struct Fixture {
  S3Server& server;
  std::string prefix;
  MemoryFolder folder;
  bool leads = true;
  size_t part_bytes = kPartBytesMin;

  std::string checkpoints() const { return folder / "checkpoints"; }
  CheckpointBucket bucket(int tries = 2, const std::string& run = "run") {
    StoreLimits limits = S3Server::limits();
    limits.tries = tries;
    auto store = std::make_shared<ObjectStore>(server.settings(), "bucket", limits);
    return CheckpointBucket(std::move(store), {.url = {"bucket", prefix},
                                               .run_id = run,
                                               .run_name = "name",
                                               .leads = [this] { return leads; },
                                               .part_bytes = part_bytes});
  }
  std::vector<uint64_t> listed() {
    auto read = bucket().read();
    std::vector<uint64_t> steps;
    if (read.ok() && *read)
      for (const StoredCheckpoint& stored : (*read)->checkpoints) steps.push_back(stored.step);
    return steps;
  }
  /// The folders of which there is any object.
  std::vector<std::string> folders() {
    std::vector<std::string> found;
    const auto objects = must(server.store().list(prefix + "/step-"));
    for (const ObjectFacts& object : *objects) {
      const std::string rest = object.key.substr(prefix.size() + 1);
      const std::string name = rest.substr(0, rest.find('/'));
      if (found.empty() || found.back() != name) found.push_back(name);
    }
    return found;
  }
  VerifyReport verified(const std::function<void(const StoredCheckpoint&)>& begins =
                            [](const StoredCheckpoint&) {}) {
    CheckpointBucket bucket = this->bucket();
    const auto report = must(verify_bucket(bucket, begins));
    return *report;
  }
  /// The manifest of what a machine that lost its folder gets.
  Result<std::string> restored(const ModelShape& shape) {
    const MemoryFolder other;
    SS_ASSIGN(const Checkpoint found, bucket(6).fetch_newest(other.path, shape));
    return manifest_of(found);
  }
};

using Steps = std::vector<uint64_t>;

}  // namespace

TEST_SUITE("bucket") {
  TEST_CASE(
      "CHECKPOINT-5: checkpoints are uploaded, pruned by the rules, and fetched bit for bit") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    Fixture f{*s3, "plain", {}};
    for (const uint64_t step : {10, 20, 30})
      REQUIRE(save_step(f.checkpoints(), step, static_cast<uint32_t>(step)).ok());
    CheckpointBucket bucket = f.bucket();
    const auto uploaded = must(bucket.update(f.checkpoints(), {.keep = 2}));
    CHECK(*uploaded == Steps{30, 20});
    CHECK(f.listed() == Steps{20, 30});
    CHECK(bucket.update(f.checkpoints(), {.keep = 2})->empty());
    REQUIRE(save_step(f.checkpoints(), 40, 40).ok());
    CHECK(*bucket.update(f.checkpoints(), {.keep = 2, .until_step = 30}) == Steps{});
    CHECK(*bucket.update(f.checkpoints(), {.keep = 2}) == Steps{40});
    CHECK(f.listed() == Steps{30, 40});
    CHECK(f.folders().size() == 2);
    CHECK(*f.restored(tiny_shape()) == contents(f.checkpoints() + "/step-00000040/manifest.json"));
  }

  // What a killed process has done is a beginning of its requests: the last one may have been
  // carried out (lost) or not (refuse).
  TEST_CASE("CHECKPOINT-5: cut at any request, the listed checkpoints are complete") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const ModelShape shape = large_shape();
    Fixture f{*s3, "cut", {}};
    REQUIRE(save_step(f.checkpoints(), 10, 1, shape).ok());
    REQUIRE(f.bucket().update(f.checkpoints(), {.keep = 1}).ok());
    const std::string old = contents(f.checkpoints() + "/step-00000010/manifest.json");
    std::string before = old;
    REQUIRE(*f.restored(shape) == before);
    uint64_t step = 10;
    size_t cuts = 0, kept_old = 0;
    for (const char* kind : {"refuse", "lost"})
      for (int requests = 0;; ++requests) {
        step += 10;
        REQUIRE(save_step(f.checkpoints(), step, static_cast<uint32_t>(step), shape).ok());
        const std::string now = contents(f.checkpoints() + step_name(step) + "/manifest.json");
        s3->set_faults(
            {{{"match", "/bucket/cut|prefix=cut"},
              {"kind", kind},
              {"skip", requests},
              {"times", 1}},
             {{"match", "/bucket/cut|prefix=cut"}, {"kind", "refuse"}, {"skip", requests}}});
        const bool whole = f.bucket(1).update(f.checkpoints(), {.keep = 1}).ok();
        s3->clear_faults();
        INFO("kind = ", kind, ", requests = ", requests);
        const auto restored = must(f.restored(shape));
        CHECK((*restored == before || *restored == now));
        ++cuts;
        kept_old += *restored == before;
        // The next publisher goes on, and leaves nothing behind.
        const auto next = must(f.bucket().update(f.checkpoints(), {.keep = 1}));
        CHECK(*f.restored(shape) == now);
        before = now;
        CHECK(f.folders().size() == 1);
        CHECK(s3->store().uploads("cut/")->empty());
        std::filesystem::remove_all(f.checkpoints() + step_name(step - 10));
        if (whole) break;
      }
    CHECK(cuts > 25);
    CHECK(kept_old > 15);
    CHECK(old != *f.restored(shape));
  }

  TEST_CASE("CHECKPOINT-6: a deposed publisher and another run change nothing") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    Fixture f{*s3, "deposed", {}};
    REQUIRE(save_step(f.checkpoints(), 10, 1).ok());
    CheckpointBucket old = f.bucket();
    REQUIRE(old.update(f.checkpoints(), {.keep = 1}).ok());
    REQUIRE(save_step(f.checkpoints(), 20, 2).ok());
    f.leads = false;
    CHECK(old.update(f.checkpoints(), {.keep = 1}).status().code() == Code::aborted);
    CHECK(f.listed() == Steps{10});
    CHECK(f.folders().size() == 2);  // the objects of step 20 are there, but not listed
    f.leads = true;
    // Another publisher lists step 15 between the old one's read and its put.
    MemoryFolder other;
    REQUIRE(save_step(other.path, 15, 3).ok());
    bool once = true;
    auto store = std::make_shared<ObjectStore>(s3->settings(), "bucket", S3Server::limits());
    CheckpointBucket slow(
        store, {.url = {"bucket", f.prefix}, .run_id = "run", .run_name = "name", .leads = [&] {
                  if (std::exchange(once, false))
                    CHECK(f.bucket().update(other.path, {.keep = 3}).ok());
                  return true;
                }});
    // It reads again, and loses nothing of what the other one has listed.
    CHECK(slow.update(f.checkpoints(), {.keep = 3}).ok());
    CHECK(f.listed() == Steps{10, 15, 20});
    CHECK(f.folders().size() == 3);
    // A run that takes the place over is left alone.
    CHECK(f.bucket(2, "another").claim().ok());
    const auto refused = f.bucket().update(f.checkpoints(), {.keep = 1});
    CHECK(refused.status().code() == Code::bad_config);
    CHECK(f.listed() == Steps{10, 15, 20});
  }

  TEST_CASE("CHECKPOINT-6: a server that ignores the condition of a put is refused") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    Fixture f{*s3, "unconditional", {}};
    CHECK(f.bucket().claim().ok());
    s3->set_faults(json::array({{{"match", "PUT "}, {"kind", "unconditional"}}}));
    CHECK(says(f.bucket().claim(), Code::bad_config, "If-None-Match"));
  }

  TEST_CASE("a checkpoint that was damaged in the store is found out, and the one before it used") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    Fixture f{*s3, "damaged", {}};
    REQUIRE(save_step(f.checkpoints(), 10, 1).ok());
    REQUIRE(save_step(f.checkpoints(), 20, 2).ok());
    REQUIRE(f.bucket().update(f.checkpoints(), {.keep = 2}).ok());
    ObjectStore store = s3->store();
    const auto objects = store.list("damaged/step-00000020-");
    const auto shard = std::ranges::find_if(*objects, [](const ObjectFacts& object) {
      return object.key.ends_with("shard-00000-of-00002.safetensors");
    });
    REQUIRE(shard != objects->end());
    std::string bytes = store.get(shard->key, 1 << 20)->text;
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    REQUIRE(store.put(shard->key, bytes).ok());
    CHECK(*f.restored(tiny_shape()) == contents(f.checkpoints() + "/step-00000010/manifest.json"));
    const MemoryFolder other;
    CHECK(f.bucket().fetch_newest(other.path, some_shape()).status().code() == Code::bad_config);
    CHECK(std::filesystem::is_empty(other.path));
    CheckpointBucket bucket = f.bucket();
    const auto index = bucket.read();
    REQUIRE((index.ok() && *index));
    const auto fetch = [&](size_t i) {
      return bucket.fetch((*index)->checkpoints[i], other.path + "/fetched").status().code();
    };
    CHECK(fetch(1) == Code::bad_data);
    CHECK(std::filesystem::is_empty(other.path));
    // Another manifest.json than the one that `latest` lists, although it says the same.
    const std::string manifest = "damaged/" + (*index)->checkpoints[0].folder + "/manifest.json";
    REQUIRE(store.put(manifest, store.get(manifest, 1 << 20)->text + "\n").ok());
    CHECK(fetch(0) == Code::bad_data);
  }

  TEST_CASE("verify: every object of a bucket's checkpoints is compared, each byte of it") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    Fixture f{*s3, "verified", {}};
    CheckpointInfo info;
    info.step = 20, info.shape = tiny_shape();
    info.tokenizer = f.folder / "tokenizer.model";
    std::ofstream(info.tokenizer) << "the bytes of a tokenizer";
    REQUIRE(save_step(f.checkpoints(), 10, 1).ok());
    REQUIRE(save(f.checkpoints(), random_state(info.shape, 2), info, 2).ok());
    REQUIRE(f.bucket().update(f.checkpoints(), {.keep = 2}).ok());
    f.part_bytes = 907;  // several pieces of a file
    const VerifyReport good = f.verified();
    CHECK(good.ok);
    REQUIRE(good.lines.size() == 1);
    CHECK(good.lines[0].find("2 of run \"name\" have all their objects") != std::string::npos);

    ObjectStore store = s3->store();
    const auto objects = store.list("verified/step-");
    REQUIRE(objects->size() == 3 + 4);
    REQUIRE(std::ranges::max(*objects, {}, &ObjectFacts::bytes).bytes > 2 * f.part_bytes);
    CheckpointBucket bucket = f.bucket();
    const auto index = bucket.read();
    const auto finds = [&](const std::string& key) {
      const Status status = bucket.verify((*index)->checkpoints[1]);
      CHECK((status.code() == Code::bad_data || status.code() == Code::not_found));
      const std::string named = key.substr(0, key.find("/manifest.json"));
      CHECK_MESSAGE(status.message().find(named) != std::string::npos, status.message());
    };
    for (const ObjectFacts& object : *objects) {
      if (!object.key.starts_with("verified/step-00000020")) continue;
      CAPTURE(object.key);
      const std::string whole = store.get(object.key, 16 << 20)->text;
      const size_t format = whole.find(R"("pt")");  // in a header, which any letter leaves valid
      for (const size_t at : {size_t{0}, size_t{9}, whole.size() / 2, whole.size() - 1,
                              format == whole.npos ? 0 : format + 1}) {
        CAPTURE(at);
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 1);
        REQUIRE(store.put(object.key, damaged).ok());
        finds(object.key);
      }
      for (const size_t bytes : {size_t{0}, size_t{7}, whole.size() - 1}) {
        CAPTURE(bytes);
        REQUIRE(store.put(object.key, whole.substr(0, bytes)).ok());
        finds(object.key);
      }
      REQUIRE(store.put(object.key, whole + "x").ok());
      finds(object.key);
      REQUIRE(store.remove(object.key).ok());
      finds(object.key);
      const VerifyReport report = f.verified();
      CHECK_FALSE(report.ok);
      REQUIRE(report.lines.size() == 2);
      CHECK_MESSAGE(report.lines[1].find("checkpoints: 1 of run") == 0, report.lines[1]);
      REQUIRE(store.put(object.key, whole).ok());
    }
    CHECK(f.verified().ok);
  }

  TEST_CASE("verify: a bucket's checkpoint that the run removes meanwhile is no problem") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    Fixture f{*s3, "meanwhile", {}};
    for (const uint64_t step : {10, 20})
      REQUIRE(save_step(f.checkpoints(), step, static_cast<uint32_t>(step)).ok());
    REQUIRE(f.bucket().update(f.checkpoints(), {.keep = 2}).ok());
    REQUIRE(s3->store().put("meanwhile/step-00000005-0123456789abcdef/manifest.json", "old").ok());
    const VerifyReport report = f.verified([&](const StoredCheckpoint& stored) {
      if (stored.step != 10) return;
      CHECK(f.bucket().update(f.checkpoints(), {.keep = 1}).ok());
      CHECK(s3->store().put("meanwhile/step-00000005-0123456789abcdef/manifest.json", "").ok());
    });
    CHECK(report.ok);
    REQUIRE(report.lines.size() == 3);
    CHECK(report.lines[0].find("step-00000010-") != std::string::npos);
    CHECK(report.lines[0].find("was removed meanwhile") != std::string::npos);
    CHECK(report.lines[1].find("1 of run \"name\"") != std::string::npos);
    CHECK(report.lines[2].find("1 objects of checkpoints that `latest` does not list") == 0);
  }

  TEST_CASE("verify: a bucket that cannot be read is an error, not damage") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    Fixture f{*s3, "unread", {}};
    const auto status = [&] {
      CheckpointBucket bucket = f.bucket(1);
      return verify_bucket(bucket, [](const StoredCheckpoint&) {}).status();
    };
    CHECK(status().code() == Code::not_found);
    REQUIRE(save_step(f.checkpoints(), 10, 1).ok());
    REQUIRE(f.bucket().update(f.checkpoints(), {.keep = 1}).ok());
    for (const char* match : {"latest", "manifest.json", "GET .*shard", "prefix=unread"}) {
      CAPTURE(match);
      s3->set_faults(json::array({{{"match", match}, {"kind", "refuse"}}}));
      CHECK(status().code() == Code::io);
      s3->clear_faults();
    }
    REQUIRE(s3->store().put("unread/latest", "{").ok());
    CHECK(status().code() == Code::bad_data);
  }

  TEST_CASE("CHECKPOINT-5: under random faults of the server it ends with the newest") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const char* given = std::getenv("SIMPLESCALE_TEST_SEED");
    const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : 11;
    CAPTURE(seed);
    Fixture f{*s3, "random", {}};
    s3->set_faults(
        json::array({{{"match", "random"}, {"kind", "random"}, {"percent", 30}, {"seed", seed}}}));
    for (uint64_t step = 10; step <= 80; step += 10) {
      REQUIRE(save_step(f.checkpoints(), step, static_cast<uint32_t>(seed + step)).ok());
      (void)f.bucket(2).update(f.checkpoints(), {.keep = 3});
    }
    s3->clear_faults();
    const auto restored = f.restored(tiny_shape());
    if (restored.ok()) CHECK(restored->find("\"step\": ") != std::string::npos);
    REQUIRE(f.bucket().update(f.checkpoints(), {.keep = 3}).ok());
    CHECK(f.listed() == Steps{60, 70, 80});
    CHECK(f.folders().size() == 3);
    CHECK(*f.restored(tiny_shape()) == contents(f.checkpoints() + "/step-00000080/manifest.json"));
  }
}
