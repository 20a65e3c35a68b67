#include "tools/prepare/training_text.hpp"

#include <doctest/doctest.h>

#include "tests/must.hpp"
#include "tests/temp_folder.hpp"
#include "tools/prepare/prepare.hpp"

using namespace simplescale;
using Folder = test::TempFolder;

namespace {

std::vector<std::string> read(const std::vector<TrainingText>& from, bool by_line = true) {
  const auto texts = must(training_texts(from, 7, by_line, [](double) {}));
  return *texts;
}

/// Bytes of the texts that begin with the letter.
double bytes_of(const std::vector<std::string>& texts, char letter) {
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.starts_with(letter) ? text.size() : 0;
  return static_cast<double>(bytes);
}

std::string lines(char letter, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += letter + std::to_string(i % 1000) + " words of it\n";
  return text;
}

std::string rows(const std::string& key, char letter, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i)
    text += "{\"" + key + "\": \"" + letter + std::to_string(i % 1000) + " words of it\"}\n";
  return text;
}

}  // namespace

TEST_CASE("training text: of one text it is all of it, up to 32 MiB") {
  const Folder folder;
  const std::string small = folder.write("small.txt", "a 1\na 2\n\na 3\n");
  CHECK(read({{small, {}}}) == std::vector<std::string>{"a 1", "a 2", "a 3"});
  CHECK(read({{small, {}}}, false) == std::vector<std::string>{"a 1\na 2\n\na 3"});
  const std::string large = folder.write("large.txt", lines('a', 4'000'000));  // 60 MB
  const auto texts = read({{large, {}}});
  CHECK(bytes_of(texts, 'a') / (32 << 20) == doctest::Approx(0.93).epsilon(0.03));  // no newlines
  CHECK(read({{large, {}}}) == texts);
}

TEST_CASE("training text: of several texts the bytes are in proportion to the weights") {
  const Folder folder;
  const std::string a = folder.write("a.txt", lines('a', 2000)),
                    b = folder.write("b.jsonl", rows("body", 'b', 2000)),
                    c = folder.write("c.jsonl", rows("content", 'c', 500));
  const std::vector<TrainingText> blend = {
      {a, {}, 6}, {b, {.text_key = "body"}, 3}, {c, {.text_key = "content"}, 1}};
  for (const bool by_line : {true, false}) {
    const auto texts = read(blend, by_line);
    const double as = bytes_of(texts, 'a'), bs = bytes_of(texts, 'b'), cs = bytes_of(texts, 'c');
    const double all = as + bs + cs;
    // Chunks behind the first one of a document begin with a newline.
    if (by_line) CHECK(as / all == doctest::Approx(0.6).epsilon(0.03));
    CHECK(cs / bs == doctest::Approx(1. / 3).epsilon(0.06));
    CHECK(cs >= 500 * 15);  // nothing is left out of what need not be
    CHECK(read(blend, by_line) == texts);
  }
  // A text that is larger than its share of 32 MiB is not read into memory.
  const std::string large = folder.write("large.txt", lines('l', 2'000'000));  // 30 MB
  const std::string tiny = folder.write("tiny.txt", lines('t', 200));
  const auto texts = read({{large, {}, 1}, {tiny, {}, 9}});
  CHECK(bytes_of(texts, 'l') / (32 << 20) == doctest::Approx(0.093).epsilon(0.04));
  CHECK(bytes_of(texts, 't') == 1000 * bytes_of(read({{tiny, {}}}), 't'));

  const auto signature = [&](double weight, const std::string& key) {
    return *training_signature({{a, {}, 6}, {b, {.text_key = key}, weight}});
  };
  CHECK(signature(3, "body") == signature(3, "body"));
  CHECK(signature(3, "body") != signature(2, "body"));
  CHECK(signature(3, "body") != signature(3, "text"));
  CHECK(*training_signature({{a, {}, 6}}) == Corpus::open(a)->signature());
  CHECK(training_signature({{a, {}}, {folder.path + "/none.txt", {}}}).status().code() ==
        Code::bad_data);
}

TEST_CASE("training text: a folder keeps the tokenizer of a run that has begun") {
  const Folder folder;
  PrepareOptions options{.source = folder.write("a.txt", lines('a', 2000)),
                         .folder = folder.path + "/tokens",
                         .byte_level = true,
                         .vocab = 300};
  std::string villages;
  for (int i = 0; i < 2000; ++i)
    villages += "quiet villages repair nets " + std::to_string(i) + "\n";
  const std::string other = folder.write("b.txt", villages);
  const auto alone = must(prepare(options));
  options.blend = {{options.source, {}, 0.5}, {other, {}, 0.5}};
  CHECK(tokenizer_signature(options) != alone->tokenizer_signature);
  CHECK(prepare(options).status().code() == Code::bad_config);
  CHECK(free_folder(options) != options.folder);
  options.keeps_tokenizer = true;
  CHECK(tokenizer_signature(options) == alone->tokenizer_signature);
  CHECK(free_folder(options) == options.folder);
  const auto kept = must(prepare(options));
  CHECK(*kept == *alone);
  // In a new folder it is trained on both.
  options.folder = folder.path + "/new";
  const auto both = must(prepare(options));
  CHECK(both->tokenizer_hash != alone->tokenizer_hash);
  CHECK(both->tokenizer_signature == *training_signature(options.blend));
}
