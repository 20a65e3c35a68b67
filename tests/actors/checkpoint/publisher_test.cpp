// Publishing checkpoints: whatever is told twice, or was done by a coordinator that died, is done
// once.
#include <doctest/doctest.h>

#include <caf/all.hpp>

#include "actors/checkpoint/checkpoint.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;

namespace {

struct Job {
  test::TempFolder folder;
  caf::actor_system_config config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  PublisherOptions options;
  std::vector<std::string> records;

  /// A checkpoint of step 7 whose two shards are written.
  Job() {
    options.folder = folder.path();
    options.shape = test::tiny_shape();
    options.shards = 2;
    options.precision = "fp32";
    options.resume = "{}";
    for (size_t shard = 0; shard < 2; ++shard) {
      test::State state = test::empty_state(options.shape, 2);
      const auto record = write_shard(checkpoint_tmp_folder(options.folder, 7, 1), options.shape, 2,
                                      shard, state.side());
      REQUIRE(record.ok());
      records.push_back(to_json(*record));
    }
  }

  caf::actor publisher() {
    return spawn_publisher(system, caf::actor_cast<caf::actor>(self), options);
  }

  void tell(const caf::actor& publisher, size_t shard) {
    self->send(publisher, local::ShardWritten{1, 7, 14, records[shard], ""});
  }

  local::Published heard() {
    local::Published heard;
    self->receive([&](const local::Published& published) { heard = published; },
                  caf::after(std::chrono::seconds(60)) >> [] { FAIL("nothing is published"); });
    return heard;
  }
};

}  // namespace

TEST_SUITE("publisher") {
  TEST_CASE("publisher: a shard that is told twice is one shard") {
    Job job;
    const caf::actor publisher = job.publisher();
    for (const size_t shard : {0, 0, 0, 1}) job.tell(publisher, shard);
    const local::Published published = job.heard();
    CHECK(published.error.empty());
    CHECK(published.step == 7);
    CHECK(Checkpoint::open(published.folder).ok());
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  }

  TEST_CASE("publisher: what the one before has published is published") {
    Job job;
    for (int coordinator = 0; coordinator < 2; ++coordinator) {
      const caf::actor publisher = job.publisher();
      for (const size_t shard : {1, 0}) job.tell(publisher, shard);
      const local::Published published = job.heard();
      CHECK(published.error.empty());
      CHECK(std::filesystem::read_symlink(job.folder / "latest") == "step-00000007");
      // The first one died before it came to that.
      if (coordinator == 0) std::filesystem::remove(job.folder / "latest");
      caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
    }
    // Other contents under the same step are not.
    const caf::actor publisher = job.publisher();
    auto other = parse_shard_record(job.records[0]);
    REQUIRE(other.ok());
    other->tensors.begin()->second.low ^= 1;
    job.records[0] = to_json(*other);
    for (const size_t shard : {0, 1}) job.tell(publisher, shard);
    const local::Published refused = job.heard();
    CHECK_FALSE(refused.error.empty());
    CHECK(refused.generation == 1);
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  }
}
