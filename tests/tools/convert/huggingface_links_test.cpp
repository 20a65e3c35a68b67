// A Hugging Face folder of another user: no link in it leads the import to a file outside.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/base/input_file.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"
#include "tools/convert/commands.hpp"
#include "tools/convert/huggingface.hpp"

using namespace simplescale;
using namespace simplescale::test;
using nlohmann::json;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("huggingface");

TEST_CASE("huggingface: links out of the imported folder are not followed") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  auto checkpoint = saved(folder, shape);
  const std::string repository = folder / "models--a--b";
  const std::string hf = repository + "/snapshots/0123";
  fs::create_directories(repository + "/snapshots");
  fs::create_directories(repository + "/blobs");
  REQUIRE(export_hf(*checkpoint, hf, DType::f32).ok());
  spew(folder / "secret", "x");
  // The layout of the cache of huggingface_hub.
  fs::rename(hf + "/config.json", repository + "/blobs/c0ffee");
  fs::create_symlink("../../blobs/c0ffee", hf + "/config.json");
  CHECK(works(import_hf(hf, folder / "cached")));
  fs::create_symlink("config.json", hf + "/inside.json");
  CHECK(import_hf(hf, folder / "inside").ok());
  for (const char* name : {"tokenizer.model", "tokenizer.json", "model-00001.safetensors"})
    for (const std::string& target :
         {folder / "secret", std::string("../../../secret"), std::string("/nowhere")}) {
      fs::create_symlink(target, hf + "/" + name);
      const Status status = import_hf(hf, folder / "new");
      CHECK(status.code() == Code::bad_data);
      const std::string why = target == "/nowhere" ? ": No such file" : " is a link to " + target;
      CHECK_MESSAGE(status.message().find(name + why) != std::string::npos, status.message());
      CHECK_FALSE(fs::exists(folder / "new"));
      fs::remove(hf + "/" + name);
    }
  CHECK(import_hf(hf, folder / "again").ok());
}

TEST_CASE("huggingface: a folder that cannot be listed is refused") {
  if (geteuid() != 0) return skipped("only root can act as another user");
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  auto checkpoint = saved(folder, shape);
  REQUIRE(export_hf(*checkpoint, folder / "hf", DType::f32).ok());
  spew(folder / "private.json", R"({"password":"x"})");
  fs::remove(folder / "hf/generation_config.json");
  fs::create_symlink(folder / "private.json", folder / "hf/generation_config.json");
  fs::permissions(folder / "hf", fs::perms{0711});
  fs::permissions(folder.path, fs::perms{0777});
  REQUIRE(seteuid(65534) == 0);
  const Status status = import_hf(folder / "hf", folder / "new");
  REQUIRE(seteuid(0) == 0);
  CHECK(says(status, Code::bad_data, "cannot list"));
  CHECK_FALSE(fs::exists(folder / "new"));
}

namespace {

/// Plants a link once all links have been checked: import_hf() then removes what an import that was
/// interrupted has left.
class PlantingFiles : public FileOps {
 public:
  PlantingFiles(std::string target, std::string link)
      : target_(std::move(target)), link_(std::move(link)) {}
  Status rmdir(const std::string& path) override {
    if (!fs::is_symlink(link_)) {
      fs::remove(link_);
      fs::create_symlink(target_, link_);
    }
    return FileOps::rmdir(path);
  }

 private:
  const std::string target_, link_;
};

}  // namespace

TEST_CASE("huggingface: a link that is planted after the check is not followed either") {
  MemoryFolder folder;
  const ModelShape shape = tiny_shape();
  auto checkpoint = saved(folder, shape);
  const std::string hf = folder / "hf";
  REQUIRE(export_hf(*checkpoint, hf, DType::f32).ok());
  const std::string secret = folder / "secret";
  spew(secret, R"({"password":"x"})");
  SUBCASE("files that an import copies") {
    for (const char* name : {"generation_config.json", "tokenizer.model"}) {
      PlantingFiles files(secret, hf + "/" + name);
      CHECK(says(import_hf(hf, folder / "new", files), Code::bad_data, "outside of the folder"));
      CHECK_FALSE(fs::exists(folder / "new"));
      CHECK_FALSE(fs::exists(folder / "new.partial"));
      fs::remove(hf + "/" + name);
    }
  }
  SUBCASE("a tokenizer's configuration and template") {
    spew(hf + "/tokenizer.json", "{}");
    PlantingFiles config(secret, hf + "/tokenizer_config.json");
    CHECK(import_hf(hf, folder / "new", config).code() == Code::bad_data);
    fs::remove(hf + "/tokenizer_config.json");
    spew(hf + "/tokenizer_config.json", "{}");
    PlantingFiles jinja(secret, hf + "/chat_template.jinja");
    CHECK(import_hf(hf, folder / "new", jinja).code() == Code::bad_data);
    CHECK_FALSE(fs::exists(folder / "new"));
  }
  SUBCASE("the weights, their index, the shape of the model") {
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::rename(hf + "/" + name, secret);
      fs::create_symlink(secret, hf + "/" + name);
      CHECK(read_hf_config(hf + "/config.json").ok() == (name != std::string("config.json")));
      CHECK(SafetensorsFolder::open(hf).ok() == (name == std::string("config.json")));
      fs::remove(hf + "/" + name);
      fs::rename(secret, hf + "/" + name);
    }
    spew(secret, R"({"weight_map":{}})");
    fs::create_symlink(secret, hf + "/model.safetensors.index.json");
    CHECK(SafetensorsFolder::open(hf).status().code() == Code::bad_data);
  }
}

// `train --from HF` on bare tokens names the folder's tokenizer for as long as the run lasts, and each
// checkpoint takes a copy.
TEST_CASE("huggingface: a tokenizer that its owner replaces by a link gets to no checkpoint") {
  if (geteuid() != 0) return skipped("only root can make links of another user");
  const MemoryFolder folder;
  fs::create_directory(folder / "hf");
  spew(folder / "secret", "a private text");
  const ModelShape shape = tiny_shape();
  CheckpointInfo info = info_of(shape, 1);
  info.tokenizer = folder / "hf/tokenizer.json";
  const auto save_with = [&](const std::string& target, uid_t owner) {
    fs::remove(info.tokenizer);
    fs::create_symlink(target, info.tokenizer);
    REQUIRE(lchown(info.tokenizer.c_str(), owner, owner) == 0);
    return save(folder / "checkpoints", random_state(shape, 2), info, 1).status();
  };
  constexpr uid_t stranger = 65534;
  const Status refused = save_with(folder / "secret", stranger);
  CHECK(says(refused, Code::bad_data, "tokenizer.json is a link to "));
  const Status loaded = Tokenizer::load(info.tokenizer).status();
  CHECK(loaded.message().find("tokenizer.json is a link to ") != std::string::npos);
  CHECK(save_with(folder / "secret", 0).ok());  // one's own
  spew(folder / "hf/other.json", "{}");
  CHECK(save_with("other.json", stranger).ok());
}

// The owner of the folder's parent exchanges it. Seen as the folder, private/ would hold the file.
TEST_CASE("huggingface: a folder that becomes a link while it is read leads to no file outside") {
  const MemoryFolder folder;
  const std::string hf = folder / "hf", link = folder / "link";
  fs::create_directory(hf);
  fs::create_directory(folder / "private");
  spew(folder / "private/secret", "a private text");
  fs::create_symlink("../private/secret", hf + "/config.json");
  fs::create_symlink("private", link);
  const std::jthread exchanges([&](const std::stop_token& stop) {
    while (!stop.stop_requested())
      renameat2(AT_FDCWD, hf.c_str(), AT_FDCWD, link.c_str(), RENAME_EXCHANGE);
  });
  for (int i = 0; i < 20'000; ++i) REQUIRE_FALSE(read_text_inside(hf + "/config.json", 1'024).ok());
}

TEST_SUITE_END();
