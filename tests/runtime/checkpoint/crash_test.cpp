// CHECKPOINT-1: a crash at any operation or byte while a checkpoint is written leaves the previous
// one or the new one, never a mixture, also if the disk loses what was not synced.
#include <doctest/doctest.h>

#include "tests/long.hpp"
#include "tests/must.hpp"
#include "tests/runtime/checkpoint/crash_disk.hpp"

using namespace simplescale;
using namespace simplescale::test;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("checkpoint");

namespace {

struct Scene {
  ModelShape shape = tiny_shape();
  State before = random_state(shape, 1), after = random_state(shape, 2);
  uint64_t step_before = 10, step_after = 20;

  /// True if the newest valid checkpoint is the new one. Fails the test if it is neither of the two,
  /// if trainers would read another one, or if `latest` names none.
  bool is_after(const std::string& checkpoints) {
    auto found = must(find_newest_valid(checkpoints));
    State got = empty_state(shape, 1);
    REQUIRE(read_shard(found->checkpoint, 1, 0, got.side()).ok());
    const bool is_new = same_bits(got, after);
    REQUIRE((is_new || same_bits(got, before)));
    const uint64_t step = found->checkpoint.info().step;
    REQUIRE(step == (is_new ? step_after : step_before));
    const auto read = must(open_step(checkpoints, step));
    CHECK(read->folder() == found->checkpoint.folder());
    // While a step is rewritten, `latest` names it at a moment when only step-N.replaced exists.
    if (!found->checkpoint.folder().ends_with(".replaced"))
      CHECK(Checkpoint::open(checkpoints + "/latest").ok());
    return is_new;
  }

  /// Copies the original, writes, publishes and prunes with `files`. True if all of it succeeded.
  bool try_once(const std::string& checkpoints, FaultyFiles& files, bool& published) {
    const auto saved = save(checkpoints, after, info_of(shape, step_after), 2, files);
    published = saved.ok();
    const Status pruned =
        saved.ok() ? prune_checkpoints(checkpoints, {1}, Verify::sizes, files) : saved.status();
    // Once it is published nothing is left that has to be done.
    if (files.hit && files.dead_afterwards && !published) REQUIRE_FALSE(pruned.ok());
    if (!pruned.ok()) REQUIRE(pruned.message().find(files.reason) != std::string::npos);
    return pruned.ok();
  }

  /// The next publisher succeeds and cleans up.
  void save_again(const std::string& checkpoints) {
    REQUIRE(revoke_publishers(checkpoints).ok());
    const auto found = must(find_newest_valid(checkpoints));
    REQUIRE(put_back_replaced(checkpoints, found->checkpoint).ok());
    CHECK(Checkpoint::open(checkpoints + "/latest").ok());
    const auto saved =
        must(save(checkpoints, after, info_of(shape, step_after), 2, system_files(), "2"));
    REQUIRE(prune_checkpoints(checkpoints, {1}).ok());
    REQUIRE(is_after(checkpoints));
    for (const std::string& name : list_folder(checkpoints))
      REQUIRE((name == "latest" || name == "step-00000020"));
  }

  static void copy(const std::string& original, const std::string& checkpoints) {
    fs::remove_all(checkpoints);
    fs::copy(original, checkpoints, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }

  void check(const std::string& checkpoints, const FaultyFiles& files, bool published) {
    const bool is_new = is_after(checkpoints);
    if (published) REQUIRE(is_new);
    if (files.operations % 8 == 0 || !files.dead_afterwards) save_again(checkpoints);
  }

  /// The writer fails at its first operation or byte, then at each one that is `stride` later, until
  /// it ends before that. Returns how many it had by then.
  uint64_t every(uint64_t FaultyFiles::*limit, uint64_t stride, bool dead_afterwards,
                 const std::string& reason) {
    MemoryFolder folder;
    REQUIRE(save(folder / "original", before, info_of(shape, step_before), 1).ok());
    uint64_t tried = 0;
    for (bool hit = true; hit; tried += stride) {
      copy(folder / "original", folder / "checkpoints");
      FaultyFiles files;
      files.*limit = tried;
      files.dead_afterwards = dead_afterwards;
      files.reason = reason;
      CAPTURE(tried);
      bool published = false;
      try_once(folder / "checkpoints", files, published);
      check(folder / "checkpoints", files, published);
      hit = files.hit;
    }
    return tried;
  }
  void every_operation(bool dead_afterwards, const std::string& reason) {
    CHECK(every(&FaultyFiles::operations_max, 1, dead_afterwards, reason) > 30);
  }
  void every_byte(bool dead_afterwards, const std::string& reason, uint64_t stride) {
    CHECK(every(&FaultyFiles::bytes_max, stride, dead_afterwards, reason) > 5000);
  }

  /// At every operation, and after the last one, the machine loses its power; `seeds` times each.
  void every_power_loss(uint32_t seeds) {
    MemoryFolder folder;
    REQUIRE(save(folder / "original", before, info_of(shape, step_before), 1).ok());
    uint64_t tried = 0;
    for (bool hit = true; hit; ++tried)
      for (uint32_t seed = 0; seed < seeds; ++seed) {
        copy(folder / "original", folder / "checkpoints");
        CrashDisk files(folder / "checkpoints");
        files.operations_max = tried;
        INFO("tried = ", tried, ", seed = ", seed);
        bool published = false;
        try_once(folder / "checkpoints", files, published);
        files.crash(seed);
        check(folder / "checkpoints", files, published);
        hit = files.hit;
      }
    CHECK(tried > 30);
  }
};

}  // namespace

TEST_CASE("checkpoint: CHECKPOINT-1, a crash at any operation leaves the previous or the new one") {
  Scene().every_operation(true, "stopped by the test");
}

TEST_CASE("checkpoint: CHECKPOINT-1, a power loss at any operation leaves one of the two") {
  Scene().every_power_loss(long_tests() ? 24 : 8);
}

TEST_CASE("checkpoint: CHECKPOINT-1, a crash at any byte leaves the previous or the new one") {
  Scene().every_byte(true, "stopped by the test", long_tests() ? 1 : 7);
}

TEST_CASE("checkpoint: CHECKPOINT-1, a crash while a step is rewritten leaves one of the two") {
  Scene scene;
  scene.step_before = 20;
  scene.every_operation(true, "stopped by the test");
  scene.every_power_loss(long_tests() ? 24 : 8);
  scene.every_byte(true, "stopped by the test", 61);
}

TEST_CASE("checkpoint: a failed operation is reported and leaves the previous one valid") {
  Scene scene;
  scene.every_operation(false, "Input/output error");
  scene.step_before = 20;
  scene.every_operation(false, "Input/output error");
}

TEST_CASE(
    "checkpoint: a full disk is reported, its space freed, and the previous one stays valid") {
  Scene().every_byte(false, "No space left on device", 97);
  MemoryFolder folder;
  FaultyFiles files;
  files.bytes_max = 2000;
  files.dead_afterwards = false;
  files.reason = "No space left on device";
  const ModelShape shape = tiny_shape();
  const auto saved = save(folder.path, random_state(shape, 1), info_of(shape, 10), 1, files);
  CHECK(
      says(saved.status(), Code::io, "shard-00000-of-00001.safetensors: No space left on device"));
  CHECK(list_folder(checkpoint_tmp_folder(folder.path, 10, 1)).empty());
}

TEST_SUITE_END();
