// CHECKPOINT-1: a crash at any operation or byte while a checkpoint is written leaves the previous
// one or the new one, never a mixture.
#include <doctest/doctest.h>

#include <functional>

#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;
using namespace simplescale::test;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("checkpoint");

namespace {

struct Scene {
  ModelShape shape = tiny_shape();
  State before = random_state(shape, 1), after = random_state(shape, 2);
  uint64_t step_before = 10, step_after = 20;

  /// The step of the newest valid checkpoint; fails the test if it is neither of the two.
  bool is_after(const std::string& checkpoints) {
    auto found = find_newest_valid(checkpoints);
    REQUIRE_MESSAGE(found.ok(), found.status().message());
    State got = empty_state(shape, 1);
    REQUIRE(read_shard(found->checkpoint, 1, 0, got.side()).ok());
    const bool is_new = same_bits(got, after);
    REQUIRE((is_new || same_bits(got, before)));
    REQUIRE(found->checkpoint.info().step == (is_new ? step_after : step_before));
    return is_new;
  }

  /// Writes, publishes and prunes with `files`, then checks what is left.
  void try_once(const std::string& original, const std::string& checkpoints, FaultyFiles& files,
                bool lose_unsynced) {
    fs::remove_all(checkpoints);
    fs::copy(original, checkpoints, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const auto saved = save(checkpoints, after, info_of(shape, step_after), 2, files);
    const Status pruned =
        saved.ok() ? prune_checkpoints(checkpoints, {1}, Verify::sizes, files) : saved.status();
    if (files.hit && files.dead_afterwards) {
      REQUIRE_FALSE(pruned.ok());
      if (lose_unsynced) files.lose_unsynced();
    }
    if (!pruned.ok()) REQUIRE(pruned.message().find(files.reason) != std::string::npos);
    const bool is_new = is_after(checkpoints);
    if (saved.ok()) REQUIRE(is_new);
    // The next attempt succeeds and cleans up.
    if (files.operations % 8 == 0 || !files.dead_afterwards) {
      REQUIRE(save(checkpoints, after, info_of(shape, step_after), 2).ok());
      REQUIRE(prune_checkpoints(checkpoints, {1}).ok());
      REQUIRE(is_after(checkpoints));
      for (const std::string& name : list_folder(checkpoints))
        REQUIRE((name == "latest" || name == "step-00000020"));
    }
  }

  void every_operation(bool dead_afterwards, const std::string& reason, bool lose_unsynced) {
    TempFolder folder;
    REQUIRE(save(folder / "original", before, info_of(shape, step_before), 1).ok());
    uint64_t tried = 0;
    for (bool hit = true; hit; ++tried) {
      FaultyFiles files;
      files.operations_max = tried;
      files.dead_afterwards = dead_afterwards;
      files.reason = reason;
      CAPTURE(tried);
      try_once(folder / "original", folder / "checkpoints", files, lose_unsynced);
      hit = files.hit;
    }
    CHECK(tried > 30);
  }

  void every_byte(bool dead_afterwards, const std::string& reason, uint64_t stride) {
    TempFolder folder;
    REQUIRE(save(folder / "original", before, info_of(shape, step_before), 1).ok());
    uint64_t tried = 0;
    for (bool hit = true; hit; tried += stride) {
      FaultyFiles files;
      files.bytes_max = tried;
      files.dead_afterwards = dead_afterwards;
      files.reason = reason;
      CAPTURE(tried);
      try_once(folder / "original", folder / "checkpoints", files, false);
      hit = files.hit;
    }
    CHECK(tried > 5000);
  }
};

}  // namespace

TEST_CASE("checkpoint: CHECKPOINT-1, a crash at any operation leaves the previous or the new one") {
  Scene scene;
  scene.every_operation(true, "stopped by the test", false);
  scene.every_operation(true, "stopped by the test", true);
}

TEST_CASE("checkpoint: CHECKPOINT-1, a crash at any byte leaves the previous or the new one") {
  Scene().every_byte(true, "stopped by the test", 1);
}

TEST_CASE("checkpoint: CHECKPOINT-1, a crash while a step is rewritten leaves one of the two") {
  Scene scene;
  scene.step_before = 20;
  scene.every_operation(true, "stopped by the test", false);
  scene.every_operation(true, "stopped by the test", true);
  scene.every_byte(true, "stopped by the test", 61);
}

TEST_CASE("checkpoint: a failed operation is reported and leaves the previous one valid") {
  Scene().every_operation(false, "Input/output error", false);
}

TEST_CASE(
    "checkpoint: a full disk is reported, its space freed, and the previous one stays valid") {
  Scene().every_byte(false, "No space left on device", 97);
  TempFolder folder;
  FaultyFiles files;
  files.bytes_max = 2000;
  files.dead_afterwards = false;
  files.reason = "No space left on device";
  const ModelShape shape = tiny_shape();
  const auto saved = save(folder.path(), random_state(shape, 1), info_of(shape, 10), 1, files);
  CHECK(saved.status().code() == Code::io);
  CHECK(saved.status().message().find(
            "shard-00000-of-00001.safetensors: No space left on device") != std::string::npos);
  CHECK(list_folder(checkpoint_tmp_folder(folder.path(), 10, 1)).empty());
}

TEST_SUITE_END();
