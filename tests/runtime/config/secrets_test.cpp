// Where the secrets of a configuration go.
#include "runtime/config/secrets.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/base/files.hpp"
#include "runtime/config/schema.hpp"
#include "runtime/config/show.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

const std::string kUrl = "https://hooks.example/T0PSECRET";

struct Run : test::TempFolder {
  Run() { fs::create_directory(path + "/control"); }
  std::string config() const { return path + "/config.toml"; }
  std::string secrets() const { return path + "/control/secrets.toml"; }
};

Config with_notify(const std::string& notify) {
  Config config;
  config.run.name = "r";
  config.supervision.notify = notify;
  return config;
}

bool has_secret(const std::string& text) {
  return text.find("T0PSECRET") != std::string::npos;
}

}  // namespace

TEST_CASE("config (SECRET-1): a secret is saved in a private file, and read back from there") {
  const Run run;
  const Config config = with_notify(kUrl + " \"quoted\"\n");
  REQUIRE(save_config(run.path, config).ok());
  CHECK(!has_secret(*read_text(run.config())));
  struct stat file {};
  REQUIRE(stat(run.secrets().c_str(), &file) == 0);
  CHECK((file.st_mode & 07777) == 0600);
  for (const auto& loaded : {load_config(run.config()), load_user_config(run.config())}) {
    REQUIRE(loaded.ok());
    CHECK(loaded->config.supervision.notify == config.supervision.notify);
    CHECK(to_toml(loaded->config) == to_toml(config));
    CHECK(!has_secret(show_config(*loaded) + show_changed(*loaded)));
    CHECK(show_changed(*loaded).find("(secret)") != std::string::npos);
  }
  CHECK(load_config(run.config(), {"--supervision.notify=x"})->config.supervision.notify == "x");
  // What a user writes to config.toml counts more.
  const std::string text = *read_text(run.config());
  REQUIRE(write_file_atomic(run.config(), text + "[supervision]\n").ok());
  CHECK(!load_config(run.config()).ok());
  REQUIRE(write_file_atomic(run.config(), "[supervision]\nnotify = \"mine\"\n").ok());
  CHECK(load_config(run.config())->config.supervision.notify == "mine");
  REQUIRE(save_config(run.path, with_notify("")).ok());
  CHECK(!fs::exists(run.secrets()));
  CHECK(read_text(run.config())->find("notify = \"\"") != std::string::npos);
  REQUIRE(save_config(run.path, config).ok());
  REQUIRE(write_file_atomic(run.path + "/other.toml", "").ok());
  CHECK(load_config(run.path + "/other.toml")->config.supervision.notify.empty());
}

TEST_CASE("config: a secret that others may have written is refused, another user's left out") {
  const Run run;
  REQUIRE(save_config(run.path, with_notify(kUrl)).ok());
  REQUIRE(chmod(run.secrets().c_str(), 0660) == 0);
  CHECK(load_config(run.config()).status().code() == Code::bad_config);
  CHECK(!has_secret(load_config(run.config()).status().message()));
  REQUIRE(chmod(run.secrets().c_str(), 0600) == 0);
  fs::rename(run.secrets(), run.path + "/elsewhere");
  fs::create_symlink("../elsewhere", run.secrets());
  CHECK(load_config(run.config()).status().code() == Code::bad_config);
  fs::rename(run.path + "/elsewhere", run.secrets());
  if (geteuid() != 0) return;
  REQUIRE(chown(run.secrets().c_str(), 65534, 65534) == 0);
  CHECK(load_config(run.config())->config.supervision.notify.empty());
}

TEST_CASE("config (SECRET-1): no difference, error or sweep shows a secret") {
  const auto differ = [](const std::string& was, const std::string& now) {
    return diff(with_notify(was), with_notify(now)).allowed;
  };
  CHECK(differ(kUrl, kUrl).empty());
  const auto changed = differ(kUrl, kUrl + "2");
  REQUIRE(changed.size() == 1);
  CHECK(changed[0].was == "(secret)");
  CHECK(changed[0].now == "another (secret)");
  CHECK(differ("", kUrl)[0].was == "\"\"");
  CHECK(differ("", kUrl)[0].now == "(secret)");
  CHECK(differ(kUrl, "")[0].now == "\"\"");
  for (const std::string& wrong :
       {"--supervision.notify=[\"" + kUrl + "\"]", "--supervision.notify=\"" + kUrl,
        "--supervision.notify='" + kUrl, "--supervision.notfy=" + kUrl,
        "--supervison.notify=" + kUrl})
    CHECK_MESSAGE(!has_secret(load_config_text("", "a.toml", {wrong}).status().message()), wrong);
  for (const std::string& wrong : {"[supervision]\nnotify = [\"" + kUrl + "\"]\n",
                                   "[supervision]\nnotify = {a = \"" + kUrl + "\"}\n",
                                   "[sweep.keys]\n\"supervision.notify\" = [\"" + kUrl + "\"]\n"}) {
    const auto loaded = load_config_text(wrong, "a.toml");
    CHECK_MESSAGE(!loaded.ok(), wrong);
    CHECK_MESSAGE(!has_secret(loaded.status().message()), wrong);
  }
}

TEST_CASE("config: secrets among overrides go to a child by its environment") {
  const Overrides overrides = {"--train.max_steps=3", "--supervision.notify=a\nb", "--run.name=x",
                               "--supervision.notify=c"};
  const auto [words, secrets] = without_secrets(overrides);
  CHECK(words == Overrides{overrides[0], overrides[2]});
  setenv(kSecretOverrides, secrets.c_str(), 1);
  CHECK(take_secret_overrides() == Overrides{overrides[1], overrides[3]});
  CHECK(!std::getenv(kSecretOverrides));
  CHECK(take_secret_overrides().empty());
  CHECK(without_secrets({"--x", "", "=", "-"}).first.size() == 4);
}

TEST_CASE("config: only processes that read a bucket, or start the user's command, keep secrets") {
  Config config;
  CHECK(agents_inherit(config) == Inherits::needed);
  config.supervision.notify = kUrl;
  CHECK(agents_inherit(config) == Inherits::needed);
  config.supervision.notify = "mail me";
  CHECK(agents_inherit(config) == Inherits::all);
  CHECK(trainers_inherit(config) == Inherits::needed);
  config.supervision.notify.clear();
  config.checkpoint.upload = "s3://bucket/runs";
  CHECK(agents_inherit(config) == Inherits::with_bucket);
  CHECK(trainers_inherit(config) == Inherits::needed);
  config.checkpoint.upload.clear();
  config.data.blend = {{.name = "a", .source = "a.bin"}, {.name = "b", .source = "s3://b/c"}};
  CHECK(agents_inherit(config) == Inherits::with_bucket);
  CHECK(trainers_inherit(config) == Inherits::with_bucket);
}

TEST_CASE("config (SECRET-1): the owner is told of secrets that cannot be read") {
  const Run run;
  REQUIRE(save_config(run.path, with_notify(kUrl)).ok());
  REQUIRE(write_file_atomic(run.secrets(), "supervision.notify = \"" + kUrl, 0600).ok());
  const Status damaged = load_config(run.config()).status();
  CHECK(says(damaged, Code::bad_config, "secrets.toml"));
  CHECK(!has_secret(damaged.message()));
  REQUIRE(chmod(run.secrets().c_str(), 0) == 0);
  CHECK(load_config(run.config()).status().code() == Code::bad_config);
  if (geteuid() != 0) return;
  REQUIRE(chown(run.secrets().c_str(), 65534, 65534) == 0);  // of another user's run: only reads
  CHECK(load_config(run.config()).ok());
}

TEST_CASE("config (SECRET-1): what older versions wrote is shown without its secrets") {
  CHECK(shown_toml("a = 1 # mine\n[supervision]\n# notify is a secret\n") ==
        "a = 1 # mine\n[supervision]\n# notify is a secret\n");
  for (const std::string& old :
       {"[supervision]\nnotify = \"" + kUrl + "\"\n",
        "supervision.notify = \"\"\"\n" + kUrl + "\"\"\"\n",
        "supervision = { \"notify\" = \"" + kUrl + "\" }\n", "[supervision]\nnotify = " + kUrl}) {
    CHECK_MESSAGE(!has_secret(shown_toml(old)), shown_toml(old));
    CHECK(has_secret(old));
  }
  const std::string other = R"({"kind":"changed","subject":"train.batch","reason":"was 1"})";
  const std::string shown = shown_events(
      other + "\n" + R"({"kind":"changed","subject":"supervision.notify","reason":"was \")" + kUrl +
      R"(\" and is now \"x\""})" + "\n");
  CHECK(shown.starts_with(other + "\n"));
  CHECK(!has_secret(shown));
  CHECK(shown.find("(secret)") != std::string::npos);
  CHECK(shown_events("no JSON \"supervision.notify\" T0PSECRET").find("T0P") == std::string::npos);
}
