#include "runtime/checkpoint/bucket_index.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "runtime/base/splitmix64.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

StoredCheckpoint stored(uint64_t step, const std::string& text = "",
                        std::optional<double> val_loss = std::nullopt) {
  return {step, bucket_folder_name(step, text), val_loss};
}

std::vector<uint64_t> steps(const std::vector<StoredCheckpoint>& all) {
  std::vector<uint64_t> out;
  for (const StoredCheckpoint& checkpoint : all) out.push_back(checkpoint.step);
  return out;
}

using Steps = std::vector<uint64_t>;

}  // namespace

TEST_SUITE("bucket_index") {
  TEST_CASE("the text of an index is read as it was written") {
    const BucketIndex index{"id", "a \"name\"", {stored(100), stored(200, "x", 1.25)}};
    const auto read = must(parse_bucket_index(bucket_index_text(index)));
    CHECK(read->run_id == "id");
    CHECK(read->run_name == "a \"name\"");
    CHECK(read->checkpoints == index.checkpoints);
    CHECK(bucket_index_text(index).find("\"latest\": \"step-00000200-") != std::string::npos);
  }

  TEST_CASE("what is no index is refused") {
    const std::string good = bucket_index_text({"id", "name", {stored(100)}});
    const auto without = [&](const std::string& from, const std::string& to) {
      std::string text = good;
      REQUIRE(text.find(from) != std::string::npos);
      return text.replace(text.find(from), from.size(), to);
    };
    for (const std::string& text :
         {std::string(), std::string("{}"), std::string("[]"), good.substr(0, good.size() / 2),
          without("simplescale-bucket", "other"), without("\"version\": 1", "\"version\": 2"),
          without("\"folder\": \"step-", "\"folder\": \"../step-"), without("\"run\"", "\"ran\"")})
      CHECK_MESSAGE(parse_bucket_index(text).status().code() == Code::bad_data, text);
  }

  TEST_CASE("only names of our own are folders of checkpoints") {
    CHECK(is_bucket_folder_name("step-00000100-0123456789abcdef"));
    for (const char* name : {"step-00000100", "step-00000100-0123", "step-100-0123456789abcdef",
                             "step-00000100-0123456789abcdeg", "", "latest", "-0123456789abcdef"})
      CHECK_MESSAGE(!is_bucket_folder_name(name), name);
    CHECK(bucket_folder_name(7, "a") != bucket_folder_name(7, "b"));
  }

  TEST_CASE("the rules keep the newest, the best and the permanent ones") {
    const std::vector<StoredCheckpoint> all = {stored(50), stored(10, "", 1.0), stored(20, "", 3.0),
                                               stored(30, "", 2.0), stored(40, "", 2.5)};
    CHECK(steps(kept_checkpoints(all, {.keep = 2})) == Steps{40, 50});
    CHECK(steps(kept_checkpoints(all, {.keep = 0})) == Steps{50});
    CHECK(steps(kept_checkpoints(all, {.keep = 1, .keep_best = 2})) == Steps{10, 30, 50});
    CHECK(steps(kept_checkpoints(all, {.keep = 1, .permanent_every_steps = 20})) ==
          Steps{20, 40, 50});
    CHECK(steps(kept_checkpoints(all, {.keep = 1, .until_step = 40})) == Steps{40});
    CHECK(kept_checkpoints({}, {.keep = 3}).empty());
  }

  TEST_CASE("the newest checkpoint is uploaded first, then older ones that the rules keep") {
    const std::vector<StoredCheckpoint> local = {stored(10), stored(20), stored(30)};
    std::vector<StoredCheckpoint> there;
    Steps uploaded;
    while (true) {
      const BucketStep next = next_bucket_step(there, local, {.keep = 2});
      there = next.listed;
      if (!next.upload) break;
      uploaded.push_back(next.upload->step);
    }
    CHECK(uploaded == Steps{30, 20});
    CHECK(steps(there) == Steps{20, 30});
  }

  TEST_CASE("an older checkpoint stays until the rules drop it, though it is not on disk") {
    const std::vector<StoredCheckpoint> there = {stored(10, "", 1.0), stored(20), stored(30)};
    CHECK(steps(next_bucket_step(there, {stored(30)}, {.keep = 3}).listed) == Steps{10, 20, 30});
    CHECK(steps(next_bucket_step(there, {stored(40)}, {.keep = 2, .keep_best = 1}).listed) ==
          Steps{10, 30, 40});
    // Nothing on disk says nothing.
    CHECK(steps(next_bucket_step(there, {}, {.keep = 3}).listed) == Steps{10, 20, 30});
  }

  TEST_CASE("an undone step is dropped, and its new state is uploaded") {
    const std::vector<StoredCheckpoint> there = {stored(10), stored(20, "old"), stored(30)};
    CHECK(steps(next_bucket_step(there, {stored(10)}, {.keep = 3}).listed) == Steps{10});
    const BucketStep again = next_bucket_step(there, {stored(10), stored(20, "new")}, {.keep = 3});
    REQUIRE(again.upload);
    CHECK(*again.upload == stored(20, "new"));
    CHECK(again.listed == std::vector{stored(10), stored(20, "new")});
  }

  TEST_CASE("any order of events ends with what the rules keep") {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      CAPTURE(seed);
      auto random = [&, n = uint64_t{0}](uint64_t below) mutable {
        return splitmix64_at(seed, n++) % below;
      };
      const KeepRules rules{
          .keep = 1 + random(3), .permanent_every_steps = random(3) * 30, .keep_best = random(3)};
      std::vector<StoredCheckpoint> there, local, all;
      for (uint64_t step = 10; step <= 200; step += 10) {
        all.push_back(
            stored(step, "", random(2) ? std::optional<double>(random(100)) : std::nullopt));
        local.push_back(all.back());
        local = kept_checkpoints(local, rules);
        // Some updates are cut after a few uploads, or left out.
        for (uint64_t left = random(4); left > 0; --left)
          there = next_bucket_step(there, local, rules).listed;
      }
      for (int i = 0; i < 20; ++i) there = next_bucket_step(there, local, rules).listed;
      CHECK(there == local);
      CHECK(!next_bucket_step(there, local, rules).upload);
    }
  }
}
