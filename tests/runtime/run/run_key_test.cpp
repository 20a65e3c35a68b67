// Other users have no way into control/, and a key that they may have written is not used.
#include "runtime/run/run_key.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/base/files.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

namespace fs = std::filesystem;
using namespace simplescale;

namespace {

constexpr uid_t kNobody = 65534;

struct Folder : test::TempFolder {
  ~Folder() { umask(before); }
  const RunFolder run{path + "/a/run"};
  const mode_t before = umask(0);
};

void make_folder(const std::string& path) {
  fs::create_directories(path);
  REQUIRE(chmod(path.c_str(), 0755) == 0);
}

mode_t mode_of(const std::string& path) {
  struct stat file {};
  return lstat(path.c_str(), &file) == 0 ? file.st_mode & 0777 : 0;
}

}  // namespace

TEST_CASE("run key: control/ is private with any umask, also if an older version has made it") {
  const Folder folder;
  REQUIRE(make_control(folder.run).ok());
  CHECK(mode_of(folder.run.control()) == 0700);
  REQUIRE(chmod(folder.run.control().c_str(), 0777) == 0);
  REQUIRE(make_control(folder.run).ok());
  CHECK(mode_of(folder.run.control()) == 0700);
}

TEST_CASE("run key: a control/ that is a link or another user's is refused") {
  const Folder folder;
  make_folder(folder.run.path);
  fs::create_directories(folder.path + "/elsewhere");
  REQUIRE(symlink((folder.path + "/elsewhere").c_str(), folder.run.control().c_str()) == 0);
  CHECK(make_control(folder.run).code() == Code::bad_config);
  fs::remove(folder.run.control());
  if (geteuid() != 0) return skipped("only root can make a folder of another user");
  fs::create_directories(folder.run.control());
  REQUIRE(chown(folder.run.control().c_str(), kNobody, kNobody) == 0);
  CHECK(says(make_control(folder.run), Code::bad_config, "another user"));
}

TEST_CASE("run key: a run folder that another user owns, or that others may write, is refused") {
  const Folder folder;
  REQUIRE(make_control(folder.run).ok());
  CHECK((mode_of(folder.run.path) & 0002) == 0);
  for (const mode_t mode : {0777, 01777}) {  // sticky: they could still make checkpoints/
    REQUIRE(chmod(folder.run.path.c_str(), mode) == 0);
    CHECK(has(make_control(folder.run), "can be written by other users"));
  }
  REQUIRE(chmod(folder.run.path.c_str(), 0755) == 0);
  CHECK(make_control(folder.run).ok());
  RunFolder with_slash{folder.path + "/b/run/"};
  CHECK(make_control(with_slash).ok());
  if (geteuid() != 0) return skipped("only root can make a folder of another user");
  const RunFolder theirs{folder.path + "/theirs"};
  make_folder(theirs.path);
  REQUIRE(chown(theirs.path.c_str(), kNobody, kNobody) == 0);
  CHECK(says(make_control(theirs), Code::bad_config, "another user"));
  CHECK_FALSE(fs::exists(theirs.control()));
  fs::create_directory_symlink(theirs.path, folder.path + "/link");
  CHECK(keep_others_out({folder.path + "/link"}).code() == Code::bad_config);
}

TEST_CASE("run key: a group may not write a run folder, nor what an older version has made in it") {
  const Folder folder;
  REQUIRE(make_control(folder.run).ok());
  CHECK(mode_of(folder.run.path) == 0755);
  const std::string logs = folder.run.path + "/logs", config = folder.run.config();
  fs::create_directories(logs);
  REQUIRE(write_file_atomic(config, "").ok());
  fs::create_symlink("/nowhere", folder.run.path + "/link");
  for (const std::string& path : {folder.run.path, logs}) REQUIRE(chmod(path.c_str(), 0775) == 0);
  CHECK(keep_others_out(folder.run).ok());
  for (const std::string& path : {folder.run.path, logs}) CHECK(mode_of(path) == 0755);
  for (const std::string& file :
       {config, folder.run.control() + "/submit.toml", folder.run.control() + "/submit.sh"}) {
    REQUIRE(write_file_atomic(file, "").ok());
    REQUIRE(chmod(file.c_str(), 0664) == 0);
    const Status refused = keep_others_out(folder.run);
    CHECK(says(refused, Code::bad_config, file + " can be written by other users"));
    fs::remove(file);
  }
  fs::create_symlink("/nowhere", config);
  CHECK(keep_others_out(folder.run).message().find("is a link") != std::string::npos);
}

TEST_CASE("run key: a folder that is no run keeps the rights of its group") {
  const Folder folder;
  const std::string file = folder.run.path + "/paper.txt";
  fs::create_directories(folder.run.path);
  REQUIRE(write_file_atomic(file, "").ok());
  for (const std::string& path : {folder.run.path, file}) REQUIRE(chmod(path.c_str(), 0775) == 0);
  CHECK(keep_others_out(folder.run).ok());
  for (const std::string& path : {folder.run.path, file}) CHECK(mode_of(path) == 0775);
  REQUIRE(make_control(folder.run).ok());
  for (const std::string& path : {folder.run.path, file}) CHECK(mode_of(path) == 0755);
}

TEST_CASE("run key: a folder in which another user has put something is refused") {
  const Folder folder;
  CHECK(keep_others_out(folder.run).ok());  // there is none yet
  CHECK_FALSE(fs::exists(folder.run.path));
  if (geteuid() != 0) return skipped("only root can make a file of another user");
  REQUIRE(make_control(folder.run).ok());
  for (const std::string& path :
       {folder.run.path + "/logs", folder.run.control() + "/ready-1.0.0", folder.run.path}) {
    fs::create_symlink("/tmp", path + ".theirs");
    REQUIRE(lchown((path + ".theirs").c_str(), kNobody, kNobody) == 0);
    const RunFolder linked{path + ".theirs/"};
    const Status refused = keep_others_out(path == folder.run.path ? linked : folder.run);
    CHECK(says(refused, Code::bad_config, ".theirs belongs to another user"));
    fs::remove(path + ".theirs");
  }
  CHECK(keep_others_out(folder.run).ok());
}

TEST_CASE("run key: a folder of root is refused if a group may rename what is in it") {
  if (geteuid() != 0) return skipped("only root can make a folder for another user");
  const Folder folder;
  make_folder(folder.run.path);
  REQUIRE(chmod(folder.path.c_str(), 0755) == 0);
  REQUIRE(chown(folder.run.path.c_str(), 0, kNobody) == 0);
  const auto refused = [&](mode_t mode) {
    REQUIRE(chmod(folder.run.path.c_str(), mode) == 0);
    const pid_t child = fork();
    if (child == 0)
      _exit(setgid(kNobody) == 0 && setuid(kNobody) == 0
                ? make_control(folder.run).code() == Code::bad_config
                : 2);
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  CHECK(refused(0775) == 1);
  CHECK_FALSE(fs::exists(folder.run.control()));
  CHECK(refused(01775) == 0);
}

TEST_CASE("run key: a key that other users own, may write, or link to is not used") {
  const Folder folder;
  REQUIRE(make_control(folder.run).ok());
  REQUIRE(make_run_key(folder.run).ok());
  const std::string key = folder.run.key();
  CHECK(mode_of(key) == 0600);
  CHECK(read_run_key(folder.run).ok());
  REQUIRE(chmod(key.c_str(), 0620) == 0);
  CHECK(read_run_key(folder.run).status().code() == Code::bad_data);
  REQUIRE(chmod(key.c_str(), 0600) == 0);
  fs::rename(key, folder.path + "/key");
  REQUIRE(symlink((folder.path + "/key").c_str(), key.c_str()) == 0);
  CHECK(!read_run_key(folder.run).ok());
  CHECK(!check_own(key).ok());
  fs::remove(key);
  REQUIRE(mkfifo(key.c_str(), 0600) == 0);
  CHECK(!read_run_key(folder.run).ok());  // and does not wait for a writer
  fs::remove(key);
  if (geteuid() != 0) return skipped("only root can make a file of another user");
  fs::rename(folder.path + "/key", key);
  REQUIRE(chown(key.c_str(), kNobody, kNobody) == 0);
  CHECK(read_run_key(folder.run).status().code() == Code::bad_data);
}

TEST_CASE("run key: a replaced file is not writable by others, and follows no planted link") {
  const Folder folder;
  fs::create_directories(folder.run.path);
  const std::string file = folder.run.path + "/file";
  REQUIRE(write_file_atomic(file, "one").ok());
  CHECK(mode_of(file) == 0644);
  REQUIRE(symlink((folder.path + "/victim").c_str(), (file + ".part").c_str()) == 0);
  CHECK(write_file_atomic(file, "two").ok());
  CHECK(*read_text(file) == "two");
  CHECK(!fs::exists(folder.path + "/victim"));
}
