#include <doctest/doctest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <limits>

#include "runtime/tokenizer/sentencepiece_model.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/must.hpp"
#include "tests/runtime/tokenizer/hostile_model.hpp"

using namespace simplescale;
using namespace simplescale::test;

TEST_SUITE_BEGIN("tokenizer");

namespace {

class Lines : public sentencepiece::SentenceIterator {
 public:
  bool done() const override { return next_ == 500; }
  void Next() override { value_ = "the quick fox number " + std::to_string(++next_); }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  int next_ = 0;
  std::string value_ = "begin";
};

std::string trained(const std::string& type, const std::string& normalizer) {
  Lines lines;
  std::string model;
  const auto status =
      sentencepiece::SentencePieceTrainer::Train({{"model_type", type},
                                                  {"vocab_size", "330"},
                                                  {"hard_vocab_limit", "false"},
                                                  {"byte_fallback", "true"},
                                                  {"normalization_rule_name", normalizer},
                                                  {"minloglevel", "2"}},
                                                 &lines, &model);
  REQUIRE_MESSAGE(status.ok(), status.ToString());
  return model;
}

}  // namespace

TEST_CASE("sentencepiece: models of the library's trainer are accepted and give the same ids") {
  for (const char* type : {"bpe", "unigram"})
    for (const char* normalizer : {"identity", "nmt_nfkc", "nfkc_cf"}) {
      INFO("type = ", type, ", normalizer = ", normalizer);
      const std::string model = trained(type, normalizer);
      CHECK(works(check_sentencepiece_model(model)));
      const auto tokenizer = must(Tokenizer::from_bytes(model, "x"));
      sentencepiece::SentencePieceProcessor library;
      REQUIRE(library.LoadFromSerializedProto(model).ok());
      const std::string text = "The quick \xEF\xAC\x81x \xE2\x91\xA0 \xF0\x9F\xA6\x8A";
      CHECK(tokenizer->encode(text) == library.EncodeAsIds(text));
    }
}

TEST_CASE("sentencepiece: hostile models are refused before the library reads them") {
  const std::string head = piece("<unk>", unknown_piece) + piece("a"),
                    bpe = field(2, field(3, bpe_model)), unigram = field(2, field(3, 1));
  const auto refused = [](const std::string& model, const std::string& why) {
    const auto tokenizer = Tokenizer::from_bytes(model, "x.model");
    REQUIRE_FALSE(tokenizer.ok());
    CHECK(says(tokenizer.status(), Code::bad_data, why));
  };
  CHECK(Tokenizer::from_bytes(small_model(bpe_model), "x").ok());
  CHECK(Tokenizer::from_bytes(small_model(unigram_model), "x").ok());
  CHECK(Tokenizer::from_bytes(small_model(bpe_model, charsmap(256, 0, "x")), "x").ok());
  // Each of these two ends the process if the library reads it.
  refused(head + piece(std::string(8 << 20, 'x')) + unigram, "piece 2 has 8388608 bytes");
  refused(small_model(bpe_model, charsmap(256, 0x1FFFFFu << 10, "x")), "precompiled_charsmap");

  refused(small_model(bpe_model, charsmap(255, 0, "x")), "precompiled_charsmap");
  refused(small_model(bpe_model, charsmap(0, 0, "x")), "precompiled_charsmap");
  refused(small_model(bpe_model, charsmap(256, 0, "\xff")), "precompiled_charsmap");
  refused(small_model(bpe_model, charsmap(256, 0, "x").substr(0, 1028)), "precompiled_charsmap");
  refused(small_model(bpe_model, "abc"), "precompiled_charsmap");
  // The root has a leaf, whose value is beyond the texts, or in the middle of one.
  const auto leaf = [](uint32_t value) {
    std::string map = charsmap(256, 1u << 10 | 1u << 8, "xy");
    value |= 1u << 31;
    std::memcpy(map.data() + 8, &value, 4);
    return map;
  };
  CHECK(Tokenizer::from_bytes(small_model(bpe_model, leaf(0)), "x").ok());
  refused(small_model(bpe_model, leaf(1)), "precompiled_charsmap");
  refused(small_model(bpe_model, leaf(99)), "precompiled_charsmap");
  // An "a" becomes so many of this character.
  const auto longer = [](size_t bytes, char by = 'b') {
    std::string map = charsmap(256, 1u << 10, std::string(bytes, by));
    const uint32_t a = 2u << 10 | 1u << 8 | 'a', value = 1u << 31;
    std::memcpy(map.data() + 4 + 4 * (1 ^ 'a'), &a, 4);
    std::memcpy(map.data() + 4 + 4 * (1 ^ 'a' ^ 2), &value, 4);
    return small_model(bpe_model, map);
  };
  CHECK(Tokenizer::from_bytes(longer(64), "x")->encode("aa").size() == 1 + 2 * 64);
  refused(longer(65), "may make a text more than 64 times as long");
  CHECK(Tokenizer::from_bytes(longer(21, ' '), "x").ok());
  refused(longer(22, ' '), "may make a text more than 64 times as long");  // of three bytes each

  refused(head + piece("") + bpe, "piece 2 is empty");
  refused(head + piece("a") + bpe, "piece 2 occurs twice");
  refused(head + piece("\xff") + bpe, "piece 2 is not UTF-8");
  refused(head + piece(std::string("\0x", 2), user_piece) + bpe, "a zero byte");
  refused(head + piece(std::string("\0x", 2)) + unigram, "a zero byte");
  refused(head + piece("c", normal_piece, std::numeric_limits<float>::quiet_NaN()) + bpe,
          "no finite score");
  refused(head + piece("c", 9) + bpe, "unknown type 9");
  refused(head + piece("c", 3) + bpe, "a control piece of one character");
  refused(head + piece("<0x00>", byte_piece) + bpe, "is no byte piece");
  refused(head + field(2, field(3, bpe_model) + field(35, 1)), "one of the 256 bytes");
  refused(head + piece("<u>", unknown_piece) + bpe, "2 unknown pieces");
  refused(piece("a") + bpe, "0 unknown pieces");
  refused(piece("<unk>", unknown_piece) + unigram, "no normal piece");
  refused(head + field(2, field(3, 3)), "its kind is 3");
  refused(head + bpe + bpe, "occurs twice");
  refused(head + bpe + "\x0a\xff\xff\xff\xff\x7f", "damaged");
  refused(head + bpe + "\x0b", "damaged");  // a group
  refused("", "0 unknown pieces");
}

// The library's trainer ends the process at a word of 32,768 characters.
TEST_CASE("sentencepiece: a tokenizer is trained on words of any length") {
  std::vector<std::string> lines = {"a few words before", ""};
  uint32_t random = 1;
  for (int i = 0; i < 40'000; ++i) {
    random = random * 1664525 + 1013904223;
    lines.back() += "ACGT"[random >> 30];
  }
  lines.emplace_back();
  for (int i = 0; i < 70'000; ++i) lines.back() += i % 7 ? "\xE4\xB8\xAD" : "\xE6\x96\x87";
  lines.push_back(std::string(33'000, 'x') + " end");
  const auto model = must(train_tokenizer(lines, 300));
  CHECK(*train_tokenizer(lines, 300) == *model);
  const auto tokenizer = must(Tokenizer::from_bytes(*model, "x"));
  for (const std::string& line : lines) CHECK(tokenizer->decode(tokenizer->encode(line)) == line);
}

TEST_CASE("sentencepiece: the message says in which direction the vocabulary has to change") {
  std::string characters;
  for (unsigned c = 0; c < 20'000; ++c) {
    const unsigned code = 0x4E00 + c;
    characters += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
                   static_cast<char>(0x80 | (code & 63))};
    if (c % 100 == 99) characters += ' ';
  }
  const Status many = train_tokenizer({characters}, 300).status();
  CHECK(many.code() == Code::bad_data);
  CHECK_MESSAGE(many.message().starts_with(
                    "cannot train a tokenizer of 300 tokens: the text has so many different "
                    "characters that 20"),
                many.message());
  CHECK(many.message().find("Use a larger tokenizer.vocab") != std::string::npos);
  const Status little = train_tokenizer({"abc abc"}, 3000).status();
  CHECK(says(little, Code::bad_data, "Use more text or a smaller tokenizer.vocab"));
}

TEST_SUITE_END();
