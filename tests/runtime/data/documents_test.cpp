// Documents in token files: where they begin, and the marks that say so.
#include "runtime/data/documents.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/data/data_location.hpp"
#include "runtime/data/prepare.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/runtime/data/megatron_index.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using test::bytes_of;
using test::megatron_index;
using test::TempFolder;

namespace {

std::vector<uint16_t> counting(uint16_t count) {
  std::vector<uint16_t> tokens(count);
  for (uint16_t i = 0; i < count; ++i) tokens[i] = i;
  return tokens;
}

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
    const auto marks = [&](DocumentRule rule) {
      std::vector<int32_t> tokens = plain;
      mark_by_ids(rule, tokens);
      Places places;
      for (size_t i = 0; i < tokens.size(); ++i) {
        CHECK(token_id(tokens[i]) == plain[i]);
        if (tokens[i] == plain[i]) continue;
        CHECK((tokens[i] & ~kLargestTokenId) == rule.mark());
        places.push_back(i);
      }
      return places;
    };
    CHECK(marks({.mask = true, .first = 1}) == Places{1, 3});
    CHECK(marks({.mask = true, .boundary_loss = false, .last = 1}) == Places{2, 4});
    CHECK(marks({.mask = true, .first = 7}) == Places{4, 5});  // the sample begins one anyway
    CHECK(marks({.mask = true, .last = 7}) == Places{1, 5, 6});
    CHECK(marks({.mask = false, .boundary_loss = false, .first = 2, .last = 7}) ==
          Places{1, 2, 5, 6});
    CHECK(DocumentRule{.mask = true}.mark() == kBeginsDocument);
    CHECK(DocumentRule{.mask = false, .boundary_loss = false}.mark() == kNotTrained);
    CHECK_FALSE(DocumentRule{.first = 1}.marks());
  }

  TEST_CASE("documents: a Megatron index says where they begin, in files, slices and samples") {
    const TempFolder folder;
    folder.write("a.bin", bytes_of(counting(60)));
    // Sequences 0..4 of 7, 20, 0, 13, 20 tokens. Documents begin with sequences 0, 1, 3.
    folder.write("a.idx", megatron_index({7, 20, 0, 13, 20}, {0, 1, 3, 5}));
    folder.write("b.bin", bytes_of(counting(30)));
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
    CHECK(marked(data.train, 89, kNotTrained) == Places{5, 65});
    config.data.document_mask = false;
    REQUIRE(use_documents(config, data).ok());
    CHECK(marked(data.train, 89, kBeginsDocument).empty());
    CHECK(marked(data.train, 89, kNotTrained) == Places{5, 65});
    // An index that contradicts itself is no crash.
    folder.write("a.idx", megatron_index({7, 20, 0, 13, 20}, {0, 1, 9, 5}));
    Dataset wrong = open_dataset(folder.path + "/a.bin", "auto", 4096, 0).take();
    config = config_of(folder.path);
    REQUIRE(use_documents(config, wrong).ok());
    std::vector<int32_t> row(61);
    const Status read = wrong.train.read_sample(0, 59, row.data());
    CHECK(read.code() == Code::bad_data);
    CHECK(read.message().find("document 2 begins with sequence 9 of 5") != std::string::npos);
    const auto has = [](const Status& status, const std::string& what) {
      CHECK(status.code() == Code::bad_data);
      CHECK_MESSAGE(status.message().find(what) != std::string::npos, status.message());
      CHECK(status.message().find("data.document_end names the token") != std::string::npos);
    };
    has(wrong.train.validate(), "document boundary 2 is sequence 9, the one before is 1 of 5");
    // Nor is one that was replaced after validate(): document 2 is before the slice and document 1.
    folder.write("a.idx", megatron_index({7, 20, 0, 13, 20}, {0, 4, 0, 5, 5, 5}));
    Dataset back = open_dataset(folder.path + "/a.bin", "auto", 4096, 0).take();
    REQUIRE(use_documents(config, back).ok());
    const Status before = back.train.slice(30, 30).read_sample(0, 29, row.data());
    CHECK(before.code() == Code::bad_data);
    CHECK(before.message().find("document 2 begins before token 40") != std::string::npos);
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

  TEST_CASE("documents: prepared tokens know their BOS; without a way to find them, no run") {
    const TempFolder folder;
    std::string text;
    for (int i = 0; i < 60; ++i)
      text += "some words of document " + std::to_string(i * i) + " and more\n<|endoftext|>\n";
    const PrepareOptions options{.source = folder.write("text.txt", text),
                                 .folder = folder.path + "/prepared",
                                 .vocab = 300,
                                 .validation_fraction = 0.2};
    const auto made = prepare(options);
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    Config config = config_of(options.folder);
    const ModelShape shape = *model_shape(config);
    auto data = open_tokens(config, shape);
    REQUIRE_MESSAGE(data.ok(), data.status().message());
    const Dataset& dataset = data->sources.front().data;
    size_t documents = 2;  // the first one of each file has no mark
    for (const TokenSource* source : {&dataset.train, &dataset.validation})
      documents += marked(*source, 1, kBeginsDocument).size();
    CHECK(documents == made->documents);

    const std::string bare = folder.write("bare.bin", bytes_of(counting(90)));
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
  }
}
