// Links in a folder of token files that another user has made, or may change at any time.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "runtime/data/manifest.hpp"
#include "runtime/feed/run_data.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/prepare.hpp"

using namespace simplescale;

namespace {

namespace fs = std::filesystem;

constexpr uid_t stranger = 65534;

struct Fixture {
  test::TempFolder folder;
  Config config;
  ModelShape shape;

  Fixture() {
    config.run.name = "r";
    config.run.folder = folder.path + "/run";
    config.model.preset = "micro";
    config.model.vocab = 4096;
    config.train.max_steps = 10;
    shape = *model_shape(config);
    shape.block_size = 8;
    fs::create_directories(folder.path + "/run/control");
  }

  /// What becomes of opening `source` while `file` is a link of `owner` to the same bytes elsewhere.
  Status opened(const std::string& source, const std::string& file, uid_t owner) {
    const std::string secret = folder.path + "/secret";
    config.data.source = source;
    const auto open = [&](DataFiles::Listing listing) {
      auto data = open_tokens(config, shape, listing);
      if (!data.ok()) return data.status();
      SS_RETURN_IF_ERROR(check_tokens(config, *data));
      return data->files.save_listing(listing_file(config));
    };
    if (Status whole = open(DataFiles::Listing::anew); !whole.ok()) return whole;
    auto kept = open_tokens(config, shape).take();
    fs::rename(file, secret);
    fs::create_symlink(secret, file);
    REQUIRE(lchown(file.c_str(), owner, owner) == 0);
    const Status at_start = open(DataFiles::Listing::anew);
    // A process of the run that opens the files later, and one that opens them once more.
    CHECK(open(DataFiles::Listing::of_run).ok() == at_start.ok());
    Dataset& data = kept.sources.front().data;
    if (const auto kind = fs::path(file).extension(); kind == ".bin" || kind == ".mask")
      CHECK((data.train.reopen().ok() && data.validation.reopen().ok()) == at_start.ok());
    CHECK(hash_file(file).ok() == at_start.ok());
    fs::remove(file);
    fs::rename(secret, file);
    return at_start;
  }

  void check(const std::string& source, const std::string& file) {
    INFO("source = ", source, ", file = ", file);
    CHECK(opened(source, file, 0).message() == "");  // one's own
    CHECK(says(opened(source, file, stranger), Code::bad_data,
               file + " is a link to " + folder.path + "/secret, outside of the folder"));
  }
};

}  // namespace

TEST_SUITE("token links") {
  TEST_CASE_FIXTURE(Fixture, "token links: another user's link leads to no token, index or mask") {
    if (geteuid() != 0) return skipped("only root can make links of another user");
    const std::string bin = folder.write("made/a.bin", std::string(200, '\0'));
    folder.write("made/a.idx", test::megatron_index({60, 40}, {0, 1, 2}));
    const std::string mask = folder.path + "/made/a.mask";
    LossMaskWriter writer(mask);
    REQUIRE(writer.add({{10, 20}}).ok());
    REQUIRE(writer.finish(100).ok());
    for (const std::string& source :
         {folder.path + "/made", folder.path + "/made/a", folder.path + "/made/a.bin"})
      for (const char* name : {"/a.bin", "/a.idx", "/a.mask"})
        check(source, folder.path + "/made" + name);
    // A link to a file beside it shows nothing that is not there anyway.
    fs::rename(bin, folder.path + "/made/a.tokens");
    fs::create_symlink("a.tokens", bin);
    REQUIRE(lchown(bin.c_str(), stranger, stranger) == 0);
    config.data.source = folder.path + "/made";
    CHECK(open_tokens(config, shape).ok());
  }

  TEST_CASE_FIXTURE(Fixture,
                    "token links: another user's link leads to nothing in a prepared folder") {
    if (geteuid() != 0) return skipped("only root can make links of another user");
    const std::string made = folder.path + "/made";
    std::string text;
    for (int i = 0; i < 300; ++i) text += "some words of line " + std::to_string(i * i) + "\n";
    const auto manifest = must(prepare({.source = folder.write("text.txt", text),
                                        .folder = made,
                                        .byte_level = true,
                                        .vocab = 400,
                                        .validation_fraction = 0.1}));
    for (const FileRecord* record : manifest->files())
      if (!record->hash.empty()) check(made, made + "/" + record->name);
    check(made, made + "/manifest.json");
  }
}
