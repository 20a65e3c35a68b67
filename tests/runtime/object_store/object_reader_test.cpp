// Objects read in chunks through a bounded local cache, from a real server with injected faults.
#include "runtime/object_store/object_reader.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "runtime/base/splitmix64.hpp"
#include "tests/must.hpp"
#include "tests/runtime/object_store/shared_server.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using namespace simplescale::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr size_t kChunk = 1000;

Environment environment(const S3Server& s3) {
  return environment_of({{"AWS_ACCESS_KEY_ID", kAccessKey},
                         {"AWS_SECRET_ACCESS_KEY", kSecretKey},
                         {"AWS_ENDPOINT_URL_S3", s3.endpoint()}});
}

/// Puts an object. `key` is new in each test.
ChunkedObject put(S3Server& s3, const std::string& key, const std::string& bytes) {
  ObjectStore store = s3.store();
  const auto etag = must(store.put(key, bytes));
  return {{"bucket", key}, bytes.size(), *etag, kChunk};
}

std::shared_ptr<ChunkFiles> cache_in(const TempFolder& folder, uint64_t bytes_max = 1 << 30) {
  const auto made = must(ChunkFiles::make_folder(folder.path));
  return std::make_shared<ChunkFiles>(*made, bytes_max);
}

std::vector<fs::path> chunk_files(const ChunkFiles& cache) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(cache.folder()))
    if (entry.is_regular_file() && entry.path().filename() != "usage")
      files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

uint64_t bytes_in(const ChunkFiles& cache) {
  uint64_t bytes = 0;
  for (const fs::path& file : chunk_files(cache)) bytes += fs::file_size(file);
  return bytes;
}

}  // namespace

TEST_SUITE("object reader") {
  TEST_CASE("object reader: pieces have the object's bytes, and each chunk is fetched once") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const std::string bytes = random_bytes(10'500, 1);
    const ChunkedObject object = put(*s3, "reader/once", bytes);
    const TempFolder folder;
    for (int process = 0; process < 2; ++process) {  // the second one finds all chunks
      ObjectReader reader(cache_in(folder), S3Server::limits(), environment(*s3));
      for (uint64_t i = 0; i < 200; ++i) {
        const uint64_t offset = splitmix64_at(3, i) % bytes.size();
        std::string piece(splitmix64_at(4, i) % std::min<uint64_t>(2500, bytes.size() - offset), 0);
        REQUIRE(reader.read(object, offset, piece).ok());
        CHECK(piece == bytes.substr(offset, piece.size()));
      }
      CHECK(s3->count("GET /bucket/reader/once") == 11);
    }
  }

  TEST_CASE("object reader: a short or damaged chunk is fetched again") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const std::string bytes = random_bytes(4'000, 2);
    const ChunkedObject object = put(*s3, "reader/damaged", bytes);
    const TempFolder folder;
    std::string all(bytes.size(), 0);
    REQUIRE(ObjectReader(cache_in(folder), S3Server::limits(), environment(*s3))
                .read(object, 0, all)
                .ok());
    const auto files = chunk_files(*cache_in(folder));
    REQUIRE(files.size() == 4);
    fs::resize_file(files[0], 700);
    std::fstream(files[1], std::ios::in | std::ios::out).seekp(500).put('!').put('?');
    std::fstream(files[2], std::ios::in | std::ios::out).seekp(1005).put('!').put('?');
    ObjectReader again(cache_in(folder), S3Server::limits(), environment(*s3));
    std::string now(bytes.size(), 0);
    REQUIRE(again.read(object, 0, now).ok());
    CHECK(now == bytes);
    CHECK(s3->count("GET /bucket/reader/damaged") == 4 + 3);
    // Also after this process has compared its hash.
    fs::resize_file(files[3], 10);
    REQUIRE(again.read(object, 3'000, std::span(now.data(), 1000)).ok());
    CHECK(s3->count("GET /bucket/reader/damaged") == 4 + 4);
  }

  TEST_CASE("object reader: an object that was replaced is an error that names it") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const ChunkedObject object = put(*s3, "reader/replaced", random_bytes(3'000, 3));
    const TempFolder folder;
    ObjectReader reader(cache_in(folder), S3Server::limits(), environment(*s3));
    std::string piece(100, 0);
    REQUIRE(reader.read(object, 0, piece).ok());
    put(*s3, "reader/replaced", random_bytes(3'000, 4));
    CHECK(reader.read(object, 500, piece).ok());  // of the chunk that is there
    const Status status = reader.read(object, 1'500, piece);
    CHECK(says(status, Code::bad_data, "s3://bucket/reader/replaced: was replaced"));
    // The new one does not get the old one's chunks.
    const ChunkedObject now = put(*s3, "reader/replaced", random_bytes(3'000, 4));
    REQUIRE(reader.read(now, 0, piece).ok());
    CHECK(piece == random_bytes(3'000, 4).substr(0, 100));
    CHECK(reader.read(object, 2'950, piece).code() == Code::bad_data);
  }

  TEST_CASE("object reader: the cache keeps its bound, and what was used last") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const std::string bytes = random_bytes(40'000, 5);
    const ChunkedObject object = put(*s3, "reader/bound", bytes);
    const TempFolder folder;
    const uint64_t bound = 16 * (kChunk + 16);
    const auto cache = cache_in(folder, bound);
    ObjectReader reader(cache, S3Server::limits(), environment(*s3));
    std::string piece(10, 0);
    for (uint64_t i = 0; i < 16; ++i) REQUIRE(reader.read(object, i * kChunk, piece).ok());
    CHECK(chunk_files(*cache).size() == 16);
    // All were used an hour ago. Now chunk 0 is used, and others come.
    for (const fs::path& file : chunk_files(*cache)) {
      const timespec hour_ago{::time(nullptr) - 3600, 0};
      const timespec times[2] = {hour_ago, hour_ago};
      REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
    }
    REQUIRE(reader.read(object, 0, piece).ok());
    for (uint64_t i = 16; i < 40; ++i) {
      REQUIRE(reader.read(object, i * kChunk, piece).ok());
      CHECK(piece == bytes.substr(i * kChunk, 10));
      CHECK(bytes_in(*cache) <= bound);
      if (i == 17) {
        CHECK(cache->has(object.cache_name(), 0));
        CHECK_FALSE(cache->has(object.cache_name(), 1));
      }
    }
    CHECK(bytes_in(*cache) > bound / 2);
  }

  TEST_CASE("object reader: errors, lost, cut and slow answers change no byte") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const std::string bytes = random_bytes(30'000, 6);
    const ChunkedObject object = put(*s3, "reader/faults", bytes);
    s3->set_faults(
        {{{"match", "reader/faults"}, {"kind", "slow"}, {"ms", 30}, {"times", 5}},
         {{"match", "reader/faults"}, {"kind", "random"}, {"percent", 40}, {"seed", 7}}});
    const TempFolder folder;
    StoreLimits limits = S3Server::limits();
    limits.tries = 1000;
    ObjectReader reader(cache_in(folder), limits, environment(*s3));
    CHECK(reader.read_ahead(object, 0, bytes.size()));
    std::string all(bytes.size(), 0);
    must(reader.read(object, 0, all));
    CHECK(all == bytes);
  }

  TEST_CASE("object reader: what is read ahead is not fetched again, and the queue is bounded") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const std::string bytes = random_bytes(20'000, 8);
    const ChunkedObject object = put(*s3, "reader/ahead", bytes);
    const TempFolder folder;
    {
      ObjectReader reader(cache_in(folder), S3Server::limits(), environment(*s3));
      CHECK(reader.read_ahead(object, 500, 12'000));
      CHECK(reader.read_ahead(object, 500, 12'000));
      std::string all(bytes.size(), 0);
      REQUIRE(reader.read(object, 0, all).ok());
      CHECK(all == bytes);
    }
    CHECK(s3->count("GET /bucket/reader/ahead") == 20);
    s3->set_faults({{{"match", "reader/hang"}, {"kind", "hang"}}});
    ObjectReader reader(cache_in(folder), S3Server::limits(), environment(*s3));
    const ChunkedObject other{{"bucket", "reader/hang"}, 1'000'000, "\"x\"", kChunk};
    CHECK_FALSE(reader.read_ahead(other, 0, other.bytes));
    reader.stop();
    s3->clear_faults();
  }

  TEST_CASE("object reader: a small cache keeps what is read ahead until it is read") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const std::string bytes = random_bytes(20'000, 12);
    const ChunkedObject object = put(*s3, "reader/small", bytes);
    const TempFolder folder;
    ObjectReader reader(cache_in(folder, 8 * (kChunk + 16)), S3Server::limits(), environment(*s3));
    std::string piece(kChunk, 0);
    for (size_t i = 0; i < 20; ++i) {
      // Of 20 chunks, four are fetched before the next read.
      CHECK(reader.read_ahead(object, i * kChunk, 20 * kChunk) == (i >= 16));
      while (s3->count("GET /bucket/reader/small") < std::min<size_t>(20, i + 4))
        std::this_thread::yield();
      REQUIRE(reader.read(object, i * kChunk, piece).ok());
      CHECK(piece == bytes.substr(i * kChunk, kChunk));
    }
    CHECK(s3->count("GET /bucket/reader/small") == 20);
    // Other reads than those announced do not end it.
    const ChunkedObject next = put(*s3, "reader/small2", bytes);
    CHECK_FALSE(reader.read_ahead(next, 0, bytes.size()));
    REQUIRE(reader.read(next, 19 * kChunk, piece).ok());
    while (reader.read_ahead(next, 10 * kChunk, kChunk) == false) std::this_thread::yield();
  }

  TEST_CASE("object reader: stop() ends a read that hangs; a deadline ends one that fails") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const ChunkedObject object = put(*s3, "reader/stop", random_bytes(3'000, 9));
    const TempFolder folder;
    s3->set_faults({{{"match", "reader/stop"}, {"kind", "hang"}}});
    {
      ObjectReader reader(cache_in(folder), S3Server::limits(), environment(*s3));
      std::string piece(100, 0);
      auto hanging = std::async([&] { return reader.read(object, 0, piece); });
      reader.stop();
      CHECK(hanging.get().code() == Code::aborted);
    }
    s3->set_faults({{{"match", "reader/stop"}, {"kind", "status"}}});
    StoreLimits limits = S3Server::limits();
    limits.tries = 1'000'000, limits.deadline_ms = 100;
    ObjectReader reader(cache_in(folder), limits, environment(*s3));
    std::string piece(100, 0);
    const Status status = reader.read(object, 0, piece);
    CHECK(says(status, Code::io, "s3://bucket/reader/stop"));
    CHECK(has(status, "503"));
    s3->clear_faults();
  }

  TEST_CASE("object reader: a cache that cannot be written costs no read") {
    S3Server* const s3 = shared_server();
    if (!s3) return;
    const std::string bytes = random_bytes(3'000, 10);
    const ChunkedObject object = put(*s3, "reader/unwritable", bytes);
    const TempFolder folder;
    const auto cache = cache_in(folder);
    fs::remove_all(cache->folder());
    ObjectReader reader(cache, S3Server::limits(), environment(*s3));
    std::string all(bytes.size(), 0);
    REQUIRE(reader.read(object, 0, all).ok());
    CHECK(all == bytes);
  }

  TEST_CASE("chunk files: a folder that others can write is refused") {
    const TempFolder folder;
    const auto made = must(ChunkFiles::make_folder(folder.path));
    CHECK(ChunkFiles::make_folder(folder.path).ok());
    fs::permissions(*made, fs::perms::all);
    CHECK(ChunkFiles::make_folder(folder.path).status().code() == Code::bad_config);
    fs::remove(*made);
    fs::create_directory_symlink("/tmp", *made);
    CHECK(ChunkFiles::make_folder(folder.path).status().code() == Code::bad_config);
    CHECK(ChunkFiles::make_folder("/dev/null/x").status().code() == Code::bad_config);
  }
}
