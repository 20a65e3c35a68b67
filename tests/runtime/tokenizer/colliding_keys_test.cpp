// A tokenizer from a stranger, whose pieces have hashes that the stranger chose.
#include "tests/runtime/tokenizer/colliding_keys.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <string>

#include "runtime/tokenizer/bpe.hpp"
#include "runtime/tokenizer/sentencepiece_model.hpp"
#include "tests/runtime/tokenizer/hostile_model.hpp"

using namespace simplescale;

TEST_SUITE("colliding keys") {
  TEST_CASE("colliding keys: words of one hash have different ones in a vocabulary") {
    const auto texts = test::texts_of_one_hash(10);
    std::set<size_t> known, ours;
    for (const std::string& text : texts) {
      known.insert(std::hash<std::string>()(text));
      ours.insert(Vocabulary::hasher()(text));
    }
    REQUIRE(known.size() == 1);
    CHECK(ours.size() == texts.size());
    CHECK(Vocabulary::hasher()("a") == Vocabulary::hasher()("a"));
  }

  TEST_CASE("colliding keys: pairs of one hash have different ones in the table of merges") {
    std::set<uint64_t> low;
    for (const uint64_t number : test::numbers_of_one_product(4'096))
      low.insert(SeededHash()(number) & 4'095);
    CHECK(low.size() > 2'000);  // 2589 of random ones
    FlatMap map(4'096);
    for (const uint64_t number : test::numbers_of_one_product(4'096)) map.set(number, number + 1);
    for (const uint64_t number : test::numbers_of_one_product(4'096))
      CHECK(map.get(number) == number + 1);
  }

  TEST_CASE("colliding keys: a SentencePiece model whose pieces have one hash is refused") {
    const auto model_of = [](int bits, int type) {
      std::string model = test::small_model(test::bpe_model);
      for (const std::string& text : test::texts_of_one_hash(bits))
        if (!text.empty()) model += test::piece(text, type);
      return check_sentencepiece_model(model);
    };
    CHECK(model_of(5, test::normal_piece).ok());
    const Status twice = check_sentencepiece_model(test::small_model(test::bpe_model) +
                                                   test::piece("<unk>", test::normal_piece));
    CHECK(twice.message().find("occurs twice") != std::string::npos);
    for (const int type : {test::normal_piece, test::user_piece}) {
      const Status refused = model_of(7, type);
      CHECK(refused.code() == Code::bad_data);
      CHECK(refused.message().find("more than 64 pieces have alike hashes") != std::string::npos);
    }
  }
}
