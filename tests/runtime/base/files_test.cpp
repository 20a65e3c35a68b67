#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/bounded_read.hpp"
#include "runtime/base/create_file.hpp"
#include "runtime/base/files.hpp"
#include "runtime/base/write_whole.hpp"
#include "tests/full_disk.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

TEST_CASE("files: written text is read back; a missing file is told from one that cannot be read") {
  const test::TempFolder folder;
  const std::string file = folder / "text";
  for (const std::string& text :
       {std::string(), std::string("a\0b\n", 4), std::string(100'000, 'x')}) {
    REQUIRE(write_file_atomic(file, text).ok());
    CHECK(*read_text(file) == text);
  }
  CHECK(read_text(folder / "missing").status().code() == Code::not_found);
  CHECK(read_text(folder.path).status().code() == Code::bad_data);
  CHECK(read_text(file + "/below").status().code() == Code::not_found);
  const std::string pipe = folder / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(read_text(pipe).status().message() ==
        pipe + " is not a file");  // opening it does not block
  CHECK(read_text("/dev/zero").status().code() == Code::bad_data);
}

TEST_CASE("files: a file or a line that is larger than the bound is not read into memory") {
  const test::TempFolder folder;
  const std::string file = folder / "text";
  REQUIRE(write_file_atomic(file, "").ok());
  REQUIRE(truncate(file.c_str(), off_t{1} << 40) == 0);  // a hole, without blocks on the disk
  CHECK(read_text(file).status().code() == Code::bad_data);
  std::string line;
  std::ifstream hole = open_lines(file);
  CHECK_FALSE(next_line(hole, line));
  CHECK_FALSE(hole.eof());
  CHECK_FALSE(next_line(hole, line));
  REQUIRE(write_file_atomic(file, "12345").ok());
  CHECK(*read_text(file, 5) == "12345");
  CHECK(read_text(file, 4).status().code() == Code::bad_data);
}

TEST_CASE("files: next_line() reads what std::getline() reads, up to a line that is too long") {
  for (const std::string text : {"", "\n", "a", "a\n", "a\n\nb", "\n\n", "abcd\nab\n"}) {
    std::istringstream ours(text), theirs(text);
    std::string our_line, their_line;
    for (int i = 0; i < 5; ++i) {
      const bool more = static_cast<bool>(std::getline(theirs, their_line));
      REQUIRE(next_line(ours, our_line, 4) == more);
      CHECK(ours.eof() == theirs.eof());
      if (more) CHECK(our_line == their_line);
    }
  }
  std::istringstream too_long("ab\nabcde\nab\n");
  std::string line;
  CHECK(next_line(too_long, line, 4));
  CHECK_FALSE(next_line(too_long, line, 4));
  CHECK_FALSE(too_long.eof());
}

TEST_CASE("files: write_whole() counts what is written before an error, and goes on there") {
  const test::TempFolder folder;
  const std::string file = folder / "text";
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(fd >= 0);
  test::FullDisk disk(10);
  const std::string text = "0123456789abcdef";
  size_t done = 0;
  const bool whole = write_whole(fd, text, done);
  const int error = errno;
  disk.end();
  CHECK_FALSE(whole);
  CHECK(error == EFBIG);
  CHECK(done == 10);
  CHECK(write_whole(fd, text, done));
  CHECK(done == text.size());
  CHECK(*read_text(file) == text);
  close(fd);
}

TEST_CASE("create file: exactly one of eight creates it, whole, and no other file is left") {
  const test::TempFolder folder;
  const std::string path = folder.path + "/file";
  std::atomic<int> creators = 0, failures = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([&, i] {
        const Result<bool> created =
            create_file(path, std::string(100'000, static_cast<char>('a' + i)));
        if (!created.ok())
          ++failures;
        else
          creators += *created;
      });
  }
  CHECK(creators == 1);
  CHECK(failures == 0);
  const std::string text = test::contents(path);
  CHECK(text == std::string(100'000, text.at(0)));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
  CHECK(create_file(folder.path + "/none/file", "").status().code() == Code::io);
}

TEST_CASE("create file: with room the file takes no more of the disk") {
  const test::TempFolder folder;
  const std::string path = folder.path + "/file", room = folder.path + "/room";
  auto inode = [](const std::string& name) {
    struct stat status {};
    REQUIRE(stat(name.c_str(), &status) == 0);
    return status.st_ino;
  };
  REQUIRE(reserve_room(room).ok());
  CHECK(test::contents(room) == std::string(kRoomBytes, ' '));
  const auto reserved = inode(room);
  CHECK(create_file(folder.path + "/none/file", "x", room).status().code() == Code::io);
  CHECK(inode(room) == reserved);  // for the next try
  CHECK(*create_file(path, "text\n", room));
  CHECK(inode(path) == reserved);
  CHECK(test::contents(path) == "text\n");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
  REQUIRE(reserve_room(room).ok());
  CHECK_FALSE(*create_file(path, "other\n", room));
  CHECK(*create_file(path + "2", "without room\n", room));
  CHECK(test::contents(path) == "text\n");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 2);
}
