// Where the samples of a configuration lie.
#include "runtime/feed/run_data.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/files.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/prepare.hpp"

using namespace simplescale;

namespace {

Config config_of(const std::string& source) {
  Config config;
  config.run.name = "r";
  config.model.preset = "micro";
  config.model.vocab = 4096;
  config.train.max_steps = 10;
  config.data.source = source;
  return config;
}

const std::string bare(8000, '\1');  // 4000 u16 tokens, of id 257

/// A tokenizer.json of so many tokens.
std::string tokenizer_json(int64_t vocab) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "some words of line " + std::to_string(i * i) + "\n";
  return train_byte_bpe({text}, vocab).take();
}

}  // namespace

TEST_SUITE("data location") {
  TEST_CASE("data location: samples are named by the file and the byte where they begin") {
    const test::TempFolder folder;
    std::vector<std::string> paths;
    for (const char* name : {"a.bin", "b.bin"})
      paths.push_back(folder.write(name, test::bytes_of(std::vector<uint16_t>(25, 1))));
    const auto tokens = TokenSource::open(paths, "nanogpt", 10);
    REQUIRE(tokens.ok());  // 50 tokens: four samples of 10 + 1
    const SampleOrder in_order(4, 1, false);
    const auto text = [&](const std::vector<uint64_t>& runs, uint64_t most) {
      return places_text(*tokens, in_order, 10, runs, most);
    };
    CHECK(text({}, 4) == "");
    CHECK(text({0, 1}, 4) == "sample 0: " + paths[0] + ", byte 0");
    CHECK(text({2, 2}, 4) == "sample 2: " + paths[0] + ", byte 40; sample 3: " + paths[1] +
                                 ", byte 10");  // token 30 is the sixth one of the second file
    CHECK(text({5, 1, 0, 3}, 2) == "sample 5: " + paths[0] + ", byte 20; sample 0: " + paths[0] +
                                       ", byte 0; and 2 more");  // 5: in the second epoch
    const SampleOrder shuffled(4, 1, true);
    CHECK(places_text(*tokens, shuffled, 10, {7, 1}) ==
          "sample 7: " + tokens->place_of(shuffled.position(7), 10));
  }

  TEST_CASE("data location: a run reads the token files that it listed when it started") {
    const test::TempFolder folder;
    const auto numbers = [](size_t first, size_t count) {
      std::string bytes;
      for (size_t i = 0; i < count; ++i)
        bytes += {static_cast<char>((first + i) % 251), static_cast<char>((first + i) % 7)};
      return bytes;
    };
    const std::string a = folder.write("data/a.bin", numbers(0, 4000));
    const std::string b = folder.write("data/b.bin", numbers(9, 900'000));
    const std::string bare_file = folder.write("bare.bin", bare);
    Config config = config_of(folder.path + "/data");
    config.run.folder = folder.path + "/run";
    const ModelShape shape = *model_shape(config);
    const auto start = [&] {
      const auto data = must(open_tokens(config, shape, DataFiles::Listing::anew));
      std::filesystem::create_directories(folder.path + "/run/control");
      REQUIRE(data->files.save_listing(listing_file(config)).ok());
      return data->sources.front().data.train.tokens();
    };
    const auto error = [&] { return open_tokens(config, shape).status().message(); };
    const uint64_t tokens = start();
    CHECK(error() == "");
    config.data.source += "/";
    CHECK(start() == tokens);
    CHECK(error() == "");
    // What cannot be read is not left out. Its name is that of a link, since root can read all files.
    std::filesystem::create_symlink("/nowhere.bin", folder.path + "/data/c.bin");
    CHECK_FALSE(open_tokens(config, shape, DataFiles::Listing::anew).ok());
    std::filesystem::remove(folder.path + "/data/c.bin");
    const auto replace = [&](const std::string& file, const std::string& bytes) {
      folder.write("other", bytes);
      std::filesystem::rename(folder.path + "/other", file);
    };
    for (const std::string& file : {a, b}) {
      CAPTURE(file);
      const std::string text = *read_text(file);
      for (const size_t byte : {size_t{0}, text.size() - 1}) {
        std::string other = text;
        other[byte] ^= 1;
        replace(file, other);
        CHECK(error().starts_with("token file: " + file +
                                  " has changed since this run began; restore it"));
      }
      std::string middle = text;
      for (size_t i = text.size() / 4; i < text.size() / 2; ++i) middle[i] ^= 1;
      replace(file, middle);
      CHECK(error().starts_with("token file: " + file + " has changed"));
      replace(file, text.substr(2) + text.substr(0, 2));  // of the same size
      CHECK(error().starts_with("token file: " + file + " has changed"));
      replace(file, text + text.substr(0, 2));
      CHECK(error().starts_with("token file: " + file + " has changed"));
      // What is open is read, and not what came in its place.
      replace(file, text);
      auto opened = must(open_tokens(config, shape));
      TokenSource train = opened->sources.front().data.train;
      replace(file, text.substr(2) + text.substr(0, 2));
      CHECK(train.reopen().message().starts_with("token file: " + file + " has changed"));
      replace(file, text);  // another inode and time, the same tokens
      CHECK(train.reopen().ok());
      CHECK(error() == "");
    }
    // Neither a file nor a loss mask nor an index is added.
    for (const char* added : {"data/c.bin", "data/a.mask", "data/a.idx"})
      folder.write(added, numbers(0, 4000));
    REQUIRE_MESSAGE(error() == "", error());
    CHECK(open_tokens(config, shape)->sources.front().data.train.tokens() == tokens);
    std::filesystem::remove(b);
    CHECK(error().find(b) != std::string::npos);
    // A source that the run has not is read as it is.
    config.data.source = bare_file;
    CHECK(open_tokens(config, shape)->sources.front().data.train.tokens() == 3960);
  }

  TEST_CASE("data location: token files take the tokenizer that tokenizer.path names") {
    const test::TempFolder folder;
    Config config = config_of(folder.write("tokens.bin", bare));
    const ModelShape shape = *model_shape(config);
    CHECK(open_tokens(config, shape)->tokenizer.empty());
    const std::string file = folder.write("t/tokenizer.json", tokenizer_json(280));
    for (const std::string& path : {file, folder.path + "/t"}) {
      config.tokenizer.path = path;
      CHECK(open_tokens(config, shape)->tokenizer == file);
    }
    config.data.document_mask = true;  // its BOS is before every document
    CHECK(open_tokens(config, shape).ok());
    config.data.source.clear();
    config.data.blend = {{"a", folder.path + "/tokens.bin", 1, ""},
                         {"b", folder.write("b.bin", bare), 1, ""}};
    const auto mixed = must(open_tokens(config, shape));
    CHECK(mixed->tokenizer == file);
  }

  TEST_CASE("data location: what texts need not be prepared for is checked before") {
    const test::TempFolder folder;
    Config config = config_of("");
    config.data.blend = {{"text", folder.write("text.txt", "some words\n"), 1, ""},
                         {"tokens", folder.write("tokens.bin", bare), 1, ""}};
    const ModelShape shape = *model_shape(config);
    const auto said = [&] { return check_token_sources(config, shape).status().message(); };
    CHECK(said() == "");
    config.data.document_mask = true;
    CHECK(said().find("tokens.bin has no tokenizer") != std::string::npos);
    config.data.blend.pop_back();
    CHECK(said() == "");  // a trained tokenizer has BOS
    std::string no_bos = tokenizer_json(280);
    for (size_t at = 0; (at = no_bos.find("<|endoftext|>", at)) != no_bos.npos;)
      no_bos.replace(at, 13, "<|nothing|>");
    config.tokenizer.path = folder.write("no_bos.json", no_bos);
    CHECK(said().find("no_bos.json has no BOS") != std::string::npos);
    config.data.document_end = 7;
    CHECK(said() == "");
    config.data.document_end = 4096;
    CHECK(said().starts_with("data.document_end = 4096 is beyond the vocabulary of 4096"));
    config = config_of(folder.path + "/tokens.bin");
    folder.write("tokens.mask", std::string("SSLMASK1") + std::string("\xa0\x0f\0\0\0\0\0\0", 8) +
                                    std::string("\1\0\0\0\0\0\0\0", 8) + std::string(16, '\0'));
    CHECK(said().find("range 0, [0, 0), is wrong") != std::string::npos);
    config = config_of("");
    for (const char* name : {"a", "b"}) {
      const std::string made = folder.path + "/" + name;
      const auto manifest =
          must(prepare({.source = folder.path + "/text.txt",
                        .folder = made,
                        .tokenizer_path = folder.write(made.back() + std::string(".json"),
                                                       tokenizer_json(name[0] == 'a' ? 280 : 290)),
                        .validation_fraction = 0}));
      config.data.blend.push_back({name, made, 1, ""});
    }
    ModelShape small = shape;
    small.block_size = 1;
    CHECK(check_token_sources(config, small)
              .status()
              .message()
              .starts_with("data.blend: \"a\" and \"b\" were made with different tokenizers"));
    config = config_of(folder.path + "/text.txt");
    config.data.folder = folder.path + "/a";
    const auto prepared = must(check_token_sources(config, small));
    CHECK(prepared->sources.size() == 1);
    CHECK(check_token_sources(config, small, false)->sources.empty());
    REQUIRE(std::filesystem::remove(folder.path + "/a/train.bin"));
    CHECK(needs_preparation(config));  // prepare() makes the file again
    CHECK(check_token_sources(config, small)->sources.empty());
  }

  TEST_CASE(
      "data location: a tokenizer that no checkpoint could take is refused before the start") {
    if (geteuid() != 0) return skipped("only root can make links of another user");
    const test::TempFolder folder;
    const std::string made = folder.path + "/made", shared = folder.path + "/shared.json",
                      tokenizer = made + "/tokenizer.json";
    const auto manifest =
        must(prepare({.source = folder.write("text.txt", "some words\n"),
                      .folder = made,
                      .tokenizer_path = folder.write("a.json", tokenizer_json(280)),
                      .validation_fraction = 0}));
    const Config config = config_of(made);
    ModelShape shape = *model_shape(config);
    shape.block_size = 1;
    std::filesystem::rename(tokenizer, shared);
    std::filesystem::create_symlink(shared, tokenizer);
    CHECK(check_token_sources(config, shape).ok());  // one's own link
    REQUIRE(lchown(tokenizer.c_str(), 65534, 65534) == 0);
    const RunData opened = open_tokens(config, shape, DataFiles::Listing::anew).take();
    CHECK(check_tokens(config, opened).code() == Code::bad_data);
    const Status refused = check_token_sources(config, shape).status();
    CHECK(refused.code() == Code::bad_data);
    CHECK(refused.message() == tokenizer + " is a link to " + shared +
                                   ", outside of the folder; replace it by the file itself if you "
                                   "trust it");
  }

  TEST_CASE("data location: a tokenizer that is not that of the tokens is refused") {
    const test::TempFolder folder;
    const std::string a = folder.write("a.json", tokenizer_json(280)),
                      b = folder.write("b.json", tokenizer_json(290));
    const std::string made = folder.path + "/made";
    PrepareOptions options{.source = folder.write("text.txt", "some words of some lines\n"),
                           .folder = made,
                           .tokenizer_path = a,
                           .validation_fraction = 0};
    const auto manifest = must(prepare(options));
    Config config = config_of(made);
    ModelShape shape = *model_shape(config);
    CHECK(check_tokenizer(config, shape).ok());
    config.tokenizer.path = a;
    CHECK(check_tokenizer(config, shape).ok());
    config.tokenizer.path = b;
    const Status other = check_tokenizer(config, shape);
    CHECK(other.code() == Code::bad_config);
    CHECK(other.message() == "tokenizer.path = \"" + b + "\", but " + made +
                                 " was prepared with another tokenizer, " + made +
                                 "/tokenizer.json: leave out tokenizer.path, or prepare the text "
                                 "again");
    config = config_of(folder.write("tokens.bin", bare));
    config.tokenizer.path = b;
    CHECK(check_tokenizer(config, shape).ok());
    shape.vocab = 289;
    const Status large = check_tokenizer(config, shape);
    CHECK(large.code() == Code::bad_data);
    CHECK(large.message().starts_with(b + " has 290 tokens, more than the vocabulary of 289"));

    // prepare() would replace the folder's tokenizer.
    CHECK(check_tokenizer_kept(options).ok());
    options.tokenizer_path = folder.write("copy.json", tokenizer_json(280));
    CHECK(check_tokenizer_kept(options).ok());
    for (const std::string& path : {b, std::string()}) {
      options.tokenizer_path = path;
      const Status kept = check_tokenizer_kept(options);
      CHECK(kept.code() == Code::bad_config);
      CHECK(kept.message().starts_with(made + " was prepared with another tokenizer, " + a));
    }
    options.folder = folder.path + "/new";
    CHECK(check_tokenizer_kept(options).ok());
  }

  TEST_CASE("data location: a text is prepared with the tokenizer of a prepared folder beside it") {
    const test::TempFolder folder;
    const std::string text = folder.write("text.txt", "some words of some lines\n");
    const std::string made = folder.path + "/made";
    const auto manifest =
        must(prepare({.source = text,
                      .folder = made,
                      .tokenizer_path = folder.write("a.json", tokenizer_json(280)),
                      .validation_fraction = 0}));
    Config config = config_of("");
    config.data.folder = folder.path + "/prepared";
    for (const bool first : {true, false}) {
      config.data.blend = {{"t", text, 1, ""}};
      config.data.blend.insert(first ? config.data.blend.begin() : config.data.blend.end(),
                               {"made", made, 1, ""});
      for (const ConfiguredSource& source : sources_of(config))
        if (source.name == "t") CHECK(source.config.tokenizer.path == made + "/tokenizer.json");
    }
    // A folder that is read as text has no tokenizer to give.
    config.data.blend[1].format = DataFormat::text;
    CHECK(sources_of(config)[0].config.tokenizer.path == "");
    config.tokenizer.path = "named.json";
    CHECK(sources_of(config)[0].config.tokenizer.path == "named.json");
  }

  TEST_CASE("data location: a README or a licence beside token files is no text to train on") {
    const test::TempFolder folder;
    const Config config = config_of(folder.path + "/tokens");
    folder.write("tokens/README.txt", "read me\n");
    CHECK_FALSE(source_is_tokens(config));
    folder.write("tokens/shard_000.bin", bare);
    folder.write("tokens/LICENSE", "a licence\n");
    folder.write("tokens/License-2.0.txt", "a licence\n");
    folder.write("tokens/notes.md", "notes\n");
    CHECK(source_is_tokens(config));
    CHECK(check_source(config).ok());
    folder.write("tokens/licences.txt", "texts of licences\n");
    CHECK_FALSE(check_source(config).ok());
  }

  TEST_CASE("data location: a folder with tokens and their text is refused without data.format") {
    const test::TempFolder folder;
    Config config = config_of(folder.path + "/tokens");
    const std::string text = folder.write("tokens/raw/corpus.jsonl", "{\"text\": \"words\"}\n");
    CHECK(check_source(config).ok());
    const std::string tokens = folder.write("tokens/corpus_text_document.bin", bare);
    const Status both = check_source(config);
    CHECK(both.code() == Code::bad_data);
    CHECK(both.message().starts_with(config.data.source + " holds tokens (" + tokens +
                                     ") and text (" + text + "): set data.format = \"text\""));
    for (const DataFormat format : {DataFormat::text, DataFormat::megatron}) {
      config.data.format = format;
      CHECK(check_source(config).ok());
      CHECK(source_is_tokens(config) == (format == DataFormat::megatron));
    }
    config.data.format = DataFormat::automatic;
    folder.write("tokens/train.bin", bare);  // as nanoGPT has it beside input.txt
    CHECK(check_source(config).ok());
    CHECK(source_is_tokens(config));
  }
}
