#include "tools/prepare/task_encode.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "runtime/training/task_score.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

namespace {

using Ids = std::vector<int32_t>;

/// A tokenizer of one token for each byte or merge: " " 1, "a" 2, "b" 3, "ab" 4; 0 is `special`.
Tokenizer tokenizer(const std::string& special = "<s>") {
  const std::string json = R"({"version":"1.0","added_tokens":[{"id":0,"content":")" + special +
                           R"(","special":true}],"normalizer":null,"pre_tokenizer":
    {"type":"ByteLevel","add_prefix_space":false,"use_regex":false},"post_processor":null,
    "decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{")" +
                           special + R"(":0,"\u0120":1,"a":2,"b":3,"ab":4},"merges":["a b"]}})";
  return must(Tokenizer::from_bytes(json, "tokenizer.json")).take();
}

TaskRow question(const char* prompt, std::vector<std::string> choices) {
  TaskRow row{.task = "q", .prompt = prompt, .choices = std::move(choices), .answer = 1};
  row.characters.assign(row.choices.size(), 1);
  return row;
}

}  // namespace

TEST_SUITE("tasks") {
  TEST_CASE("task tokens: BOS, prompt and choice; only the choice is scored") {
    const Tokenizer t = tokenizer();
    REQUIRE(t.bos() == 0);
    const auto rows = must(encode_tasks({question("a", {" b", " a b"})}, t, 8, 5));
    const TaskTokens& row = rows->at(0);
    CHECK(row.sequences == std::vector<TaskSequence>{{2, {0, 2, 1, 3}}, {4, {0, 2, 1, 2, 1, 3}}});
    CHECK(row.answer == 1);
    // Spaces at the end of a prompt belong to the choice.
    CHECK(encode_tasks({question("a  ", {"b", "a"})}, t, 8, 5)->at(0).sequences[0] ==
          TaskSequence{3, {0, 2, 1, 1, 3}});
  }

  TEST_CASE("task tokens: where prompt and choice merge, the prompt keeps its own tokens") {
    // "a" + "bb" are the tokens "ab", "b"; the harness scores those after the first one.
    CHECK(encode_tasks({question("a", {"bb", "a"})}, tokenizer(), 8, 5)->at(0).sequences[0] ==
          TaskSequence{1, {0, 2, 3}});
    // "ab" alone is one token, "a" too: at least one token is scored.
    CHECK(encode_tasks({question("a", {"b", "a"})}, tokenizer(), 8, 5)->at(0).sequences[0] ==
          TaskSequence{1, {0, 4}});
  }

  TEST_CASE("task tokens: what is too long is cut from the left; a text into pieces") {
    const Tokenizer t = tokenizer();
    CHECK(encode_tasks({question("a a b", {" b", " b b b"})}, t, 4, 5)->at(0).sequences ==
          std::vector<TaskSequence>{{2, {2, 1, 3, 1, 3}}, {4, {3, 1, 3, 1, 3}}});
    TaskRow text{.task = "t", .text = "a b a b a "};  // ten tokens after BOS
    const TaskTokens row = encode_tasks({text}, t, 4, 5)->at(0);
    CHECK(row.sequences == std::vector<TaskSequence>{
                               {4, {0, 2, 1, 3, 1}}, {4, {1, 2, 1, 3, 1}}, {2, {1, 3, 1, 2, 1}}});
    CHECK(row.words == 6);
    CHECK(row.bytes == 10);
  }

  TEST_CASE("task tokens: a tokenizer that does not fit the model is told") {
    const auto message = [](const Tokenizer& t, TaskRow row, int64_t vocab) {
      const auto rows = encode_tasks({std::move(row)}, t, 8, vocab);
      CHECK(rows.status().code() == Code::bad_data);
      return rows.status().message();
    };
    CHECK(has(message(tokenizer(), question("a", {"ab", "a"}), 4), "vocabulary of 4"));
    const Tokenizer bare = tokenizer("<x>");
    CHECK(has(message(bare, question("a", {"b", "a"}), 5), "neither BOS nor EOS"));
  }

  TEST_CASE(
      "task tokens: a needle stands at its depth in the text, and one of four numbers is asked") {
    std::string vocab = "\"<s>\":0";
    for (int i = 0; i < 10; ++i) vocab += ",\"" + std::to_string(i) + "\":" + std::to_string(i + 1);
    const std::string json =
        R"({"version":"1.0","added_tokens":[{"id":0,"content":"<s>","special":true}],
    "normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},
    "post_processor":null,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" +
        vocab + R"(,"\u0120":11,"a":12,"b":13,"?":14,"!":15,"\u010a":16},"merges":[]}})";
    const Tokenizer t = must(Tokenizer::from_bytes(json, "tokenizer.json")).take();
    std::string hay;
    for (int i = 0; i < 200; ++i) hay += i % 3 ? 'a' : 'b';
    TaskRow row{.task = "n"};
    row.needle = Needle{.haystack = hay,
                        .lengths = {40, 64},
                        .depths = {0, 50, 100},
                        .questions = 5,
                        .seed = 7,
                        .sentence = "!{key}!",
                        .question = "?"};
    const auto rows = must(encode_tasks({row}, t, 64, 17));
    REQUIRE(rows->size() == 2 * 3 * 5);
    std::vector<int> answers(4);
    std::set<std::string> texts;
    for (size_t i = 0; i < rows->size(); ++i) {
      const TaskTokens& made = rows->at(i);
      const size_t length = i < 15 ? 40 : 64, depth = i / 5 % 3;
      CHECK(made.task == "n/" + std::to_string(length) +
                             (depth == 0   ? "/0"
                              : depth == 1 ? "/50"
                                           : "/100"));
      CHECK(made.characters == std::vector<uint64_t>{5, 5, 5, 5});
      REQUIRE(made.sequences.size() == 4);
      ++answers[made.answer];
      std::set<std::string> keys;
      for (size_t c = 0; c < 4; ++c) {
        const TaskSequence& s = made.sequences[c];
        REQUIRE(s.ids.size() == length);
        CHECK(s.ids[0] == 0);
        CHECK(s.scored == 6);  // " 12345"
        const std::string text = t.decode(std::span(s.ids).subspan(1));
        const std::string key = text.substr(text.size() - 5);
        keys.insert(key);
        texts.insert(text);
        CHECK(text.ends_with("\n? " + key));
        const std::string found =
            made.sequences[made.answer].ids.empty()
                ? ""
                : t.decode(std::span(made.sequences[made.answer].ids).last(5));
        const std::string needle = "\n!" + found + "!\n";  // the right number, whatever is asked
        const size_t hay_tokens = length - 1 - needle.size() - 8;
        const size_t at = text.find(needle);
        CHECK(at == (depth == 0 ? 0 : depth == 1 ? (hay_tokens + 1) / 2 : hay_tokens));
        CHECK(hay.find(text.substr(0, at)) != std::string::npos);
      }
      CHECK(keys.size() == 4);
    }
    CHECK(texts.size() == rows->size() * 4);
    CHECK(std::ranges::all_of(answers, [](int n) { return n > 1; }));
    CHECK(*must(encode_tasks({row}, t, 64, 17)) == *rows);
    row.needle->seed = 8;
    CHECK(*must(encode_tasks({row}, t, 64, 17)) != *rows);
    const auto refused = [&](std::vector<uint64_t> lengths, int64_t block) {
      row.needle->lengths = std::move(lengths);
      return encode_tasks({row}, t, block, 17).status().message();
    };
    CHECK(has(refused({65}, 64), "a length of 65 tokens is above the model's block_size = 64"));
    CHECK(has(refused({17}, 64), "has no room for the needle and the question, which are 18"));
    CHECK(has(refused({300}, 512), "the haystack has only 200 tokens; a length of 300 needs 282"));
    CHECK(refused({}, 100).empty());  // 25, 50 and 100 tokens
  }

  TEST_CASE("task scores: accuracies by depth and length are a table") {
    TaskScores scores;
    for (const auto& [name, right] :
         {std::pair{"n/64/0", 1}, {"n/64/100", 2}, {"n/128/0", 0}, {"x", 1}}) {
      scores.push_back({.task = name, .questions = 2});
      scores.back().right = static_cast<uint64_t>(right);
    }
    CHECK(depth_table(scores) ==
          "\nn: accuracy by depth and tokens\n   depth       64      128\n     0 %   0.5000   "
          "0.0000\n"
          "   100 %   1.0000        -\n");
    CHECK(depth_table({{.task = "x", .questions = 2}}).empty());
  }

  TEST_CASE("task tokens: the file gives back what was written, and names a damaged line") {
    const test::TempFolder folder;
    TaskRow text{.task = "\u00e9\n", .text = "a b"};
    const auto rows = encode_tasks({question("a", {" b", " a"}), text}, tokenizer(), 8, 5);
    const std::string path = folder.path + "/tasks.jsonl";
    REQUIRE(write_task_tokens(path, *rows).ok());
    CHECK(*read_task_tokens(path, 8, 5) == *rows);
    CHECK_FALSE(read_task_tokens(path, 8, 3).ok());  // ids of another model
    CHECK_FALSE(read_task_tokens(path, 2, 5).ok());  // too long for another one
    for (const char* line :
         {"{", "[]", R"({"task":"a","sequences":[[1,[0,1]]]})",
          R"({"task":"a","sequences":[[2,[0,1]]],"words":1,"bytes":1})",
          R"({"task":"a","sequences":[[0,[0,1]]],"words":1,"bytes":1})",
          R"({"task":"a","sequences":[[1,[0,-1]]],"words":1,"bytes":1})",
          R"({"task":"a","sequences":[[1,[0,1]]],"characters":[1,2],"answer":0})",
          R"({"task":"a","sequences":[[1,[0,1]]],"characters":[1],"answer":1})"}) {
      const std::string bad = folder.write("bad.jsonl", std::string(line) + "\n");
      const auto read = read_task_tokens(bad, 8, 5);
      CHECK_MESSAGE(read.status().message().starts_with(bad + ": line 1 is damaged"), line);
    }
  }
}
