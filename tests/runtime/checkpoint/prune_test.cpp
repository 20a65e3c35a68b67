// Which checkpoints prune_checkpoints() keeps.
#include <doctest/doctest.h>
#include <unistd.h>

#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;
using namespace simplescale::test;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("checkpoint");

TEST_CASE(
    "prune: keeps the newest valid ones, the permanent ones, and the one that `latest` names") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  for (uint64_t step = 10; step <= 80; step += 10)
    REQUIRE(save(folder.path, random_state(shape, 1), info_of(shape, step), 1).ok());
  fs::remove(folder / "latest");
  fs::create_symlink("step-00000020", folder / "latest");
  fs::remove(folder / "step-00000080/manifest.json");  // damaged: does not count
  for (const char* name :
       {"tmp-00000050-1", "tmp-00000090-2"}) {  // left by a crash; still being written
    fs::create_directories(folder / name);
    spew(folder / name + std::string("/shard"), "half");
  }
  REQUIRE(prune_checkpoints(folder.path, {2, 40}).ok());
  CHECK(list_folder(folder.path) ==
        std::vector<std::string>{"latest", "step-00000020", "step-00000040", "step-00000060",
                                 "step-00000070", "step-00000080", "tmp-00000090-2"});
}

TEST_CASE("prune: checkpoints after until_step are neither counted nor removed") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  for (const uint64_t step : {10, 20, 30, 40})
    REQUIRE(save(folder.path, random_state(shape, 1), info_of(shape, step), 1).ok());
  const auto steps_after = [&](uint64_t until_step) {
    REQUIRE(prune_checkpoints(folder.path, {.keep = 2, .until_step = until_step}).ok());
    return checkpoint_steps(folder.path);
  };
  CHECK(steps_after(20) == std::vector<uint64_t>{10, 20, 30, 40});
  CHECK(steps_after(30) == std::vector<uint64_t>{20, 30, 40});
  CHECK(steps_after(40) == std::vector<uint64_t>{30, 40});
}

TEST_CASE("prune: step-N.replaced counts for nothing once step-N is there") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  for (const uint64_t step : {10, 20})
    REQUIRE(save(folder.path, random_state(shape, 1), info_of(shape, step), 1).ok());
  fs::copy(folder / "step-00000020", folder / "step-00000020.replaced");
  REQUIRE(prune_checkpoints(folder.path, {2}).ok());
  CHECK(list_folder(folder.path) ==
        std::vector<std::string>{"latest", "step-00000010", "step-00000020"});
}

TEST_CASE("prune: keeps those with the lowest validation loss, and `best` names the first") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  const KeepRules rules{.keep = 1, .keep_best = 2};
  const auto save_step = [&](uint64_t step, std::optional<double> val_loss) {
    CheckpointInfo info = info_of(shape, step);
    info.val_loss = val_loss;
    REQUIRE(save(folder.path, random_state(shape, 1), info, 1).ok());
    REQUIRE(prune_checkpoints(folder.path, rules).ok());
  };
  const auto best = [&] { return fs::read_symlink(folder / "best").string(); };
  save_step(10, std::nullopt);
  CHECK_FALSE(fs::is_symlink(folder / "best"));
  save_step(20, 3.0);
  CHECK(best() == "step-00000020");
  CHECK(Checkpoint::open(folder / "best")->info().val_loss == 3.0);
  save_step(30, 2.0);
  save_step(40, 2.5);
  save_step(50, std::nullopt);
  save_step(60, 2.0);  // as good as an older one
  save_step(70, 4.0);
  CHECK(best() == "step-00000030");
  CHECK(list_folder(folder.path) == std::vector<std::string>{"best", "latest", "step-00000030",
                                                             "step-00000060", "step-00000070"});
  // Steps that were undone are made again: the new checkpoint replaces the old one.
  save_step(30, 5.0);
  CHECK(best() == "step-00000060");
  // The best one is damaged: it is no candidate any more.
  fs::remove(folder / "step-00000060/manifest.json");
  save_step(80, 4.5);
  CHECK(best() == "step-00000070");
  REQUIRE(prune_checkpoints(folder.path, {1}).ok());
  CHECK_FALSE(fs::is_symlink(folder / "best"));
}

TEST_CASE("prune: in a folder that cannot be listed, nothing is removed and `best` stays") {
  if (geteuid() != 0) return skipped("only root can act as another user");
  MemoryFolder folder;
  CheckpointInfo info = info_of(tiny_shape(), 10);
  info.val_loss = 2.0;
  REQUIRE(save(folder.path, random_state(tiny_shape(), 1), info, 1).ok());
  const KeepRules rules{.keep = 1, .keep_best = 2};
  REQUIRE(prune_checkpoints(folder.path, rules).ok());
  for (const std::string& path : {folder.path, folder / "step-00000010"})
    REQUIRE(chown(path.c_str(), 65534, 65534) == 0);
  fs::permissions(folder.path, fs::perms{0300});
  REQUIRE(seteuid(65534) == 0);
  const Status status = prune_checkpoints(folder.path, rules);
  REQUIRE(seteuid(0) == 0);
  CHECK(status.code() == Code::io);
  CHECK(fs::read_symlink(folder / "best") == "step-00000010");
}

TEST_CASE("prune: `best` never names step-N.replaced") {
  MemoryFolder folder;
  const auto save_step = [&](uint64_t step, double val_loss) {
    CheckpointInfo info = info_of(tiny_shape(), step);
    info.val_loss = val_loss;
    REQUIRE(save(folder.path, random_state(info.shape, 1), info, 1).ok());
  };
  save_step(10, 1.0);
  fs::rename(folder / "step-00000010", folder / "before");
  save_step(10, 5.0);
  save_step(20, 6.0);
  fs::rename(folder / "before", folder / "step-00000010.replaced");
  REQUIRE(prune_checkpoints(folder.path, {.keep = 2, .keep_best = 1}).ok());
  CHECK(fs::read_symlink(folder / "best") == "step-00000010");
}

TEST_CASE("prune: never removes the only valid one") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  for (const uint64_t step : {10, 20, 30})
    REQUIRE(save(folder.path, random_state(shape, 1), info_of(shape, step), 1).ok());
  for (const char* name : {"step-00000020", "step-00000030"}) {
    const std::string path = folder / name + std::string("/shard-00000-of-00001.safetensors");
    std::string bytes = contents(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);  // the sizes stay the same
    spew(path, bytes);
  }
  REQUIRE(prune_checkpoints(folder.path, {0}, Verify::full).ok());
  CHECK(find_newest_valid(folder.path)->checkpoint.info().step == 10);
}

TEST_SUITE_END();
