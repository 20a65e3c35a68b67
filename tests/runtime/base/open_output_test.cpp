// No name that another user has planted leads to another file.
#include "runtime/base/open_output.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "runtime/base/create_file.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/own_folder.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

constexpr uid_t kOther = 65534;

struct Folder : test::TempFolder {
  Folder() {
    REQUIRE(write_file_atomic(precious, "mine").ok());
    fs::create_directory(path + "/shared");
  }
  std::string in(const std::string& name) const { return path + "/shared/" + name; }
  const std::string precious = path + "/precious";
};

/// Opens the file, writes "new" at its beginning, and returns its contents; or the errno.
std::string written(const std::string& path, Output how) {
  const int fd = open_output(path, how);
  if (fd < 0) return std::to_string(errno);
  CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(write(fd, "new", 3) == 3);
  close(fd);
  return *read_text(path);
}

}  // namespace

TEST_CASE("output: a file is replaced, continued or kept") {
  const Folder folder;
  const std::string path = folder.in("a");
  CHECK(written(path, Output::replace) == "new");
  CHECK(written(path, Output::append) == "newnew");
  CHECK(written(path, Output::keep) == "newnew");
  CHECK(written(path, Output::replace) == "new");
  CHECK(written(path + "/", Output::replace) == std::to_string(EISDIR));
  CHECK(written(folder.in("missing/a"), Output::replace) == std::to_string(ENOENT));
  CHECK(output_error(path, ENOENT).code() == Code::not_found);
  CHECK(output_error(path, ELOOP).message().find("a link is in the way") != std::string::npos);
}

TEST_CASE("output (FILE-1): no link, hard link or pipe under the file's name is written to") {
  const Folder folder;
  const std::string path = folder.in("train.bin.part");
  fs::create_symlink("../precious", path);
  for (const Output how : {Output::append, Output::keep, Output::lock})
    CHECK(written(path, how) == std::to_string(ELOOP));
  CHECK(written(path, Output::replace) == "new");
  CHECK(!fs::is_symlink(path));
  fs::remove(path);
  fs::create_hard_link(folder.precious, path);
  CHECK(written(path, Output::replace) == "new");
  fs::remove(path);
  REQUIRE(mkfifo(path.c_str(), 0666) == 0);
  CHECK(written(path, Output::append) == std::to_string(ENXIO));
  CHECK(written(path, Output::keep) == std::to_string(EPERM));
  CHECK(written(path, Output::replace) == "new");
  CHECK(*read_text(folder.precious) == "mine");
  CHECK(written("/dev/null", Output::replace) == std::to_string(EPERM));
  CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("output: without a descriptor, the error says so") {
  const Folder folder;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int lowest = open("/", O_PATH);  // no lower number is free
  ::close(lowest);
  int opened = -1;
  for (int spare = 0; opened < 0; ++spare) {
    REQUIRE(spare < 10);
    const rlimit few{static_cast<rlim_t>(lowest + spare), before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    opened = open_output(folder.path + "/file", Output::replace);
    const int error = errno;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    if (opened < 0) CHECK(error == EMFILE);
  }
  ::close(opened);
}

TEST_CASE("output: a stream, a replaced file and a created one follow no link either") {
  const Folder folder;
  for (const char* name : {"s", "f.part", "room"})
    fs::create_symlink("../precious", folder.in(name));
  OutputStream stream(folder.in("s"), Output::replace);
  stream << "abc";
  stream.flush();
  CHECK(stream.status().ok());
  stream.close();
  stream.open(folder.in("s"), Output::keep);
  stream << "d" << std::flush;
  CHECK(*read_text(folder.in("s")) == "abcd");
  CHECK(write_file_atomic(folder.in("f"), "x").ok());
  CHECK(!reserve_room(folder.in("room")).ok());
  OutputStream none(folder.in("missing/s"), Output::replace);
  none << "abc";
  CHECK(says(none.status(), Code::io, "No such file"));
  CHECK(*read_text(folder.precious) == "mine");
}

TEST_CASE("output (FILE-1): the folder may be reached by own links, and by no other user's") {
  const Folder folder;
  fs::create_directory_symlink("shared", folder.path + "/link");
  CHECK(written(folder.path + "/link/a", Output::replace) == "new");
  if (geteuid() != 0) return;
  REQUIRE(lchown((folder.path + "/link").c_str(), kOther, kOther) == 0);
  for (const Output how : {Output::replace, Output::append, Output::keep, Output::lock})
    CHECK(written(folder.path + "/link/a", how) == std::to_string(ELOOP));
  CHECK(has(write_file_atomic(folder.path + "/link/b", "x"), "another user"));
  REQUIRE(chown(folder.in("a").c_str(), kOther, kOther) == 0);
  CHECK(written(folder.in("a"), Output::append) == std::to_string(EPERM));
  CHECK(written(folder.in("a"), Output::lock) == "new");
  CHECK(written(folder.in("a"), Output::replace) == "new");
  struct stat file {};
  REQUIRE(stat(folder.in("a").c_str(), &file) == 0);
  CHECK(file.st_uid == 0);
}

TEST_CASE("output: what a user names may be a device, which stays one") {
  CHECK(write_output("/dev/null", "x").ok());
  CHECK(fs::is_character_file("/dev/null"));
  CHECK(write_output("/dev/full", "x").code() == Code::io);
  const Folder folder;
  CHECK(write_output(folder.in("a"), "x").ok());
  CHECK(*read_text(folder.in("a")) == "x");
}

TEST_CASE("output (FILE-2): a folder in which another user could plant something is refused") {
  const Folder folder;
  const std::string shared = folder.path + "/shared";
  CHECK(check_output_folder(folder.path + "/missing", "k").ok());
  CHECK(check_output_folder(shared, "k").ok());
  REQUIRE(chmod(shared.c_str(), 01777) == 0);
  CHECK(check_output_folder(shared, "k").code() == Code::bad_config);
  REQUIRE(chmod(shared.c_str(), 0770) == 0);
  CHECK(check_output_folder(shared, "k").ok());  // this user shares it
  if (geteuid() != 0) return;
  REQUIRE(write_file_atomic(folder.in("a"), "x").ok());
  REQUIRE(chown(folder.in("a").c_str(), kOther, kOther) == 0);
  CHECK(check_output_folder(shared, "k").ok());
  CHECK(check_own_entries(shared, "advice").code() == Code::bad_config);
  REQUIRE(chown(shared.c_str(), kOther, kOther) == 0);
  const Status refused = check_output_folder(shared, "data.folder");
  CHECK(refused.code() == Code::bad_config);
  CHECK(refused.message() == shared +
                                 " belongs to another user (uid 65534): name another "
                                 "data.folder, or add --trust-folder if you trust the users "
                                 "who may write it");
  fs::create_directory(folder.path + "/own");
  fs::create_directory_symlink("own", folder.path + "/link");
  CHECK(check_output_folder(folder.path + "/link", "k").ok());
  REQUIRE(lchown((folder.path + "/link").c_str(), kOther, kOther) == 0);
  CHECK(check_output_folder(folder.path + "/link/", "k").code() == Code::bad_config);
}
