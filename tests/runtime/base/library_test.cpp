// Libraries that cannot be loaded: the reason names what is missing, and where it was looked for.
#include "runtime/base/library.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

TEST_SUITE("library") {
  TEST_CASE("library: a missing library of ours is named with its folder and what to do") {
    const Status status = load_symbol("libsimplescale_no.so", "none", "build again").status();
    CHECK(status.code() == Code::unavailable);
    CHECK(status.message().find("/libsimplescale_no.so is missing: build again") !=
          std::string::npos);
    CHECK(status.message().starts_with("/"));
  }

  // As with NCCL's or libtorch's wheel removed: the file of CMakeLists.txt needs a library that no
  // folder has.
  TEST_CASE("library: a missing library of a vendor is named, and the folders that were searched") {
    const std::string message =
        load_symbol("libneeds_missing.so", "simplescale_empty", "").status().message();
    CAPTURE(message);
    CHECK(message.starts_with("cannot load libss_missing.so.2: "));
    CHECK(message.find("LD_LIBRARY_PATH") != std::string::npos);
    CHECK(message.find("/libneeds_missing.so") != std::string::npos);
  }

  TEST_CASE("library: a library of another version is named with the symbol that it lacks") {
    const std::string message =
        load_symbol("libss_present.so", "simplescale_new", "").status().message();
    CAPTURE(message);
    CHECK(message.find("libss_present.so is of another version, build again") != std::string::npos);
    CHECK(message.find("simplescale_new") != std::string::npos);
    CHECK(load_symbol("libss_present.so", "simplescale_empty", "").ok());
  }
}
