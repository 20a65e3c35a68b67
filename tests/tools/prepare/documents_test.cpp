// Documents in token files: where they begin, and the marks that say so.
#include "runtime/data/documents.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/feed/mixture_report.hpp"
#include "runtime/feed/run_data.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/must.hpp"
#include "tests/runtime/data/token_bytes.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/prepare.hpp"

using namespace simplescale;
using test::bytes_of;
using test::megatron_index;
using test::TempFolder;

namespace {

/// The tokens of all samples that carry `mark`, by their index in the source, as the targets of a
/// sample see them: without its first token.
std::vector<uint64_t> marked(const TokenSource& source, int64_t block, int32_t mark) {
  std::vector<uint64_t> found;
  std::vector<int32_t> row(static_cast<size_t>(block) + 1);
  for (uint64_t i = 0; i < source.samples(block); ++i) {
    REQUIRE(source.read_sample(i, block, row.data()).ok());
    CHECK(row[0] == token_id(row[0]));
    for (size_t k = 1; k < row.size(); ++k)
      if ((row[k] & mark) != 0) found.push_back(i * static_cast<uint64_t>(block) + k);
  }
  return found;
}

Config config_of(const std::string& source) {
  Config config;
  config.run.name = "r";
  config.model.preset = "micro";
  config.model.block_size = 10;
  config.train.max_steps = 1;
  config.data.source = source;
  config.data.validation_fraction = 0;
  config.data.document_mask = true;
  return config;
}

using Places = std::vector<uint64_t>;

}  // namespace

TEST_SUITE("documents") {
  TEST_CASE("documents: a token begins one, or ends one; its first token may be no target") {
    const std::vector<int32_t> plain = {7, 1, 2, 1, 7, 7, 3};
    const auto marks = [&](DocumentRule rule, int32_t mark) {
      std::vector<int32_t> tokens = plain;
      mark_by_ids(rule, tokens, -1);
      Places places;
      for (size_t i = 0; i < tokens.size(); ++i) {
        CHECK(token_id(tokens[i]) == plain[i]);
        if ((tokens[i] & mark) != 0) places.push_back(i);
      }
      return places;
    };
    const auto begins = [&](DocumentRule rule) {
      CHECK(marks(rule, kNotTrained).empty());
      return marks(rule, kBeginsDocument);
    };
    CHECK(begins({.mask = true, .first = 1}) == Places{1, 3});
    CHECK(begins({.mask = true, .first = 7}) == Places{4, 5});  // the sample begins one anyway
    CHECK(begins({.mask = true, .last = 7}) == Places{1, 5, 6});
    const DocumentRule both = {.mask = true, .boundary_loss = false, .last = 1};
    CHECK(marks(both, kBeginsDocument) == Places{2, 4});
    CHECK(marks(both, kNotTrained) == Places{2, 4});
    CHECK(marks({.boundary_loss = false, .first = 2, .last = 7}, kNotTrained) ==
          Places{1, 2, 5, 6});
    CHECK(marks({.boundary_loss = false, .first = 2, .last = 7}, kBeginsDocument).empty());
    CHECK_FALSE(DocumentRule{.first = 1}.marks());
  }

  // The token that ends a document is a target, the one behind it is not: as Megatron's
  // --eod-mask-loss, loss_mask[data == eod] = 0. By hand; 'x' marks tokens that are no targets.
  TEST_CASE("documents: the loss counts the token that ends a document, not the one behind it") {
    constexpr int32_t kB = 1, kE = 2;
    const auto untrained = [](const std::string& text, const DocumentRule& rule, bool mask) {
      std::vector<int32_t> tokens;
      for (const char c : text) tokens.push_back(c == 'B' ? kB : c == 'E' ? kE : c);
      std::string found(text.size(), '.');
      for (size_t block = 1; block < text.size(); ++block) {  // cut into samples in every way
        std::string of_block(text.size(), '.');
        for (size_t at = 0; at + 1 < text.size(); at += block) {
          std::vector<int32_t> row(
              tokens.begin() + static_cast<ptrdiff_t>(at),
              tokens.begin() + static_cast<ptrdiff_t>(std::min(at + block + 1, text.size())));
          DocumentRule used = rule;
          used.mask = mask, used.boundary_loss = false;
          mark_by_ids(used, row, at > 0 ? tokens[at - 1] : -1);
          for (size_t i = 1; i < row.size(); ++i)
            if ((row[i] & kNotTrained) != 0) of_block[at + i] = 'x';
        }
        if (block > 1) CHECK(of_block == found);
        found = of_block;
      }
      return found;
    };
    for (const bool mask : {false, true}) {
      // BOS = EOS, as Qwen, GPT-2, OLMo and byte_bpe have it; or BOS only.
      CHECK(untrained("BabcBdBefB", {.first = kB, .first_ends = true}, mask) == ".x...x.x..");
      CHECK(untrained("abBBcB", {.first = kB, .first_ends = true}, mask) == "...xx.");
      // The same, named twice.
      CHECK(untrained("BabcBdBefB", {.first = kB, .last = kB, .first_ends = true}, mask) ==
            ".x...x.x..");
      // EOS only: Megatron, nanoGPT.
      CHECK(untrained("abcEdEefE", {.last = kE}, mask) == "....x.x..");
      // BOS and EOS: a document that was cut for validation ends without EOS.
      CHECK(untrained("BabcEBdEBefBghEB", {.first = kB, .end = kE}, mask) == ".....x..x..x...x");
      CHECK(untrained("BabcEBdEBefE", {.first = kB, .last = kE}, mask) == ".....x..x...");
      // It is not known whether EOS ends documents: BOS ends those that it does not end.
      CHECK(untrained("BabcEBdEBefBghB", {.first = kB, .first_ends = true, .end = kE}, mask) ==
            ".x...x..x...x..");
    }
  }

  TEST_CASE("documents: a Megatron index says where they begin, in files, slices and samples") {
    const TempFolder folder;
    folder.write("a.bin", bytes_of(test::counting<uint16_t>(60)));
    // Sequences 0..4 of 7, 20, 0, 13, 20 tokens. Documents begin with sequences 0, 1, 3.
    folder.write("a.idx", megatron_index({7, 20, 0, 13, 20}, {0, 1, 3, 5}));
    folder.write("b.bin", bytes_of(test::counting<uint16_t>(30)));
    folder.write("b.idx", megatron_index({30}, {0, 1}));
    Dataset data = open_dataset(folder.path, "auto", 4096, 0).take();
    Config config = config_of(folder.path);
    REQUIRE(use_documents(config, data).ok());
    const Places begins = {7, 27, 60};  // the second file begins a document, too
    for (const int64_t block : {1, 2, 7, 10, 88})
      CHECK(marked(data.train, block, kBeginsDocument) == begins);
    CHECK(marked(data.train, 10, kNotTrained).empty());
    for (uint64_t first : {0u, 6u, 7u, 8u, 27u, 40u, 59u, 60u, 61u}) {
      CAPTURE(first);
      Places later;
      for (const uint64_t begin : begins)
        if (begin > first) later.push_back(begin - first);
      CHECK(marked(data.train.slice(first, 90 - first), 1, kBeginsDocument) == later);
    }
    // Ids count before the index.
    config.data.document_begin = 5;
    config.data.document_boundary_loss = false;
    REQUIRE(use_documents(config, data).ok());
    CHECK(marked(data.train, 89, kNotTrained) == Places{6, 66});
    config.data.document_mask = false;
    REQUIRE(use_documents(config, data).ok());
    CHECK(marked(data.train, 89, kBeginsDocument).empty());
    CHECK(marked(data.train, 89, kNotTrained) == Places{6, 66});
    // An index that contradicts itself is no crash.
    folder.write("a.idx", megatron_index({7, 20, 0, 13, 20}, {0, 1, 9, 5}));
    Dataset wrong = open_dataset(folder.path + "/a.bin", "auto", 4096, 0).take();
    config = config_of(folder.path);
    REQUIRE(use_documents(config, wrong).ok());
    std::vector<int32_t> row(61);
    const Status read = wrong.train.read_sample(0, 59, row.data());
    CHECK(says(read, Code::bad_data, "document 2 begins with sequence 9 of 5"));
    const auto has = [](const Status& status, const std::string& what) {
      CHECK(says(status, Code::bad_data, what));
      CHECK(status.message().find("data.document_end names the token") != std::string::npos);
    };
    has(wrong.train.validate(), "document boundary 2 is sequence 9, the one before is 1 of 5");
    // Nor is one that was replaced after validate(): document 2 is before the slice and document 1.
    folder.write("a.idx", megatron_index({7, 20, 0, 13, 20}, {0, 4, 0, 5, 5, 5}));
    Dataset back = open_dataset(folder.path + "/a.bin", "auto", 4096, 0).take();
    REQUIRE(use_documents(config, back).ok());
    const Status before = back.train.slice(30, 30).read_sample(0, 29, row.data());
    CHECK(says(before, Code::bad_data, "document 2 begins before token 40"));
    for (const auto& [documents, what] :
         {std::pair{std::vector<int64_t>{}, "byte 26: it has no document boundaries"},
          {{1, 5}, "byte 94: the first document boundary is sequence 1, not 0"},
          {{-1, 5}, "the first document boundary is sequence -1, not 0"},
          {{0, 1, 4}, "byte 110: the last document boundary is sequence 4, not 5"},
          {{0, 6}, "the last document boundary is sequence 6, not 5"}}) {
      folder.write("a.idx", megatron_index({7, 20, 0, 13, 20}, documents));
      Dataset odd = open_dataset(folder.path + "/a.bin", "auto", 4096, 0).take();
      CHECK(odd.train.validate().ok());  // without a need for documents
      has(use_documents(config, odd), what);
    }
    // Empty documents at both ends and in the middle.
    folder.write("a.idx", megatron_index({0, 7, 0, 53, 0}, {0, 1, 2, 3, 4, 5}));
    Dataset empty = open_dataset(folder.path + "/a.bin", "auto", 4096, 0).take();
    REQUIRE(use_documents(config, empty).ok());
    CHECK(empty.train.validate().ok());
    CHECK(marked(empty.train, 59, kBeginsDocument) == Places{7});
  }

  TEST_CASE("documents: the loss counts the ends of prepared documents, whatever ends them") {
    const TempFolder folder;
    std::string text;
    for (int i = 0; i < 60; ++i)
      text += "some words of document " + std::to_string(i * i) + " and more\n<|endoftext|>\n";
    const std::string source = folder.write("text.txt", text);
    for (const bool byte_level : {true, false})
      for (const Choice append : {Choice::automatic, Choice::no}) {
        CAPTURE(byte_level);
        const PrepareOptions options{
            .source = source,
            .folder = folder.path + "/" + std::to_string(byte_level) + std::to_string(int(append)),
            .append_eos = append,
            .byte_level = byte_level,
            .vocab = 300,
            .validation_fraction = 0};
        const auto made = must(prepare(options));
        const Dataset plain = open_dataset(options.folder, "auto", 4096, 0).take();
        const Tokenizer tokenizer = Tokenizer::load(plain.tokenizer).take();
        std::vector<int32_t> ids(plain.train.tokens());
        REQUIRE(plain.train.read_sample(0, static_cast<int64_t>(ids.size()) - 1, ids.data()).ok());
        // Byte-level: one token is both. SentencePiece: </s>, or <s> where documents have no </s>.
        const bool has_eos = !byte_level && append != Choice::no;
        CHECK(plain.documents_end == has_eos);
        const int32_t end = has_eos ? tokenizer.eos() : tokenizer.bos();
        Places behind;
        for (size_t i = 1; i < ids.size(); ++i)
          if (ids[i - 1] == end) behind.push_back(i);
        CHECK(behind.size() == made->documents - has_eos);
        for (const bool mask : {false, true}) {
          Config config = config_of(options.folder);
          config.data.document_mask = mask;
          config.data.document_boundary_loss = false;
          const auto data = must(open_tokens(config, *model_shape(config)));
          for (const int64_t block : {1, 2, 3}) {
            Places found = marked(data->sources.front().data.train, block, kNotTrained);
            Places want = behind;  // of whole samples
            std::erase_if(want, [&](uint64_t i) {
              return i > data->sources.front().data.train.samples(block) * uint64_t(block);
            });
            CHECK(found == want);
          }
        }
      }
  }

  TEST_CASE("documents: token files with a tokenizer, and a Megatron index, end with BOS or EOS") {
    const TempFolder folder;
    const std::string tokenizer = folder.write("tokenizer.json", R"({"added_tokens": [
      {"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true}],
      "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
      "model": {"type": "BPE", "vocab": {"<s>": 0, "</s>": 1, "a": 2, "b": 3}, "merges": []}})");
    const std::vector<uint16_t> tokens = {0, 2, 3, 1, 0, 3,
                                          0, 2, 2, 0, 3};  // a document has no EOS
    const std::string bare = folder.write("bare/a.bin", bytes_of(tokens));
    folder.write("megatron/a.bin", bytes_of(tokens));
    folder.write("megatron/a.idx", megatron_index({4, 2, 3, 2}, {0, 1, 2, 3, 4}));
    for (const std::string& source : {bare, folder.path + "/megatron/a"}) {
      CAPTURE(source);
      Config config = config_of(source);
      config.model.block_size = 2;
      config.tokenizer.path = tokenizer;
      config.data.format = source == bare ? DataFormat::nanogpt : DataFormat::automatic;
      config.data.token_bytes = source == bare ? 2 : 0;
      config.data.document_boundary_loss = false;
      const auto data = must(open_tokens(config, *model_shape(config)));
      const TokenSource& train = data->sources.front().data.train;
      for (const int64_t block : {1, 2, 5, 10}) {
        CHECK(marked(train, block, kNotTrained) == Places{1, 4, 7, 10});
        CHECK(marked(train, block, kBeginsDocument).size() >= 1);
      }
    }
  }

  TEST_CASE("documents: prepared tokens know their BOS; without a way to find them, no run") {
    const TempFolder folder;
    std::string text;
    for (int i = 0; i < 60; ++i)
      text += "some words of document " + std::to_string(i * i) + " and more\n<|endoftext|>\n";
    const PrepareOptions options{.source = folder.write("text.txt", text),
                                 .folder = folder.path + "/prepared",
                                 .vocab = 300,
                                 .validation_fraction = 0.2};
    const auto made = must(prepare(options));
    Config config = config_of(options.folder);
    const ModelShape shape = *model_shape(config);
    auto data = must(open_tokens(config, shape));
    const Dataset& dataset = data->sources.front().data;
    size_t documents = 2;  // the first one of each file has no mark
    for (const TokenSource* source : {&dataset.train, &dataset.validation})
      documents += marked(*source, 1, kBeginsDocument).size();
    CHECK(documents == made->documents);

    const std::string bare = folder.write("bare.bin", bytes_of(test::counting<uint16_t>(90)));
    const auto refused = [&](Config c) {
      const Status status = open_tokens(c, shape).status();
      CHECK(status.code() == Code::bad_config);
      return status.message();
    };
    config = config_of(bare);
    CHECK(refused(config) == "data.document_mask: nothing says where documents begin, because " +
                                 bare +
                                 " has no tokenizer: set data.document_begin or "
                                 "data.document_end to the id of the token between documents");
    config.data.document_end = 5000;
    CHECK(refused(config) == "data.document_end = 5000 is beyond the vocabulary of 4096");
    config.data.document_end = 50;
    CHECK(open_tokens(config, shape).ok());
    config = config_of(bare);
    config.data.document_mask = false;
    CHECK(open_tokens(config, shape).ok());
    config.data.document_boundary_loss = false;
    CHECK(refused(config).starts_with("data.document_boundary_loss: nothing says"));
    config.data.document_boundary_loss = true;
    config.data.pack = Pack::best_fit;
    config.data.cache_folder = folder.path + "/cache";
    CHECK(refused(config).starts_with("data.pack: nothing says where documents begin"));
    config.data.source = options.folder;
    const auto packed = must(open_tokens(config, shape));
    const Dataset& whole = packed->sources.front().data;
    for (const TokenSource* source : {&whole.train, &whole.validation}) {
      REQUIRE(source->packing());
      CHECK(source->samples(10) * 10 == source->tokens() + source->packing()->padding());
    }
    CHECK(has(packing_table(*packed),
              "  train: " + std::to_string(whole.train.tokens()) + " tokens in"));
    const double share = padding_share(*make_plan(config), *packed);
    CHECK(share == doctest::Approx(static_cast<double>(whole.train.packing()->padding()) /
                                   static_cast<double>(whole.train.samples(10) * 10)));
    config.data.blend = {{"a", options.folder, 1, ""}, {"b", options.folder, 1, ""}};
    config.data.source.clear();
    const auto mixed = must(open_tokens(config, shape));
    CHECK(has(packing_table(*mixed), "  b validation: "));
    CHECK(padding_share(*make_plan(config), *mixed) == doctest::Approx(share));
  }
}
