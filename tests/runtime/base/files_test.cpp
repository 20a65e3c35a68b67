#include "runtime/base/files.hpp"

#include <doctest/doctest.h>

#include <sys/stat.h>

#include <filesystem>

#include "runtime/base/process.hpp"

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
