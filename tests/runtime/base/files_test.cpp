#include "runtime/base/files.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "runtime/base/process.hpp"
#include "runtime/base/write_whole.hpp"

using namespace simplescale;

TEST_CASE("files: written text is read back; a missing file is told from one that cannot be read") {
  const auto folder = std::filesystem::temp_directory_path() / ("simplescale-files-" + unique_id());
  std::filesystem::create_directories(folder);
  const std::string file = folder / "text";
  for (const std::string& text :
       {std::string(), std::string("a\0b\n", 4), std::string(100'000, 'x')}) {
    REQUIRE(write_file_atomic(file, text).ok());
    CHECK(*read_text(file) == text);
  }
  CHECK(read_text(folder / "missing").status().code() == Code::not_found);
  CHECK(read_text(folder).status().code() == Code::io);
  CHECK(read_text(file + "/below").status().code() == Code::not_found);
  const std::string pipe = folder / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(read_text(pipe).status().message() ==
        pipe + " is not a file");  // opening it does not block
  CHECK(read_text("/dev/zero").status().code() == Code::bad_data);
  std::filesystem::remove_all(folder);
}

TEST_CASE("files: write_whole() counts what is written before an error, and goes on there") {
  const auto file = std::filesystem::temp_directory_path() / ("simplescale-files-" + unique_id());
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(fd >= 0);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto old = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{10, before.rlim_max};  // as a disk with room for 10 bytes
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string text = "0123456789abcdef";
  size_t done = 0;
  const bool whole = write_whole(fd, text, done);
  const int error = errno;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  signal(SIGXFSZ, old);
  CHECK_FALSE(whole);
  CHECK(error == EFBIG);
  CHECK(done == 10);
  CHECK(write_whole(fd, text, done));
  CHECK(done == text.size());
  CHECK(*read_text(file) == text);
  close(fd);
  std::filesystem::remove(file);
}
