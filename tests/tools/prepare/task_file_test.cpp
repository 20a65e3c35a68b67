#include <doctest/doctest.h>

#include "tests/must.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/task_file.hpp"

using namespace simplescale;

TEST_SUITE("data") {
  TEST_CASE("tasks: questions and texts are read; what is wrong names its line") {
    const test::TempFolder folder;
    const std::string good = folder.write(
        "good.jsonl", R"({"task":"a","prompt":"2+2 =","choices":["3","v\u00e9"],"answer":1})"
                      "\n\n"
                      R"({"text":"one  two\n"})"
                      "\n"
                      R"({"prompt":"p","choices":["x","y"],"answer":0,"delimiter":""})");
    const auto rows = must(read_tasks(good));
    REQUIRE(rows->size() == 3);
    CHECK(rows->at(0).task == "a");
    CHECK(rows->at(0).choices == std::vector<std::string>{" 3", " v\xC3\xA9"});
    CHECK(rows->at(0).characters == std::vector<uint64_t>{1, 2});
    CHECK(rows->at(0).answer == 1);
    CHECK(rows->at(1).task == "all");
    CHECK(count_words(rows->at(1).text) == 3);  // the newline ends a word, and none follows
    CHECK(rows->at(2).choices == std::vector<std::string>{"x", "y"});
    for (const auto& [line, wrong] : std::vector<std::pair<std::string, std::string>>{
             {"{", "it is no JSON (each line must hold a whole object)"},
             {R"({"text":"\ud83d"})", "half a surrogate pair"},
             {R"({"prompt":"p","choices":["x",["y"]],"answer":0})", "must be a text"},
             {R"({"prompt":"p","choices":["x","y"],"answer":true})", "\"answer\" must be"},
             {"[]", "it is no JSON object"},
             {"{}", "neither a \"prompt\" nor a \"text\""},
             {R"({"text":""})", "\"text\" is empty"},
             {R"({"prompt":"p","choices":["x"],"answer":0})", "at least two"},
             {R"({"prompt":"p","choices":["x",3],"answer":0})", "must be a text"},
             {R"({"prompt":"p","choices":["x","y"],"answer":2})", "\"answer\" must be"},
             {R"({"prompt":"p","choices":["x","y"],"answer":-1})", "\"answer\" must be"},
             {R"({"prompt":"p","choices":["x","y"]})", "\"answer\" must be"},
             {R"({"text":"t","prompt":"p","choices":["x","y"],"answer":0})",
              "it has a \"text\" and \"prompt\": a row is either a text or a question"},
             {R"({"text":"t","answer":0})", "it has a \"text\" and \"answer\""},
             {R"({"text":5})", "\"text\" must be a text"},
             {R"({"prompt":"p","choices":["x","y"],"answer":0,"delimiter":5})",
              "\"delimiter\" must be a text"},
             {R"({"text":"t","task":5})", "\"task\" must be a text"},
             {R"({"text":"t","task":""})", "\"task\" must be a name"},
             {R"({"text":"t","task":"a\u001bb"})", "\"task\" must be a name"},
             {R"({"haystack":"none.txt"})", "\"haystack\": "},
             {R"({"haystack":5})", "\"haystack\" must be a text"},
             {R"({"haystack":"good.jsonl","text":"t"})", "a row is of one kind"},
             {R"({"haystack":"good.jsonl","lengths":64})", "\"lengths\" must be a list"},
             {R"({"haystack":"good.jsonl","lengths":[]})", "\"lengths\" must be a list"},
             {R"({"haystack":"good.jsonl","lengths":[64,-1]})", "\"lengths\" must be a list"},
             {R"({"haystack":"good.jsonl","depths":[101]})",
              "\"depths\" must be a list of whole numbers from 0 to 100"},
             {R"({"haystack":"good.jsonl","depths":[0.5]})", "\"depths\" must be a list"},
             {R"({"haystack":"good.jsonl","questions":0})", "\"questions\" must be 1 to 1000"},
             {R"({"haystack":"good.jsonl","seed":"s"})", "\"seed\" must be a whole number"},
             {R"({"haystack":"good.jsonl","needle":"no place"})", "must have {key}"},
             {R"({"text":"t","depths":[0]})", "\"depths\" needs a \"haystack\""},
             {R"({"promt":"p","choices":["x","y"],"answer":0})",
              "nor a \"text\"; it has the unknown key \"promt\": did you mean 'prompt'?"},
             {R"({"prompt":"p","choises":["x","y"],"answer":0})",
              "needs at least two texts; it has the unknown key \"choises\": did you mean"}}) {
      const std::string bad = folder.write("bad.jsonl", "{\"text\":\"x\"}\n" + line + "\n");
      const auto result = read_tasks(bad);
      REQUIRE(!result.ok());
      CHECK(result.status().message().starts_with(bad + ": line 2: "));
      CHECK_MESSAGE(has(result.status(), wrong), result.status().message());
    }
    CHECK(
        read_tasks(folder.write("empty.jsonl", "\n")).status().message().ends_with("has no rows"));
    CHECK(read_tasks("/none.jsonl").status().code() == Code::bad_data);
  }

  TEST_CASE("tasks: keys of other tools are named, not refused; null is a missing key") {
    const test::TempFolder folder;
    std::string warning;
    const auto rows = must(read_tasks(
        folder.write("extra.jsonl",
                     R"({"id":7,"text":"t","prompt":null,"task":null,"source":"s"})"
                     "\n"
                     R"({"id":8,"prompt":"p","choices":["x","y"],"answer":1,"delimeter":""})"),
        &warning));
    CHECK(rows->at(0).text == "t");
    CHECK(rows->at(0).task == "all");
    CHECK(warning == folder.path +
                         "/extra.jsonl: keys that are not read: \"delimeter\": did you "
                         "mean 'delimiter'?, \"id\", \"source\"");
    warning.clear();
    REQUIRE(read_tasks(folder.write("good.jsonl", "{\"text\":\"t\"}"), &warning).ok());
    CHECK(warning.empty());
  }

  TEST_CASE("tasks: a parquet file is refused for what it is, whatever its name") {
    const test::TempFolder folder;
    const auto said = [&](const std::string& name) {
      return read_tasks(folder.write(name, "PAR1\x15\x04\n")).status().message();
    };
    CHECK(said("t.parquet").ends_with("is a .parquet file, but only lines of text are read here"));
    CHECK(
        said("t.jsonl").ends_with("a .parquet file by its first bytes: give its name that ending"));
  }

  TEST_CASE("tasks: a row is read as a row of data is") {
    const test::TempFolder folder;
    // As Python's json writes it.
    const auto rows = must(read_tasks(
        folder.write("python.jsonl",
                     "\xEF\xBB\xBF{\"score\":NaN,\"author\":\"\\ud83d\",\"text\":\"a\"}\n"
                     "{\"x\":[-Infinity,1e999],\"prompt\":\"p\",\"choices\":[\"\\ud83d\\ude00\","
                     "\"y\"],\"answer\":1}\n")));
    CHECK(rows->at(0).text == "a");
    CHECK(rows->at(1).choices == std::vector<std::string>{" \xF0\x9F\x98\x80", " y"});
    // What is not read takes no memory, however it nests.
    const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
    CHECK(read_tasks(folder.write("deep.jsonl", "{\"x\":" + deep + ",\"text\":\"t\"}")).ok());
    CHECK_FALSE(read_tasks(folder.write("choices.jsonl",
                                        R"({"prompt":"p","answer":0,"choices":)" + deep + "}"))
                    .ok());
  }

  TEST_CASE("tasks: white space is what Python takes for it") {
    // "".join(c for c in map(chr, range(0x110000)) if c.isspace())
    for (const char* space :
         {"\t",     "\n",     "\v",     "\f",     "\r",     "\x1C",   "\x1D",
          "\x1E",   "\x1F",   " ",      "\u0085", "\u00A0", "\u1680", "\u2000",
          "\u2005", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"}) {
      const std::string some = std::string(space) + space;
      CHECK_MESSAGE(count_words("a" + some + "b") == 2, space);
      CHECK_MESSAGE(without_spaces_at_end(some + "\u00E9" + some) == some + "\u00E9", space);
      CHECK_MESSAGE(without_spaces_at_end(some).empty(), space);
    }
    for (const char* other : {"\x1B", "\u0084", "\u180E", "\u200B", "\u2060", "\uFEFF", "\u4E00"}) {
      CHECK_MESSAGE(count_words(std::string("a") + other + "b") == 1, other);
      CHECK_MESSAGE(without_spaces_at_end(other) == other, other);
    }
  }
}
