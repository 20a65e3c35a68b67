// Tokens in a bucket, on a real server: what is listed, pinned, copied and read ahead.
#include "runtime/data/data_files.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <thread>

#include "runtime/base/files.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/data/manifest.hpp"
#include "runtime/feed/ring_filler.hpp"
#include "runtime/feed/run_data.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/runtime/feed/batch_layout.hpp"
#include "tests/runtime/object_store/shared_server.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/corpus.hpp"
#include "tools/prepare/token_notes.hpp"

using namespace simplescale;
using namespace simplescale::test;
namespace fs = std::filesystem;

namespace {

/// The server of all tests, which the environment names.
S3Server* server() {
  S3Server* const server = shared_server();
  if (!server) return nullptr;
  for (const auto& [name, value] :
       {std::pair{"AWS_ACCESS_KEY_ID", kAccessKey}, std::pair{"AWS_SECRET_ACCESS_KEY", kSecretKey},
        std::pair{"AWS_ENDPOINT_URL_S3", server->endpoint().c_str()}})
    ::setenv(name, value, 1);
  return server;
}

std::string u16(uint16_t first, size_t count) {
  std::vector<uint16_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return {reinterpret_cast<const char*>(tokens.data()), 2 * count};
}

void put(S3Server& s3, const std::string& key, const std::string& bytes) {
  ObjectStore store = s3.store();
  REQUIRE(store.put(key, bytes).ok());
}

Config config_of(const TempFolder& folder, const std::string& source) {
  Config config;
  config.run.name = "r";
  config.run.folder = folder.path + "/run";
  config.data.source = source;
  config.data.folder = folder.path + "/data";
  config.data.cache_folder = folder.path + "/cache";
  config.supervision.progress_timeout_ms = 4'000;
  return config;
}

std::string text_of(const DataFiles& files, const std::string& path) {
  const auto text = files.text(path);
  return text.ok() ? *text : "ERROR " + text.status().message();
}

}  // namespace

TEST_SUITE("data files") {
  TEST_CASE("data files: a run reads the objects that it listed when it started") {
    S3Server* const s3 = server();
    if (!s3) return;
    const TempFolder folder;
    const Config config = config_of(folder, "s3://bucket/pinned/a.bin");
    const std::string path = config.data.source;
    put(*s3, "pinned/a.bin", "first");
    const auto started = must(DataFiles::of(config, DataFiles::Listing::anew));
    fs::create_directories(folder.path + "/run/control");
    REQUIRE(started->save_listing(listing_file(config)).ok());
    put(*s3, "pinned/a.bin", "other");
    const size_t lists = s3->count("GET /bucket?");
    const auto later = DataFiles::of(config);  // of another process
    REQUIRE(later.ok());
    CHECK(s3->count("GET /bucket?") == lists);
    CHECK(has(later->text(path).status(), path + ": was replaced"));
    CHECK(later->text(path).status().code() == Code::bad_data);
    CHECK(later->listed(path).front().etag == started->listed(path).front().etag);
    CHECK(text_of(*DataFiles::of(config, DataFiles::Listing::anew), path) == "other");
  }

  TEST_CASE("data files: a folder in a bucket has its own files only") {
    S3Server* const s3 = server();
    if (!s3) return;
    const TempFolder folder;
    for (const char* name :
         {"dir/b.bin", "dir/a.bin", "dir/below/c.bin", "dir/x.txt", "dir2/d.bin"})
      put(*s3, name, "1234");
    const auto files = must(DataFiles::of(config_of(folder, "s3://bucket/dir/")));
    CHECK(*files->find("s3://bucket/dir/") == "s3://bucket/dir");
    CHECK(files->is_folder("s3://bucket/dir"));
    CHECK_FALSE(files->is_folder("s3://bucket/di"));
    CHECK(files->token_files("s3://bucket/dir") ==
          std::vector<std::string>{"s3://bucket/dir/a.bin", "s3://bucket/dir/b.bin"});
    CHECK(files->open("s3://bucket/dir2/d.bin").status().code() == Code::not_found);
    const Status none = DataFiles::of(config_of(folder, "s3://bucket/nothing")).status();
    CHECK(says(none, Code::bad_data, "s3://bucket/nothing: the bucket holds no such object"));
    CHECK(DataFiles().open("s3://bucket/dir/a.bin").status().code() == Code::not_found);
  }

  TEST_CASE("data files: objects below a prefix that are not read are named") {
    S3Server* const s3 = server();
    if (!s3) return;
    const TempFolder folder;
    for (const char* name : {"mixed/a.bin", "mixed/b_val.bin"}) put(*s3, name, u16(1, 100));
    for (const char* name :
         {"mixed/.hidden", "mixed/README.md", "mixed/below/c.bin", "mixed/t.csv"})
      put(*s3, name, "1234");
    const std::string source = "s3://bucket/mixed";
    const auto files = must(DataFiles::of(config_of(folder, source)));
    const auto data = must(open_dataset(source, "auto", 200, 0, *files));
    const auto notes = must(token_notes(source, "auto", *data, *files));
    REQUIRE(notes->size() == 2);
    CHECK(notes->front() == source + ": 4 files are not read: .hidden, README.md, t.csv, below/");
    CHECK(
        notes->back().starts_with(source + ": 2 files have no header: their ids are read as u16"));

    for (const char* name : {"texts/a.txt", "texts/below/b.TXT"}) put(*s3, name, "text");
    for (const char* name : {"texts/.c.txt", "texts/d.jsonl.lz4", "texts/below/part-00000"})
      put(*s3, name, "text");
    put(*s3, "texts/below/empty.jsonl.gz", "");
    Config config = config_of(folder, "s3://bucket/texts");
    config.data.format = DataFormat::text;
    const auto texts = must(DataFiles::of_texts(config));
    const auto corpus = must(Corpus::open("s3://bucket/texts", {.files = *texts}));
    CHECK(corpus->files() == 3);
    CHECK(corpus->notes().front().starts_with(
        "s3://bucket/texts: 3 files are not read: .c.txt, below/part-00000, d.jsonl.lz4 (text"));
    CHECK(has(corpus->read([](TextChunk, double) { return Status(); }).status(), "has 0 bytes"));
  }

  TEST_CASE("data files: a prepared folder is compared with its manifest") {
    S3Server* const s3 = server();
    if (!s3) return;
    const TempFolder folder;
    const std::string tokenizer = "a tokenizer", train = llmc::header(2, 100) + u16(0, 100);
    Manifest manifest;
    manifest.vocab = 100, manifest.train_tokens = 100;
    manifest.tokenizer = {"tokenizer.model", tokenizer.size(), 0,
                          hash128(tokenizer.data(), tokenizer.size()).hex()};
    manifest.train = {"train.bin", train.size(), 0, std::string(32, '0')};
    REQUIRE(write_manifest(folder.path, manifest).ok());
    put(*s3, "made/manifest.json", *read_text(folder.path + "/manifest.json"));
    put(*s3, "made/tokenizer.model", tokenizer);
    put(*s3, "made/train.bin", train);
    const std::string source = "s3://bucket/made";
    const Config config = config_of(folder, source);
    const auto open = [&] { return open_dataset(source, "auto", 100, 0, *DataFiles::of(config)); };
    const auto data = must(open());
    CHECK(data->train.tokens() == 100);
    CHECK(*read_text(data->tokenizer) == tokenizer);
    // A copy that is damaged is made again.
    REQUIRE(write_file_atomic(data->tokenizer, "a tokeniser").ok());
    CHECK(*read_text(open()->tokenizer) == tokenizer);
    put(*s3, "made/tokenizer.model", "another one");
    fs::remove(data->tokenizer);
    CHECK(has(open().status(), "made/tokenizer.model: is not the file that"));
    put(*s3, "made/tokenizer.model", tokenizer);
    put(*s3, "made/train.bin", train.substr(0, train.size() - 2));
    CHECK(open().status().code() == Code::bad_data);
    CHECK(has(open().status(), "its manifest.json says 1224"));
  }

  TEST_CASE("data files: a start reads the hashes, masks and indices of what lies in a bucket") {
    S3Server* const s3 = server();
    if (!s3) return;
    const TempFolder folder;
    const auto checked = [&](const std::string& source, bool documents) {
      Config config = config_of(folder, source);
      config.model.preset = "micro";
      config.model.vocab = 1000;
      config.model.block_size = 16;
      config.data.validation_fraction = 0;
      config.data.document_mask = documents;
      const auto data = must(open_tokens(config, *model_shape(config), DataFiles::Listing::anew));
      return check_tokens(config, *data);
    };
    const std::string tokenizer = "a tokenizer", train = llmc::header(2, 100) + u16(0, 100);
    Manifest manifest;
    manifest.vocab = 100, manifest.train_tokens = 100;
    manifest.tokenizer = {"tokenizer.model", tokenizer.size(), 0,
                          hash128(tokenizer.data(), tokenizer.size()).hex()};
    manifest.train = {"train.bin", train.size(), 0, hash128(train.data(), train.size()).hex()};
    REQUIRE(write_manifest(folder.path, manifest).ok());
    put(*s3, "hashed/manifest.json", *read_text(folder.path + "/manifest.json"));
    put(*s3, "hashed/tokenizer.model", tokenizer);
    put(*s3, "hashed/train.bin", train);
    CHECK(checked("s3://bucket/hashed", false).ok());
    put(*s3, "hashed/train.bin", llmc::header(2, 100) + u16(1, 100));  // of the same size
    const Status other = checked("s3://bucket/hashed", false);
    CHECK(says(other, Code::bad_data, "s3://bucket/hashed/train.bin is not the file"));

    put(*s3, "ordered/a.bin", u16(0, 60));
    put(*s3, "ordered/a.idx", megatron_index({10, 30, 20}, {0, 1, 2, 3}));
    CHECK(checked("s3://bucket/ordered/a", true).ok());
    put(*s3, "ordered/a.idx", megatron_index({10, 30, 20}, {0, 2, 1, 3}));
    CHECK(checked("s3://bucket/ordered/a", false).ok());
    const Status order = checked("s3://bucket/ordered/a", true);
    CHECK(says(order, Code::bad_data, "document boundary 2 is sequence 1"));
  }

  TEST_CASE("data files: loss masks and Megatron documents mark the same tokens as on disk") {
    S3Server* const s3 = server();
    if (!s3) return;
    const TempFolder folder;
    const std::string local = folder.write("t.bin", u16(0, 1000));
    LossMaskWriter mask(folder.path + "/t.mask");
    REQUIRE(mask.add({{3, 9}, {100, 300}}).ok());
    REQUIRE(mask.finish(1000).ok());
    put(*s3, "marked/t.bin", *read_text(local));
    put(*s3, "marked/t.mask", *read_text(folder.path + "/t.mask"));
    const std::string source = "s3://bucket/marked/t.bin";
    const auto files = must(DataFiles::of(config_of(folder, source)));
    const auto there = must(TokenSource::open(source, "auto", 1000, *files));
    const auto here = *TokenSource::open(local, "auto", 1000);
    std::vector<int32_t> a(1000), b(1000);
    REQUIRE(here.read_sample(0, 999, a.data()).ok());
    REQUIRE(there->read_sample(0, 999, b.data()).ok());
    CHECK(a == b);
    CHECK(there->place_of(2, 10) == source + ", byte 40");
  }

  TEST_CASE("data files: the filler asks for the chunks of the next samples before it needs them") {
    S3Server* const s3 = server();
    if (!s3) return;
    constexpr uint64_t T = 4, B = 2;
    const TempFolder folder;
    put(*s3, "ahead/t.bin", u16(0, 1'000'000));
    const std::string source = "s3://bucket/ahead/t.bin";
    Config config = config_of(folder, source);
    config.data.cache_gb = 0.0018;  // chunks of 256 KiB, three of which are read ahead
    config.supervision.progress_timeout_ms = 600'000;
    const auto files = must(DataFiles::of(config));
    const auto tokens = *TokenSource::open(source, "auto", 65'536, *files);
    s3->set_faults({{{"match", "ahead/t.bin"}, {"kind", "hang"}}});
    const size_t before = s3->count("GET /bucket/ahead/t.bin");
    const SampleOrder order(tokens.samples(T), 3, true);
    auto rings =
        must(TokenRings::create("ss-test-ahead-" + std::to_string(getpid()), {1, 8, B, T}));
    RingFiller filler(rings.take(), tokens, order, {}, {.tries = 0});
    REQUIRE(filler
                .start({.generation = 1,
                        .start_step = 0,
                        .layout = {1, 1, B, BatchSchedule(B)},
                        .trainers = {{0, 0}}})
                .ok());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    size_t asked = 0;
    while (asked < 3 && std::chrono::steady_clock::now() < deadline) {
      asked = s3->count("GET /bucket/ahead/t.bin") - before;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the log announces nothing
    }
    CHECK(asked >= 3);
    s3->clear_faults();
    auto reader = TokenRings::open(filler.name()).take();
    for (uint64_t step = 0; step < 20; ++step) {
      const auto batch = must(reader.acquire(0, {1, step, 0}, 30'000));
      CHECK(batch->tokens[0] == static_cast<int32_t>(order.position(step * B) * T % 65'536));
      REQUIRE(reader.release(0).ok());
    }
  }
}
