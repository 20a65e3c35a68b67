#include "tools/prepare/task_encode.hpp"

#include <doctest/doctest.h>

#include <fstream>

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
