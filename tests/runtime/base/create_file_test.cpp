#include "runtime/base/create_file.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/temp_folder.hpp"

using namespace simplescale;

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
