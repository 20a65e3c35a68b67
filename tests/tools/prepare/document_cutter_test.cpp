#include "tools/prepare/document_cutter.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "runtime/data/manifest.hpp"
#include "runtime/data/token_file.hpp"
#include "tests/must.hpp"
#include "tests/runtime/tokenizer/hostile_model.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/prepare.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("document cutter");

namespace {

std::vector<TextChunk> cut(Tokenizer::Cuts cuts, const std::vector<TextChunk>& chunks) {
  std::vector<TextChunk> out;
  DocumentCutter cutter(cuts, [&](TextChunk chunk) {
    out.push_back(std::move(chunk));
    return Status();
  });
  for (const TextChunk& chunk : chunks) REQUIRE(cutter.add(chunk).ok());
  REQUIRE(cutter.finish().ok());
  return out;
}

std::string joined(const std::vector<TextChunk>& chunks) {
  std::string out;
  for (const TextChunk& chunk : chunks) out += (chunk.begins_document ? "#" : "") + chunk.text;
  return out;
}

std::string words(size_t count, const std::string& between) {
  std::string out = "w";
  for (size_t i = 1; i < count; ++i)
    out += (i % 7 ? between : ".\n") + (i % 5 ? "word" : "12") + std::to_string(i % 10) + "x";
  return out;
}

/// All ASCII bytes, merges of letters and of newlines. Splits as GPT-2 does.
const char* const byte_level =
    R"({"version":"1.0","added_tokens":[{"id":0,"content":"<|endoftext|>","special":true,)"
    R"("normalized":false}],"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},)"
    R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"<|endoftext|>":0,"w":1,)"
    R"("o":2,"r":3,"d":4,"Ġ":5,"Ċ":6,"x":7,"0":8,"1":9,"2":10,"3":11,"4":12,"5":13,"6":14,"7":15,)"
    R"("8":16,"9":17,".":18,"wo":19,"rd":20,"word":21,"Ġword":22,".Ċ":23},)"
    R"("merges":["w o","r d","wo rd","Ġ word",". Ċ"]}})";

}  // namespace

TEST_CASE("document cutter: pieces are cut before a space between letters, and join to the text") {
  std::vector<TextChunk> chunks;
  for (int i = 0; i < 9; ++i)
    chunks.push_back({i == 0 || i == 5, (i == 0 || i == 5 ? "" : "\n") + words(3000, " ")});
  const auto pieces = cut(Tokenizer::Cuts::space, chunks);
  CHECK(joined(pieces) == joined(chunks));
  CHECK(pieces.size() > 9);
  for (const TextChunk& piece : pieces) {
    CHECK(piece.text.size() < 3 * DocumentCutter::piece_bytes);
    if (!piece.begins_document) CHECK(piece.text[0] == ' ');
  }
  // One line of many pieces, and chunks that are cut before newlines already.
  const std::vector<TextChunk> line = {{true, words(400'000, " ")}};
  CHECK(joined(cut(Tokenizer::Cuts::space, line)) == joined(line));
  CHECK(cut(Tokenizer::Cuts::newline, chunks).size() == 9);
}

TEST_CASE("document cutter: memory is bounded where a document has no place to cut") {
  std::vector<TextChunk> chunks;
  for (int i = 0; i < 700; ++i) chunks.push_back({i == 0, "\n" + std::string(16 << 10, 'x')});
  for (const auto cuts : {Tokenizer::Cuts::nowhere, Tokenizer::Cuts::space}) {
    const auto pieces = cut(cuts, chunks);
    CHECK(joined(pieces) == joined(chunks));
    CHECK(pieces.size() == 3);
    for (const TextChunk& piece : pieces)
      CHECK(piece.text.size() < DocumentCutter::piece_bytes_max + (32 << 10));
  }
}

TEST_CASE("prepare: a tokenizer.json gives the ids of whole documents, and is kept with them") {
  const test::TempFolder folder;
  const std::string text = words(20'000, " ");
  PrepareOptions options{.source = folder.write("text.txt", text + "\n<|endoftext|>\nword word"),
                         .folder = folder.path + "/a",
                         .tokenizer_path = folder.write("my.json", byte_level),
                         .validation_fraction = 0};
  const auto made = must(prepare(options));
  CHECK(made->vocab == 24);
  CHECK(made->tokenizer.name == "tokenizer.json");
  CHECK(find_tokenizer(options.folder) == options.folder + "/tokenizer.json");
  const auto tokenizer = Tokenizer::load(options.tokenizer_path).take();
  std::vector<int32_t> expected =
      tokenizer.encode("<|endoftext|>" + text + "<|endoftext|>word word");
  CHECK(expected.back() == 22);
  const auto data = must(open_dataset(options.folder, "auto", 24, 0));
  CHECK(data->tokenizer == options.folder + "/tokenizer.json");
  CHECK(data->train.tokens() == expected.size());
  std::vector<int32_t> tokens(expected.size());
  REQUIRE(data->train.read_sample(0, expected.size() - 1, tokens.data()).ok());
  CHECK(tokens == expected);
  // The folder keeps one tokenizer when it is made again with another kind.
  options.tokenizer_path = folder.write("my.model", test::small_model(test::bpe_model));
  fs::remove(options.folder + "/manifest.json");
  const auto again = must(prepare(options));
  CHECK(find_tokenizer(options.folder) == options.folder + "/tokenizer.model");
  CHECK_FALSE(fs::exists(options.folder + "/tokenizer.json"));
}

TEST_CASE("manifest: it names no file outside of its folder, and is not nested deeply") {
  const test::TempFolder folder;
  Manifest manifest;
  manifest.tokenizer.name = "tokenizer.json";
  REQUIRE(write_manifest(folder.path, manifest).ok());
  REQUIRE(read_manifest(folder.path).ok());
  for (const char* name : {"../secret", "/etc/passwd", "..", "a/b"}) {
    manifest.tokenizer.name = name;
    REQUIRE(write_manifest(folder.path, manifest).ok());
    CHECK(says(read_manifest(folder.path).status(), Code::bad_data, name));
  }
  folder.write("manifest.json", std::string(8 << 20, '['));
  CHECK(read_manifest(folder.path).status().code() == Code::bad_data);
}

TEST_SUITE_END();

TEST_CASE("prepare: a document for which a pattern needs too many steps is named") {
  const test::TempFolder folder;
  std::string json = byte_level;
  const std::string step = R"({"type":"ByteLevel","add_prefix_space":false})";
  json.replace(json.find(step), step.size(),
               R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"w*o|w"},)"
               R"("behavior":"Isolated","invert":false},{"type":"ByteLevel","use_regex":false,)"
               R"("add_prefix_space":false}]})");
  const auto status_of = [&](size_t letters) {
    const std::string text = "word\n<|endoftext|>\n" + std::string(letters, 'w') + "\n";
    const auto made = prepare({.source = folder.write("text.txt", text),
                               .folder = folder.path + "/" + std::to_string(letters),
                               .tokenizer_path = folder.write("my.json", json),
                               .validation_fraction = 0});
    return made.status();
  };
  CHECK(status_of(1000).ok());
  const Status many = status_of(60'000);
  CHECK(many.code() == Code::bad_data);
  CHECK(many.message() == folder.path +
                              "/text.txt: document 2: its regular expression \"w*o|w\" needs too "
                              "many steps or too much memory for this text");
}
