// What publish_checkpoint() refuses.
#include <doctest/doctest.h>

#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;
using namespace simplescale::test;
namespace fs = std::filesystem;

namespace {

/// The shards of a checkpoint of step 10 that wait to be published.
struct Unpublished {
  explicit Unpublished(int shards = 2) {
    info.shards = shards;
    records = must(write_shards(folder.path, random_state(info.shape, 9), info, shards)).take();
  }
  Status publish(const std::string& coordinator = "1") const {
    return publish_checkpoint(folder.path, tmp, coordinator, info, records).status();
  }

  MemoryFolder folder;
  CheckpointInfo info = info_of(tiny_shape(), 10);
  const std::string tmp = checkpoint_tmp_folder(folder.path, 10, 1);
  std::vector<ShardRecord> records;
};

}  // namespace

TEST_SUITE_BEGIN("checkpoint");

TEST_CASE(
    "checkpoint: a shard that was not written, or is not on a shared disk, is refused at "
    "publishing") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  CheckpointInfo info = info_of(shape, 10);
  info.shards = 2;
  const std::string tmp = checkpoint_tmp_folder(folder.path, 10, 1);
  State piece = cut(random_state(shape, 9), shape, 2, 0);
  const auto record = must(write_shard(tmp, shape, 2, 0, piece.side()));
  const auto lacking = publish_checkpoint(folder.path, tmp, "1", info, {*record});
  CHECK(has(lacking.status(), "shard-00001-of-00002.safetensors has not been written"));
  CHECK(list_folder(folder.path).empty());
  ShardRecord second = *record;
  second.file = "shard-00001-of-00002.safetensors";
  REQUIRE(write_shard(tmp, shape, 2, 0, piece.side()).ok());
  const auto elsewhere = publish_checkpoint(folder.path, tmp, "1", info, {*record, second});
  CHECK(elsewhere.status().message().find("that all nodes share") != std::string::npos);
}

TEST_CASE("checkpoint: a shard's file of another size than its writer said is refused") {
  const Unpublished made;
  const std::string file = made.tmp + "/" + made.records[1].file;
  spew(file, contents(file).substr(1));
  CHECK(says(made.publish(), Code::bad_data, "has another size"));
  CHECK(list_folder(made.folder.path).empty());
}

TEST_CASE("checkpoint: two records of one shard are no checkpoint") {
  Unpublished made;
  made.records[1] = made.records[0];
  CHECK(has(made.publish(), "shard-00001-of-00002.safetensors has not been"));
}

TEST_CASE("checkpoint: a manifest that could not be read again is not published") {
  Unpublished made(1);
  made.records[0].tensors.erase(made.records[0].tensors.begin());
  CHECK(made.publish().message().find("no checksum of") != std::string::npos);
  CHECK(list_folder(made.folder.path).empty());
}

TEST_CASE("checkpoint: a step that is published counts as this one only if its shards are these") {
  const Unpublished made;
  REQUIRE(made.publish("1").ok());
  // Another coordinator has published it and died before it could report.
  CHECK(made.publish("2").ok());
  REQUIRE(save(made.folder.path, random_state(made.info.shape, 8), made.info, 2).ok());
  CHECK(made.publish("3").code() == Code::not_found);
}

TEST_CASE("checkpoint: one outside a run replaces no folder, not even an empty one") {
  MemoryFolder folder;
  CheckpointInfo info = info_of(tiny_shape(), 0);
  info.shards = 1;
  const auto records = must(write_shards(folder.path, random_state(info.shape, 9), info, 1));
  fs::create_directory(folder / "mine");
  CHECK(says(publish_checkpoint_as(folder / "mine", checkpoint_tmp_folder(folder.path, 0, 1), info,
                                   *records),
             Code::bad_data, "exists already"));
  CHECK(list_folder(folder.path) == std::vector<std::string>{"mine"});
  CHECK(list_folder(folder / "mine").empty());
}

TEST_SUITE_END();
