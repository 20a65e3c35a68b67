// CHECKPOINT-4: a publisher whose process is stopped in the middle of publishing, and continues
// after its successor has published, breaks no checkpoint. Also: checkpoints of steps that were
// undone.
#include <doctest/doctest.h>

#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;
using namespace simplescale::test;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("checkpoint");

namespace {

/// The files of a publisher that is stopped at one operation, while `meanwhile` happens. It leads
/// until then. The worst moment of a rename is tried: after it has asked whether it leads.
class StoppedFiles : public FileOps {
 public:
  uint64_t stop_at = 0, operations = 0;
  std::function<void()> meanwhile;
  bool stopped = false, deposed = true;  // deposed: `meanwhile`

  Result<int> create(const std::string& path) override {
    count();
    return FileOps::create(path);
  }
  Status write(int fd, const std::string& path, uint64_t offset, const void* data,
               size_t bytes) override {
    count();
    return FileOps::write(fd, path, offset, data, bytes);
  }
  Status fsync(int, const std::string&) override {
    count();
    return {};
  }
  Status fsync_folder(const std::string& path) override {
    count();
    std::error_code error;
    if (fs::exists(path, error)) return {};
    return {Code::io, "cannot open " + path};
  }
  Status rename(const std::string& from, const std::string& to) override {
    const bool leads = !stopped || !deposed;
    count();
    return leads ? FileOps::rename(from, to) : Status(Code::aborted, "deposed");
  }
  Status rename_back(const std::string& from, const std::string& to) override {
    count();
    return FileOps::rename(from, to);
  }
  Status symlink(const std::string& target, const std::string& path) override {
    count();
    return FileOps::symlink(target, path);
  }
  Status unlink(const std::string& path) override {
    count();
    return FileOps::unlink(path);
  }
  Status rmdir(const std::string& path) override {
    count();
    return FileOps::rmdir(path);
  }

 private:
  void count() {
    if (operations++ != stop_at) return;
    stopped = true;
    meanwhile();
  }
};

struct Scene {
  ModelShape shape = tiny_shape();
  State old = random_state(shape, 1), state = random_state(shape, 2),
        newer = random_state(shape, 3);
  uint64_t old_step = 10;
  MemoryFolder folder;
  std::string checkpoints = folder / "checkpoints", tmp = checkpoint_tmp_folder(checkpoints, 20, 1);
  CheckpointInfo info = info_of(shape, 20);
  std::vector<ShardRecord> records;

  /// What a supervisor does when it begins: it makes the folder its own and looks what is there.
  void begin() const {
    REQUIRE(revoke_publishers(checkpoints).ok());
    const auto found = must(find_newest_valid(checkpoints));
    REQUIRE(put_back_replaced(checkpoints, found->checkpoint).ok());
  }
  Status publish(const std::string& publisher, FileOps& ops) const {
    SS_RETURN_IF_ERROR(
        publish_checkpoint(checkpoints, tmp, publisher, info, records, ops).status());
    return prune_checkpoints(checkpoints, {1}, Verify::sizes, ops);
  }
  void holds(uint64_t step, const State& want) {
    auto found = must(find_newest_valid(checkpoints));
    CHECK(found->checkpoint.info().step == step);
    auto read = must(open_step(checkpoints, step));
    State got = empty_state(shape, 1);
    REQUIRE(read_shard(*read, 1, 0, got.side()).ok());
    CHECK(same_bits(got, want));
    const auto latest = must(Checkpoint::open(checkpoints + "/latest"));
    CHECK(latest->info().step == step);
  }

  /// Publisher 1 is stopped at each of its operations in turn; `meanwhile` is the work of its
  /// successor, `afterwards` that after the stopped one has continued.
  void at_every_operation(const std::function<void()>& meanwhile,
                          const std::function<void()>& afterwards) {
    info.shards = 2;
    uint64_t tried = 0;
    for (bool stopped = true; stopped; ++tried) {
      CAPTURE(tried);
      fs::remove_all(checkpoints);
      REQUIRE(save(checkpoints, old, info_of(shape, old_step), 1, system_files(), "0").ok());
      const auto written = must(write_shards(checkpoints, state, info, 2));
      records = *written;
      StoppedFiles files;
      files.stop_at = tried;
      files.meanwhile = meanwhile;
      const Status deposed = publish("1", files);
      stopped = files.stopped;
      if (stopped)
        afterwards();
      else
        REQUIRE_MESSAGE(deposed.ok(), deposed.message());
    }
    CHECK(tried > 15);
  }
  void successor_publishes() {
    must(publish("2", system_files()));
    holds(20, state);
  }
  void successor_goes_on() {
    REQUIRE(save(checkpoints, newer, info_of(shape, 30), 1, system_files(), "2").ok());
    REQUIRE(prune_checkpoints(checkpoints, {1}).ok());
    holds(30, newer);
  }
};

/// at_every_operation(), of a publisher of a new step and of one that replaces a step. A successor
/// has begun when `meanwhile` is called.
void stop_publisher(void (*meanwhile)(Scene&), void (*afterwards)(Scene&)) {
  for (const uint64_t old_step : {10, 20}) {
    Scene scene;
    scene.old_step = old_step;
    scene.at_every_operation(
        [&] {
          scene.begin();
          meanwhile(scene);
        },
        [&] { afterwards(scene); });
  }
}

}  // namespace

TEST_CASE("checkpoint: CHECKPOINT-4, a stopped publisher continues after its successor published") {
  stop_publisher([](Scene& scene) { scene.successor_publishes(); },
                 [](Scene& scene) { scene.holds(20, scene.state); });
}

TEST_CASE(
    "checkpoint: CHECKPOINT-4, a stopped publisher continues before its successor publishes") {
  stop_publisher([](Scene&) {}, [](Scene& scene) { scene.successor_publishes(); });
}

TEST_CASE("checkpoint: CHECKPOINT-4, a stopped publisher brings no older checkpoint back") {
  stop_publisher([](Scene& scene) { scene.successor_goes_on(); },
                 [](Scene& scene) {
                   scene.holds(30, scene.newer);
                   CHECK_FALSE(fs::exists(scene.checkpoints + "/step-00000020"));
                 });
}

TEST_CASE("checkpoint: CHECKPOINT-4, a late rename to step-N.replaced costs no checkpoint") {
  // Publisher 1 is frozen in the rename of step-N to step-N.replaced. Its successor publishes its
  // own step-N, and may have set the old one aside. The rename takes effect at any of the
  // successor's operations.
  for (const bool undone : {true, false}) {
    uint64_t tried = 0;
    for (bool stopped = true; stopped; ++tried) {
      INFO("undone = ", undone, ", tried = ", tried);
      Scene scene;
      REQUIRE(save(scene.checkpoints, scene.old, scene.info, 1, system_files(), "0").ok());
      const auto written = must(write_shards(scene.checkpoints, scene.state, scene.info, 1));
      scene.records = *written;
      const std::string step = scene.checkpoints + "/step-00000020", replaced = step + ".replaced";
      StoppedFiles files;
      files.deposed = false;
      files.stop_at = tried;
      std::error_code error;
      bool renamed = false;
      files.meanwhile = [&] {
        fs::rename(step, replaced, error);
        renamed = !error;
      };
      if (undone)
        REQUIRE(
            set_aside_undone(scene.checkpoints, 10, [](uint64_t, uint64_t) { return true; }).ok());
      const Status published =
          publish_checkpoint(scene.checkpoints, scene.tmp, "2", scene.info, scene.records, files)
              .status();
      if (renamed) fs::rename(replaced, step, error);  // publisher 1 undoes it, if it can
      stopped = files.stopped;
      if (!published.ok()) continue;  // it is reported, and saved again
      auto read = must(open_step(scene.checkpoints, 20));
      State got = empty_state(scene.shape, 1);
      REQUIRE(read_shard(*read, 1, 0, got.side()).ok());
      CHECK(same_bits(got, scene.state));
    }
    CHECK(tried > 10);
  }
}

TEST_CASE("checkpoint: LEAD-1, files of a deposed leader are not renamed, but renames are undone") {
  MemoryFolder folder;
  bool leads = true;
  LeaderFiles files([&] { return leads; });
  spew(folder / "a", "a");
  CHECK(files.rename(folder / "a", folder / "b").ok());
  leads = false;
  CHECK(files.rename(folder / "b", folder / "c").code() == Code::aborted);
  CHECK(files.rename_back(folder / "b", folder / "a").ok());
  CHECK(list_folder(folder.path) == std::vector<std::string>{"a"});
}

TEST_CASE("checkpoint: trainers read step-N.replaced if step-N is missing or damaged") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  REQUIRE(save(folder.path, random_state(shape, 1), info_of(shape, 10), 1).ok());
  fs::rename(folder / "step-00000010", folder / "step-00000010.replaced");
  CHECK(open_step(folder.path, 10)->folder() == folder / "step-00000010.replaced");
  fs::create_directory(folder / "step-00000010");
  CHECK(open_step(folder.path, 10)->folder() == folder / "step-00000010.replaced");
  CHECK(open_step(folder.path, 20).status().code() == Code::not_found);
  // The next supervisor gives it its name back.
  const auto found = must(find_newest_valid(folder.path));
  REQUIRE(put_back_replaced(folder.path, found->checkpoint).ok());
  CHECK(list_folder(folder.path) == std::vector<std::string>{"latest", "step-00000010"});
  CHECK(Checkpoint::open(folder / "latest").ok());
}

TEST_CASE("checkpoint: a checkpoint of an undone step counts no more") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  const auto save_step = [&](uint64_t step, uint64_t generation) {
    CheckpointInfo info = info_of(shape, step);
    set_generation(info, generation);
    REQUIRE(save(folder.path, random_state(shape, 1), info, 1).ok());
  };
  save_step(10, 1);
  save_step(20, 2);
  save_step(30, 3);
  CHECK(generation_of(Checkpoint::open(folder / "latest")->info()) == 3);
  REQUIRE(set_aside_undone(folder.path, 10, [](uint64_t, uint64_t generation) {
            return generation < 4;
          }).ok());
  CHECK(find_newest_valid(folder.path)->checkpoint.info().step == 10);
  CHECK(fs::read_symlink(folder / "latest") == "step-00000010");
  // It is kept until a newer one is there.
  save_step(20, 4);
  REQUIRE(prune_checkpoints(folder.path, {1}).ok());
  CHECK(list_folder(folder.path) ==
        std::vector<std::string>{"latest", "step-00000020", "step-00000030.undone"});
}

TEST_CASE("checkpoint: one that a successor publishes is not set aside by a deposed supervisor") {
  const ModelShape shape = tiny_shape();
  uint64_t tried = 0;
  for (bool stopped = true; stopped; ++tried) {
    CAPTURE(tried);
    MemoryFolder folder;
    const auto save_step = [&](uint64_t step) {
      CheckpointInfo info = info_of(shape, step);
      set_generation(info, 1);
      REQUIRE(save(folder.path, random_state(shape, step), info, 1).ok());
    };
    save_step(10);
    save_step(20);
    StoppedFiles files;
    files.stop_at = tried;
    files.meanwhile = [&] { save_step(30); };  // its shards were written by generation 1
    (void)set_aside_undone(
        folder.path, 10, [](uint64_t, uint64_t generation) { return generation < 2; }, files);
    stopped = files.stopped;
    if (stopped) CHECK(find_newest_valid(folder.path)->checkpoint.info().step == 30);
  }
  CHECK(tried > 3);
}

TEST_SUITE_END();
