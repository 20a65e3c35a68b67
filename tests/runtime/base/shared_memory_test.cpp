// Other users of the host can neither damage, read, nor stand for the shared memory of a run. The
// cases with a second user need root, and say so without it.
#include "runtime/base/shared_memory.hpp"

#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

namespace fs = std::filesystem;
using namespace simplescale;

namespace {

constexpr uid_t kNobody = 65534;

std::string unique(const std::string& what) {
  static int count = 0;
  return "ss-test-" + what + "-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

/// Runs `attack` in a process of the user nobody; true if it returned true.
bool as_stranger(const std::function<bool()>& attack) {
  const pid_t child = fork();
  if (child == 0) {
    umask(0);
    _exit(setgid(kNobody) == 0 && setuid(kNobody) == 0 && attack() ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool can_be_stranger() {
  if (geteuid() != 0) MESSAGE("skipped: only root can act as a second user");
  return geteuid() == 0;
}

bool write_file(const std::string& path, size_t bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0666);
  return fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0 && close(fd) == 0;
}

std::string folder_prefix() {
  return "/dev/shm/simplescale-" + std::to_string(geteuid()) + "-";
}

/// Path of a segment that this user made; empty if there is none.
std::string path_of(const std::string& name) {
  for (const auto& folder : fs::directory_iterator("/dev/shm")) {
    const fs::path file = folder.path() / name;
    struct stat info {};
    if (folder.path().string().starts_with(folder_prefix()) && !folder.is_symlink() &&
        stat(file.c_str(), &info) == 0 && info.st_uid == geteuid())
      return file;
  }
  return "";
}

}  // namespace

TEST_CASE(
    "shared memory (SHM-4): another user's lock file does not remove the segments of a live run") {
  if (!can_be_stranger()) return;
  const std::string prefix = unique("owner");
  auto owner = SegmentOwner::claim(prefix + "-n0");
  REQUIRE(owner.ok());
  auto segment = SharedMemory::create(prefix + "-n0.1-state", 4096);
  REQUIRE(segment.ok());
  const std::string lock = "/dev/shm/" + prefix + ".owner";
  REQUIRE(as_stranger([&] { return write_file(lock, 0); }));
  REQUIRE(SegmentOwner::claim(prefix + "-n1").ok());  // removes what dead runs have left
  CHECK(SharedMemory::open(prefix + "-n0.1-state").ok());
  CHECK(fs::exists(lock));  // its owner may remove it
  fs::remove(lock);
}

TEST_CASE("shared memory (SHM-4): another user's segment is neither mapped nor removed") {
  if (!can_be_stranger()) return;
  const std::string name = unique("planted");
  REQUIRE(as_stranger([&] { return write_file("/dev/shm/" + name, 4096); }));
  CHECK(!SharedMemory::open(name).ok());
  auto mine = SharedMemory::create(name, 4096);
  CHECK(mine.ok());
  CHECK(unlink_shared_memory(name) == 1);
  CHECK(fs::exists("/dev/shm/" + name));
  fs::remove("/dev/shm/" + name);
}

TEST_CASE("shared memory (SHM-4): another user cannot stand for the folder of our segments") {
  if (!can_be_stranger()) return;
  const std::string name = unique("squat"), link = folder_prefix() + "0link",
                    wide = folder_prefix() + "0wide", narrow = folder_prefix() + "0narrow";
  REQUIRE(as_stranger([&] {
    return mkdir(wide.c_str(), 0777) == 0 && mkdir(narrow.c_str(), 0700) == 0 &&
           symlink(wide.c_str(), link.c_str()) == 0 && write_file(wide + "/" + name, 4096);
  }));
  CHECK(!SharedMemory::open(name).ok());
  auto mine = SharedMemory::create(name, 4096);
  REQUIRE(mine.ok());
  CHECK(fs::file_size(wide + "/" + name) == 4096);
  const std::string path = path_of(name);
  CHECK(as_stranger([&] {
    const std::string folder = fs::path(path).parent_path();
    return opendir(folder.c_str()) == nullptr && open(path.c_str(), O_RDONLY) < 0 &&
           rename(folder.c_str(), (folder + "x").c_str()) != 0;
  }));
  fs::remove(link);
  fs::remove_all(wide);
  fs::remove(narrow);
}

TEST_CASE(
    "shared memory (SHM-4): lies in a folder of mode 0700, which is removed with the last "
    "segment") {
  const std::string name = unique("folder");
  auto segment = SharedMemory::create(name, 4096);
  REQUIRE(segment.ok());
  const std::string path = path_of(name);
  REQUIRE(!path.empty());
  struct stat file {
  }, folder{};
  REQUIRE(stat(path.c_str(), &file) == 0);
  REQUIRE(stat(fs::path(path).parent_path().c_str(), &folder) == 0);
  CHECK((file.st_mode & 07777) == 0600);
  CHECK((folder.st_mode & 0777) == 0700);
  segment->unlink();
  CHECK(!fs::exists(path));
}

TEST_CASE(
    "shared memory (SHM-4): a segment that others may write, a link, a pipe or a path is refused") {
  const std::string name = unique("kind");
  auto segment = SharedMemory::create(name, 4096);
  REQUIRE(segment.ok());
  const std::string path = path_of(name), folder = fs::path(path).parent_path();
  REQUIRE(SharedMemory::open(name).ok());
  REQUIRE(chmod(path.c_str(), 0666) == 0);
  const auto wide = SharedMemory::open(name);
  REQUIRE(!wide.ok());
  CHECK(wide.status().message().find("other users") != std::string::npos);
  REQUIRE(chmod(path.c_str(), 0600) == 0);
  REQUIRE(symlink(path.c_str(), (path + "-link").c_str()) == 0);
  CHECK(!SharedMemory::open(name + "-link").ok());
  REQUIRE(mkfifo((path + "-pipe").c_str(), 0600) == 0);
  CHECK(!SharedMemory::open(name + "-pipe").ok());
  CHECK(!SharedMemory::open("../" + fs::path(folder).filename().string() + "/" + name).ok());
  CHECK(!SharedMemory::open("").ok());
  CHECK(!SharedMemory::create("../" + name, 4096).ok());
  REQUIRE(truncate(path.c_str(), 0) == 0);
  CHECK(!SharedMemory::open(name).ok());
  CHECK(unlink_shared_memory(name) == 3);
}

TEST_CASE("shared memory: a lock is one process's, or shared, and leaves no file behind") {
  const std::string name = unique("lock"), file = "ss-" + name + ".owner";
  {
    const auto held = HostLock::take(name, false);
    REQUIRE(held.ok());
    CHECK(HostLock::take(name, false).status().code() == Code::unavailable);
    CHECK(HostLock::take(name, true).status().code() == Code::unavailable);
    REQUIRE(SegmentOwner::claim(unique("sweep")).ok());
    CHECK_FALSE(path_of(file).empty());  // a held lock is not swept away
  }
  {
    const auto one = HostLock::take(name, true), other = HostLock::take(name, true);
    CHECK(one.ok());
    CHECK(other.ok());
    CHECK(HostLock::take(name, false).status().code() == Code::unavailable);
  }
  REQUIRE(SegmentOwner::claim(unique("sweep")).ok());
  CHECK(path_of(file).empty());
}
