#include "runtime/base/files.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <sstream>

#include "runtime/base/bounded_read.hpp"
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
  CHECK(read_text(folder).status().code() == Code::bad_data);
  CHECK(read_text(file + "/below").status().code() == Code::not_found);
  const std::string pipe = folder / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(read_text(pipe).status().message() ==
        pipe + " is not a file");  // opening it does not block
  CHECK(read_text("/dev/zero").status().code() == Code::bad_data);
  std::filesystem::remove_all(folder);
}

TEST_CASE("files: a file or a line that is larger than the bound is not read into memory") {
  const auto folder = std::filesystem::temp_directory_path() / ("simplescale-files-" + unique_id());
  std::filesystem::create_directories(folder);
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
  std::filesystem::remove_all(folder);
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
