// The publisher: shards that are reported twice, and checkpoints that an earlier publisher has
// published, are handled once.
#include <doctest/doctest.h>

#include <caf/all.hpp>
#include <nlohmann/json.hpp>

#include "actors/checkpoint/checkpoint.hpp"
#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;

namespace {

struct Job {
  test::MemoryFolder folder;
  caf::actor_system_config config;
  caf::actor_system system{config};
  caf::scoped_actor self{system};
  PublisherOptions options;
  std::vector<std::string> records;

  /// A checkpoint of step 7 whose two shards are written.
  Job() {
    options.id = "start-1";
    options.folder = folder.path;
    options.shape = test::tiny_shape();
    options.precision = "fp32";
    options.state.ema = true;
    for (size_t shard = 0; shard < 2; ++shard) {
      test::State state = test::empty_state(options.shape, 2, options.state.ema);
      const auto record = must(write_shard(checkpoint_tmp_folder(options.folder, 7, 1),
                                           options.shape, 2, shard, state.side()));
      records.push_back(to_json(*record));
    }
  }

  caf::actor publisher() {
    return spawn_publisher(system, caf::actor_cast<caf::actor>(self), options);
  }

  void report(const caf::actor& publisher, size_t shard) {
    self->send(publisher, local::ShardWritten{1, 7, 14, records[shard], "", shard, 2});
  }

  local::Published wait() {
    local::Published result;
    self->receive([&](const local::Published& published) { result = published; },
                  caf::after(std::chrono::seconds(60)) >> [] { FAIL("nothing is published"); });
    return result;
  }
};

}  // namespace

TEST_SUITE("publisher") {
  TEST_CASE("publisher: a shard that is reported twice counts once") {
    Job job;
    const caf::actor publisher = job.publisher();
    for (const size_t shard : {0, 0, 0, 1}) job.report(publisher, shard);
    const local::Published published = job.wait();
    CHECK(published.error.empty());
    CHECK(published.step == 7);
    CHECK(Checkpoint::open(published.folder).ok());
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  }

  TEST_CASE("publisher: LEAD-1, a deposed supervisor's publisher publishes and prunes nothing") {
    Job job;
    job.options.leads = [] { return false; };
    const caf::actor publisher = job.publisher();
    for (const size_t shard : {0, 1}) job.report(publisher, shard);
    const local::Published published = job.wait();
    CHECK(published.error.find("does not lead any more") != std::string::npos);
    CHECK(list_folder(job.options.folder) == std::vector<std::string>{"tmp-00000007-1"});
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  }

  TEST_CASE(
      "publisher: what a failed save has left is removed once all its writers have finished") {
    Job job;
    const caf::actor publisher = job.publisher();
    job.self->send(publisher, local::ShardWritten{1, 7, 14, "", "disk full", 0, 2});
    CHECK(job.wait().error == "disk full");
    CHECK(list_folder(job.options.folder) == std::vector<std::string>{"tmp-00000007-1"});
    job.report(publisher, 1);
    // The next message is handled after the removal. A newer generation removes what is older.
    std::filesystem::create_directories(job.folder / "tmp-00000009-1");
    std::filesystem::create_directories(job.folder / "tmp-00000009-3");
    job.self->send(publisher, local::ShardWritten{2, 8, 16, "", "disk full", 0, 2});
    CHECK(job.wait().error == "disk full");
    CHECK(list_folder(job.options.folder) == std::vector<std::string>{"tmp-00000009-3"});
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  }

  TEST_CASE("publisher: a checkpoint whose step is undone afterwards is set aside") {
    Job job;
    const caf::actor publisher = job.publisher();
    for (const size_t shard : {0, 1}) job.report(publisher, shard);
    const local::Published published = job.wait();
    CHECK(generation_of(Checkpoint::open(published.folder)->info()) == 1);
    // A generation that begins with the step, or that made it, undoes nothing.
    job.self->send(publisher, local::StepsUndone{2, 7});
    job.self->send(publisher, local::StepsUndone{1, 6});
    for (const size_t shard : {0, 1}) job.report(publisher, shard);
    CHECK(job.wait().error.empty());
    job.self->send(publisher, local::StepsUndone{2, 6});
    for (const size_t shard : {0, 1}) job.report(publisher, shard);
    CHECK_FALSE(job.wait().error.empty());
    CHECK(list_folder(job.options.folder) == std::vector<std::string>{"step-00000007.undone"});
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  }

  TEST_CASE("publisher: a checkpoint records the validation loss of its step") {
    Job job;
    job.options.keep.keep_best = 1;
    const caf::actor publisher = job.publisher();
    job.self->send(publisher, local::StepValidated{7, 1.5});
    for (const size_t shard : {0, 1}) job.report(publisher, shard);
    const local::Published published = job.wait();
    CHECK(Checkpoint::open(published.folder)->info().val_loss == 1.5);
    job.self->send(publisher, local::PruneCheckpoints{7, nullptr});
    job.self->receive(
        [](const local::CheckpointsLeft& left) { CHECK(left.steps == std::vector<uint64_t>{7}); });
    CHECK(std::filesystem::read_symlink(job.folder / "best") == "step-00000007");
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  }

  TEST_CASE("publisher: an order to prune that a later one has replaced is skipped") {
    Job job;
    const caf::actor publisher = job.publisher();
    for (const size_t shard : {0, 1}) job.report(publisher, shard);
    job.wait();
    const auto replaced = std::make_shared<std::atomic<bool>>(true);
    job.self->send(publisher, local::PruneCheckpoints{7, replaced});
    const auto newest = std::make_shared<std::atomic<bool>>(false);
    job.self->send(publisher, local::PruneCheckpoints{7, newest});
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
    job.self->wait_for(publisher);
    int answers = 0;
    bool more = true;
    while (more)
      job.self->receive([&](const local::CheckpointsLeft&) { ++answers; },
                        caf::after(std::chrono::seconds(0)) >> [&] { more = false; });
    CHECK(answers == 1);
  }

  TEST_CASE("publisher: a folder without checkpoints says nothing of them") {
    Job job;
    const caf::actor publisher = job.publisher();
    job.self->send(publisher, local::PruneCheckpoints{7, nullptr});
    for (const size_t shard : {0, 1}) job.report(publisher, shard);
    job.self->receive([](const local::Published& published) { CHECK(published.step == 7); },
                      [](const local::CheckpointsLeft&) { FAIL("there is none"); });
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  }

  TEST_CASE("publisher: a checkpoint keeps its run's mixture and signature beside the generation") {
    Job job;
    uint64_t asked = 0;
    job.options.resume_at = [&](uint64_t next_sample) {
      asked = next_sample;
      return with_signature(R"({"mixture":{"sources":[],"stages":[]}})", {{"hash", "0123"}});
    };
    const caf::actor publisher = job.publisher();
    for (const size_t shard : {0, 1}) job.report(publisher, shard);
    const local::Published published = job.wait();
    const CheckpointInfo info = Checkpoint::open(published.folder)->info();
    CHECK(published.signature == "0123");
    CHECK(signature_record_in(info.resume) == nlohmann::json{{"hash", "0123"}});
    CHECK(info.next_sample == asked);
    CHECK(generation_of(info) > 0);
    CHECK(info.state.ema);
    CHECK(info.resume.find("\"mixture\"") != std::string::npos);
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  }

  TEST_CASE("publisher: a checkpoint that an earlier publisher has published succeeds again") {
    Job job;
    for (int attempt = 0; attempt < 2; ++attempt) {
      const caf::actor publisher = job.publisher();
      for (const size_t shard : {1, 0}) job.report(publisher, shard);
      const local::Published published = job.wait();
      CHECK(published.error.empty());
      CHECK(std::filesystem::read_symlink(job.folder / "latest") == "step-00000007");
      // As if the first publisher had died before it made the link.
      if (attempt == 0) std::filesystem::remove(job.folder / "latest");
      caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
    }
    // A checkpoint of the same step with other contents is refused.
    const caf::actor publisher = job.publisher();
    auto other = must(parse_shard_record(job.records[0]));
    other->tensors.begin()->second.low ^= 1;
    job.records[0] = to_json(*other);
    for (const size_t shard : {0, 1}) job.report(publisher, shard);
    const local::Published refused = job.wait();
    CHECK_FALSE(refused.error.empty());
    CHECK(refused.generation == 1);
    caf::anon_send_exit(publisher, caf::exit_reason::user_shutdown);
  }
}
