// Errors of the file system that do not last: a checkpoint is published all the same.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"

using namespace simplescale;
using namespace simplescale::test;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("checkpoint retries");

namespace {

constexpr Retries quick{3, std::chrono::milliseconds(1)};

/// Fails all links.
class NoLinks : public FileOps {
 public:
  Status symlink(const std::string&, const std::string& path) override {
    return {Code::io, "cannot link " + path};
  }
};

}  // namespace

TEST_CASE("checkpoint: any operation of publishing may fail once") {
  const ModelShape shape = tiny_shape();
  const State state = random_state(shape, 1);
  CheckpointInfo info = info_of(shape, 20);
  info.shards = 2;
  uint64_t operations = 1;
  for (uint64_t at = 0; at < operations; ++at)
    for (const bool again : {false, true}) {  // again: step 20 is there already
      MemoryFolder folder;
      REQUIRE(save(folder.path, state, info_of(shape, again ? 20 : 10), 2).ok());
      const auto records = must(write_shards(folder.path, state, info, 2));
      FaultyFiles files;
      files.operations_max = at;
      files.dead_afterwards = false;
      const auto published =
          publish_checkpoint(folder.path, checkpoint_tmp_folder(folder.path, 20, 1), "2", info,
                             *records, files, quick);
      operations = std::max(operations, files.operations);
      REQUIRE_MESSAGE(published.ok(), at << ": " << published.status().message());
      CHECK(Checkpoint::open(*published)->verify().ok());
      CHECK(fs::read_symlink(folder / "latest") == "step-00000020");
      const auto names = list_folder(folder.path);
      CHECK_MESSAGE(
          std::ranges::none_of(names, [](const auto& name) { return name.starts_with("tmp-0"); }),
          at);
    }
  CHECK(operations > 5);
}

TEST_CASE("checkpoint: one that is in place counts, even if `latest` cannot be updated") {
  const ModelShape shape = tiny_shape();
  const State state = random_state(shape, 1);
  MemoryFolder folder;
  REQUIRE(save(folder.path, state, info_of(shape, 10), 2).ok());
  NoLinks files;
  CHECK(save(folder.path, state, info_of(shape, 20), 2, files).ok());
  CHECK(fs::read_symlink(folder / "latest") == "step-00000010");
  CHECK(find_newest_valid(folder.path)->checkpoint.info().step == 20);
  REQUIRE(revoke_publishers(folder.path).ok());  // the next publisher repairs the link
  CHECK(fs::read_symlink(folder / "latest") == "step-00000020");
}

TEST_SUITE_END();
