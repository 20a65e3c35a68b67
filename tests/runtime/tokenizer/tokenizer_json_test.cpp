#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/base/utf8.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "runtime/tokenizer/unicode.hpp"
#include "tests/long.hpp"
#include "tests/must.hpp"
#include "tests/paths.hpp"
#include "tests/runtime/tokenizer/hostile_model.hpp"
#include "tests/runtime/tokenizer/reference.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using namespace simplescale::test;
using nlohmann::json;

TEST_SUITE_BEGIN("tokenizer");

namespace {

/// Visible ASCII as it is, anything else as a number, to show a text in a message.
std::string shown(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size() && out.size() < 300;) {
    const CodePoint c = code_point_at(text, at);
    out += c.value >= 0x20 && c.value < 0x7F ? std::string(1, static_cast<char>(c.value))
                                             : "{" + std::to_string(c.value) + "}";
    at += c.bytes;
  }
  return out;
}

/// The text from where the ids begin to differ, as its token says, and what each side has there.
std::string difference(const Tokenizer& tokenizer, const std::vector<int32_t>& ours,
                       const std::vector<int32_t>& theirs) {
  const auto [a, b] = std::ranges::mismatch(ours, theirs);
  const auto around = [&](const std::vector<int32_t>& ids, auto at) {
    const auto begin = at - std::min<std::ptrdiff_t>(3, at - ids.begin());
    const auto end = at + std::min<std::ptrdiff_t>(6, ids.end() - at);
    return shown(tokenizer.decode(std::vector<int32_t>(begin, end)));
  };
  return "ours: " + around(ours, a) + "\ntheirs: " + around(theirs, b);
}

/// The folder with reference.py's files. Set SIMPLESCALE_TOKENIZER_REFERENCE to use one that is
/// there; _BYTES and _EVERY make a larger one. Empty: no Python with tokenizers.
std::string make_reference() {
  if (const char* there = std::getenv("SIMPLESCALE_TOKENIZER_REFERENCE")) return there;
  const std::string python = deps_dir() + "/python/bin/python";
  if (std::system((python + " -c 'import tokenizers' >/dev/null 2>&1").c_str()) != 0) return "";
  static const TempFolder temporary;
  const std::string& folder = temporary.path;
  const auto option = [](const char* flag, const char* name) {
    const char* value = std::getenv(name);
    return value ? std::string(flag) + value : std::string();
  };
  const std::string command = python + " -B " + source_dir() +
                              "/tests/runtime/tokenizer/reference.py " + folder +
                              (long_tests() ? " --every=3 --bytes=600000 --fuzzed=4000" : "") +
                              option(" --bytes=", "SIMPLESCALE_TOKENIZER_BYTES") +
                              option(" --every=", "SIMPLESCALE_TOKENIZER_EVERY") +
                              option(" --seed=", "SIMPLESCALE_TEST_SEED");
  REQUIRE(std::system(command.c_str()) == 0);
  return folder;
}

/// make_reference(), once for all tests. The folder is removed at the end.
const std::string& reference_folder() {
  static const std::string made = make_reference();
  return made;
}

const std::vector<std::string> names = {"gpt2",   "llama3",   "qwen2",   "olmo2",   "gpt4o",
                                        "smollm", "deepseek", "llama2",  "mistral", "metaspace",
                                        "odd",    "splits",   "scripts", "bare"};

}  // namespace

TEST_CASE("tokenizer.json: a trained one has the tokens and merges of Hugging Face's trainer") {
  const std::string& folder = reference_folder();
  if (folder.empty()) return skipped("no Python with tokenizers under .deps");
  std::vector<std::string> texts;
  for (ReferenceFile file(folder + "/train.bin"); !file.empty();) texts.push_back(file.text());
  const auto ours = must(train_byte_bpe(texts, 2000));
  std::ifstream in(folder + "/trained.json");
  const json mine = json::parse(*ours)["model"], theirs = json::parse(in)["model"];
  CHECK(mine["vocab"] == theirs["vocab"]);
  CHECK(mine["merges"] == theirs["merges"]);

  const auto tokenizer = must(Tokenizer::from_bytes(*ours, "tokenizer.json"));
  CHECK(tokenizer->vocab() == 2000);
  CHECK(tokenizer->bos() == 0);
  CHECK(tokenizer->eos() == 0);
  for (const std::string& text : texts)
    if (text.find("<|endoftext|>") == text.npos)
      REQUIRE(tokenizer->decode(tokenizer->encode(text)) == text);

  CHECK(train_byte_bpe({}, 1000).status().code() == Code::bad_data);
  const auto few = Tokenizer::from_bytes(*train_byte_bpe({"abc abc"}, 1000), "tokenizer.json");
  CHECK(few->vocab() == 260);  // and ab, abc, " abc"
}

TEST_CASE("tokenizer.json: one is trained on a word of any length") {
  std::string word;
  for (uint32_t i = 0, random = 1; i < 400'000; ++i) {
    random = random * 1664525 + 1013904223;
    word += "ACGT"[random >> 30];
  }
  const auto trained = must(train_byte_bpe({word, word + "\n"}, 1000));
  CHECK(*train_byte_bpe({word, word + "\n"}, 1000) == *trained);
  const auto tokenizer = must(Tokenizer::from_bytes(*trained, "tokenizer.json"));
  const auto ids = tokenizer->encode(word);
  CHECK(ids.size() < word.size() / 3);
  CHECK(tokenizer->decode(ids) == word);
}

TEST_CASE(
    "tokenizer.json: random normalizers, splits, added tokens and templates give Hugging Face's "
    "ids") {
  const std::string python = deps_dir() + "/python/bin/python";
  if (std::system((python + " -c 'import tokenizers' >/dev/null 2>&1").c_str()) != 0)
    return skipped("no Python with tokenizers under .deps");
  const TempFolder folder;
  const char* chosen = std::getenv("SIMPLESCALE_TEST_SEED");
  const std::string seed = chosen ? chosen : "1";
  INFO("SIMPLESCALE_TEST_SEED=", seed);
  const std::string command = python + " -B " + source_dir() +
                              "/tests/runtime/tokenizer/random_tokenizers.py " + folder.path +
                              " --seed " + seed + " 2>" + folder.path + "/errors";
  REQUIRE_MESSAGE(std::system(command.c_str()) == 0, contents(folder.path + "/errors"));
  size_t compared = 0;
  for (size_t i = 0; std::filesystem::exists(folder.path + "/" + std::to_string(i) + ".ids"); ++i) {
    const std::string stem = folder.path + "/" + std::to_string(i);
    const auto loaded = Tokenizer::load(stem + ".json");
    if (loaded.status().message().find("64 times as long") != std::string::npos) continue;
    const json facts = json::parse(contents(stem + ".facts"));
    CHECK_MESSAGE(loaded.ok() == facts["same_ids"].get<bool>(), i, ": ", loaded.status().message());
    if (!loaded.ok()) continue;
    if (facts["before"] >= 0) CHECK(loaded->bos() == facts["before"]);
    if (facts["behind"] >= 0) CHECK(loaded->eos() == facts["behind"]);
    for (ReferenceFile texts(stem + ".texts"), ids(stem + ".ids"); !texts.empty(); ++compared) {
      const std::string text = texts.text();
      const std::vector<int32_t> ours = loaded->encode(text), theirs = ids.ids();
      CHECK_MESSAGE(ours == theirs, i, ": ", shown(text), "\n", difference(*loaded, ours, theirs));
      CHECK_MESSAGE(loaded->decode(theirs) == ids.text(), i, ": ", shown(text));
    }
  }
  CHECK(compared > 5000);
}

TEST_CASE("tokenizer.json: the ids of a range of a text are those of Hugging Face's offsets") {
  const std::string& folder = reference_folder();
  if (folder.empty()) return skipped("no Python with tokenizers under .deps");
  const std::vector<std::string> texts = reference_texts(folder);
  for (const std::string& name : names) {
    CAPTURE(name);
    const auto loaded = must(Tokenizer::load(folder + "/" + name + ".json"));
    ReferenceFile reference(folder + "/" + name + ".masks");
    // Where a range begins or ends within what a normalizer replaces as a whole, such as a letter
    // and its accent, `tokenizers` takes part of it for the letter alone. And it knows the characters
    // that a model leaves out ("splits"), or takes them for something else ("odd").
    // "deepseek" puts a space before every word, so words that a range cuts have one too many.
    const bool replaces =
        name == "qwen2" || name == "deepseek" || name == "odd" || name == "splits";
    size_t wrong = 0;
    for (const std::string& text : texts) {
      const std::vector<int32_t> range = reference.ids(), theirs = reference.ids();
      IndexRanges ranges;
      append_range(ranges, {static_cast<uint64_t>(range[0]), static_cast<uint64_t>(range[1])});
      std::vector<bool> masked;
      const auto ids = loaded->encode_masked(text, false, ranges, masked);
      REQUIRE(ids == loaded->encode(text));
      const std::vector<int32_t> ours(masked.begin(), masked.end());
      if (ours == theirs || ++wrong > 3 || replaces) continue;
      const auto at = std::ranges::mismatch(ours, theirs).in1 - ours.begin();
      MESSAGE(name << ": range " << range[0] << " to " << range[1] << ", id " << at << " of "
                   << shown(std::string_view(text)));
    }
    CHECK(wrong <= (replaces ? texts.size() / 30 : 0));
  }
}

TEST_CASE("tokenizer.json: many ranges of a long text whose normalizer shortens it") {
  const std::string& folder = reference_folder();
  if (folder.empty()) return skipped("no Python with tokenizers under .deps");
  const auto loaded = must(Tokenizer::load(folder + "/qwen2.json"));
  const std::string word = " cafe\xCC\x81";  // becomes a letter with its accent, a byte shorter
  for (const char* other : {" ole", "\nole", " \n ole"}) {
    std::string text, expected;
    IndexRanges ranges;
    for (int i = 0; i < 300; ++i) {
      ranges.push_back({text.size(), text.size() + word.size()});
      text += word + other;
      expected += " caf\xC3\xA9";
    }
    for (const bool rest : {false, true}) {
      std::vector<bool> masked;
      std::vector<int32_t> ids = loaded->encode_masked(text, rest, ranges, masked), of_ranges;
      REQUIRE(ids == loaded->encode(text));
      for (size_t i = 0; i < ids.size(); ++i)
        if (masked[i]) of_ranges.push_back(ids[i]);
      CHECK(loaded->decode(of_ranges) == expected);
    }
  }
}

TEST_CASE("tokenizer.json: ids and decoded texts are those of Hugging Face's tokenizers") {
  const std::string& folder = reference_folder();
  if (folder.empty()) return skipped("no Python with tokenizers under .deps");
  const std::vector<std::string> texts = reference_texts(folder);
  REQUIRE(texts.size() > 1000);
  for (const std::string& name : names) {
    CAPTURE(name);
    const auto loaded = must(Tokenizer::load(folder + "/" + name + ".json"));
    ReferenceFile reference(folder + "/" + name + ".ids");
    const bool at_spaces = loaded->cuts() == Tokenizer::Cuts::space;
    int wrong = 0, wrong_back = 0, wrong_cut = 0;
    for (const std::string& text : texts) {
      const std::vector<int32_t> theirs = reference.ids();
      const std::string back = reference.text();
      const std::vector<int32_t> ours = loaded->encode(text);
      if (ours != theirs && ++wrong <= 3)
        MESSAGE(name << ": " << difference(*loaded, ours, theirs));
      if (const std::string mine = loaded->decode(theirs); mine != back && ++wrong_back <= 3) {
        const auto at = std::ranges::mismatch(mine, back).in1 - mine.begin();
        MESSAGE(name << ": decode: " << shown(std::string_view(text)) << " at " << at);
      }
      if (!at_spaces) continue;
      // The first cut behind the middle.
      for (size_t at = text.size() / 2 + 1; at + 1 < text.size(); ++at) {
        if (text[at] != ' ' || !std::isalpha(static_cast<unsigned char>(text[at - 1])) ||
            !std::isalpha(static_cast<unsigned char>(text[at + 1])))
          continue;
        std::vector<int32_t> cut = loaded->encode(text.substr(0, at));
        const std::vector<int32_t> rest = loaded->encode_rest(text.substr(at));
        cut.insert(cut.end(), rest.begin(), rest.end());
        if (cut != ours && ++wrong_cut <= 3)
          MESSAGE(name << ": cut: " << difference(*loaded, cut, ours));
        break;
      }
    }
    CHECK(wrong == 0);
    CHECK(wrong_back == 0);
    CHECK(wrong_cut == 0);
    CHECK(at_spaces == (name != "odd"));
  }
  const auto bos = [&](const std::string& name) {
    const auto tokenizer = Tokenizer::load(folder + "/" + name + ".json");
    return std::pair(tokenizer->bos(), tokenizer->eos());
  };
  CHECK(bos("llama3") == std::pair(0, 1));
  CHECK(bos("gpt2") == std::pair(0, 0));
  CHECK(bos("llama2") == std::pair(1, 2));
}

namespace {

/// A small byte-level tokenizer: all bytes, "he", and <|endoftext|>.
json small() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(text, byte_alphabet()[static_cast<size_t>(byte)]);
    vocab[text] = byte;
  }
  vocab["he"] = 256;
  return {{"version", "1.0"},
          {"added_tokens",
           {{{"id", 257}, {"content", "<|endoftext|>"}, {"special", true}, {"normalized", false}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"h e"}}}}};
}

Result<Tokenizer> load(const json& document) {
  return Tokenizer::from_bytes(document.dump(), "x/tokenizer.json");
}

}  // namespace

TEST_CASE(
    "tokenizer.json: a token that takes the white space behind it hides none that begins there") {
  json document = small();
  document["added_tokens"].push_back({{"id", 258}, {"content", "<a>"}, {"rstrip", true}});
  document["added_tokens"].push_back({{"id", 259}, {"content", " <b>"}, {"normalized", false}});
  document["added_tokens"].push_back({{"id", 260}, {"content", "  "}, {"lstrip", true}});
  for (json& token : document["added_tokens"]) token["normalized"] = false;
  const auto tokenizer = must(load(document));
  // As of `tokenizers` 0.23.3.
  CHECK(tokenizer->encode("<a> <b>he") == std::vector<int32_t>{258, 259, 256});
  CHECK(tokenizer->encode("<a>  he") == std::vector<int32_t>{258, 256});
}

// Looked at anew for each token, 1 MiB would need 5e11 steps.
TEST_CASE("tokenizer.json: white space that tokens take is looked at once") {
  constexpr size_t kSpaces = 1 << 20;
  for (const auto& [left, right, count] : {std::tuple{true, false, kSpaces}, {true, true, 1}}) {
    json document = small();
    document["added_tokens"].push_back(
        {{"id", 258}, {"content", " "}, {"lstrip", left}, {"rstrip", right}});
    const auto tokenizer = must(load(document));
    CHECK(tokenizer->encode(std::string(kSpaces, ' ')) == std::vector<int32_t>(count, 258));
  }
}

TEST_CASE("tokenizer.json: special tokens, any bytes, and many threads at once") {
  const auto tokenizer = must(load(small()));
  CHECK(tokenizer->vocab() == 258);
  CHECK(tokenizer->bos() == 257);
  CHECK(tokenizer->encode("he<|endoftext|>h") == std::vector<int32_t>{256, 257, 'h'});
  CHECK(tokenizer->decode(std::vector<int32_t>{256, 257, 'h', -1, 9999}) == "heh");
  CHECK(tokenizer->encode("").empty());
  CHECK(tokenizer->decode(tokenizer->encode("a\xff\xe2\x82z")) == "a\xEF\xBF\xBD\xEF\xBF\xBDz");
  // How `transformers` leaves files behind it. It does neither unless it is asked to.
  json saved = small();
  saved["truncation"] = {{"max_length", 1}, {"strategy", "LongestFirst"}};
  saved["padding"] = {{"strategy", {{"Fixed", 9}}}, {"pad_id", 0}};
  CHECK(load(saved)->encode("hehe") == std::vector<int32_t>{256, 256});
  // A long word goes another way than a short one.
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "he";
  CHECK(tokenizer->encode(text) == std::vector<int32_t>(1000, 256));
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        CHECK(tokenizer->decode(tokenizer->encode("hehe ho")) == "hehe ho");
    });
}

TEST_CASE("tokenizer.json: added tokens have the ids that tokenizers gives, or are refused") {
  const auto added = [](int id, const std::string& content, bool special = true) -> json {
    return {{"id", id}, {"content", content}, {"special", special}, {"normalized", false}};
  };
  const auto says = [](const std::function<void(json&)>& edit) {
    json document = small();
    edit(document);
    return load(document).status().message();
  };
  const auto given = [](const std::string& token, int id, int by) {
    return "added token \"" + token + "\" has the id " + std::to_string(id) +
           ", but tokenizers and transformers give it " + std::to_string(by);
  };
  // The ids of `tokenizers` 0.23.3: a gap, another order, an id of the vocabulary, one id for two.
  for (const auto& [list, message] : std::vector<std::pair<json, std::string>>{
           {{added(257, "<e>"), added(300, "<x>")}, given("<x>", 300, 258)},
           {{added(300, "<x>"), added(257, "<e>")}, given("<x>", 300, 257)},
           {{added(258, "<x>"), added(257, "<e>")}, given("<x>", 258, 257)},
           {json::array({added(5, "<x>")}), given("<x>", 5, 257)},
           {{added(257, "<e>"), added(257, "<x>")}, given("<x>", 257, 258)},
           {json::array({added(258, "he")}), "\"he\" has the id 258, and 256 in the model's vocab"},
           {{added(257, "<e>"), added(258, "<e>")}, "\"<e>\" is listed twice"},
           {{added(257, "<e>"), added(257, "<e>", false)}, "\"<e>\" is listed twice"}})
    CHECK_MESSAGE(
        says([&](json& d) { d["added_tokens"] = list; }).find(message) != std::string::npos,
        message);
  CHECK(says([&](json& d) {
          d["normalizer"] = {{"type", "Lowercase"}};
          d["added_tokens"] = {added(257, "<e>"), added(258, "<E>")};
          for (json& token : d["added_tokens"]) token["normalized"] = true;
        }).find("makes the added token \"<E>\" the same as another one") != std::string::npos);

  json document = small();
  document["added_tokens"] = {added(256, "he"), added(257, "<e>"), added(257, "<e>"),
                              added(258, "<x>", false)};
  const auto tokenizer = must(load(document));
  CHECK(tokenizer->encode("ahe<x><e>") == std::vector<int32_t>{'a', 256, 258, 257});
  // The vocabulary has 258 tokens, the last with id 400: the next one is 258, not 401.
  document["model"]["vocab"]["q1"] = 400;
  document["added_tokens"] = json::array({added(258, "<x>")});
  CHECK(load(document)->encode("a<x>") == std::vector<int32_t>{'a', 258});
  document["added_tokens"] = json::array({added(401, "<x>")});
  CHECK(load(document).status().message().find(given("<x>", 401, 258)) != std::string::npos);
}

TEST_CASE("tokenizer.json: BOS and EOS are the ids that the template says") {
  const auto puts = [](const std::string& token) -> json {
    return {{"SpecialToken", {{"id", token}, {"type_id", 1}}}};
  };
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 1}}}};
  const auto ends = [&](const json& single, const json& special, bool in_sequence = false) {
    json document = small();
    for (const char* content : {"<s>", "</s>"})
      document["added_tokens"].push_back({{"id", document["added_tokens"].size() + 257},
                                          {"content", content},
                                          {"special", false},
                                          {"normalized", true}});
    document["normalizer"] = {{"type", "Lowercase"}};
    document["post_processor"] = {
        {"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", special}};
    if (in_sequence)
      document["post_processor"] = {
          {"type", "Sequence"},
          {"processors", {{{"type", "ByteLevel"}}, document["post_processor"]}}};
    const auto tokenizer = must(load(document));
    return std::pair(tokenizer->bos(), tokenizer->eos());
  };
  const json both = {{"<s>", {{"ids", {258}}}}, {"</s>", {{"ids", {259}}}}};
  for (const bool in_sequence : {false, true})
    CHECK(ends({puts("<s>"), text, puts("</s>")}, both, in_sequence) == std::pair(258, 259));
  // By its ids, whatever its name is; a token of the vocabulary, too.
  CHECK(ends({puts("<s>"), text}, {{"<s>", {{"ids", {259}}}}}) == std::pair(259, 257));
  CHECK(ends({puts("BOS"), text}, {{"BOS", {{"ids", {104}}}}}) == std::pair(104, 257));
  CHECK(ends({text, puts("none")}, {{"none", {{"ids", json::array()}}}}) == std::pair(257, 257));
}

TEST_CASE("tokenizer.json: merges as pairs, as texts, with the head of a merges.txt, and twice") {
  const auto ids = [](const json& merges, const std::string& text) {
    json document = small();
    document["model"]["vocab"].update({{"ee", 257}, {"hee", 258}});
    document["added_tokens"] = json::array();
    document["model"]["merges"] = merges;
    const auto tokenizer = must(load(document));
    return tokenizer->encode(text);
  };
  using Ids = std::vector<int32_t>;
  // As of `tokenizers` 0.23.3.
  CHECK(ids({"#version: 0.2 - Trained by `huggingface/tokenizers`", "h e", "#version: 0.2"},
            "he") == Ids{256});
  CHECK(ids({"h e", "e e", "he e"}, "hee") == Ids{258});
  const auto pair = [](const char* left, const char* right) { return json::array({left, right}); };
  CHECK(ids(json::array({pair("h", "e"), pair("e", "e"), pair("he", "e")}), "hee") == Ids{258});
  CHECK(ids({"h e", "e e", "he e", "h e"}, "hee") == Ids{'h', 257});  // the last one counts
  json document = small();
  document["model"]["vocab"].update({{"#version:", 257}});
  document["added_tokens"] = json::array();
  document["model"]["merges"] = json::array({json::array({"#version:", "0.2"})});
  CHECK(load(document).status().message().find("has a token without id") != std::string::npos);
}

TEST_CASE("tokenizer.json: bytes without tokens behind ByteLevel") {
  json document = small();
  document["model"]["vocab"].erase("z");
  document["model"]["vocab"]["fill"] = 'z';
  document["model"].update({{"unk_token", "fill"}, {"fuse_unk", true}});
  document["added_tokens"] = json::array();
  CHECK(load(document)->encode("azzb\nz") == std::vector<int32_t>{'a', 'z', 'b', '\n', 'z'});
  document["model"]["unk_token"] = "a";  // is fused with unknown ones only
  CHECK(load(document)->encode("azzb") == std::vector<int32_t>{'a', 'a', 'b'});
  document["model"]["byte_fallback"] = true;
  CHECK(has(load(document).status(), "\"byte_fallback\" behind ByteLevel"));
}

// 4,000 tokens of "a", and 4,000 more that end with "b": looked for one by one, a text of 1 MiB would
// need 4e9 steps for each of the two ends.
TEST_CASE("tokenizer.json: added tokens that share their fronts or ends") {
  json document = small();
  document["added_tokens"] = json::array();
  for (const bool front : {true, false})
    for (int i = 1; i <= 1000; ++i) {
      const std::string as(static_cast<size_t>(i) * 2, 'a');
      document["added_tokens"].push_back({{"id", 257 + document["added_tokens"].size()},
                                          {"content", front ? as + "b" : "c" + as},
                                          {"special", true},
                                          {"normalized", false}});
    }
  const auto tokenizer = must(load(document));
  const std::string as(1 << 20, 'a');
  CHECK(tokenizer->encode(as) == std::vector<int32_t>(as.size(), 'a'));
  const auto ids = tokenizer->encode(as + "b");
  CHECK(ids.size() == as.size() - 2000 + 1);
  CHECK(ids.back() == 257 + 999);
  CHECK(tokenizer->encode("caaab") == std::vector<int32_t>{257 + 1000, 'a', 'b'});
  CHECK(tokenizer->encode("aaaab") == std::vector<int32_t>{257 + 1});
  json large = small();
  for (int i = 0; i < 200; ++i)
    large["added_tokens"].push_back({{"id", 258 + i},
                                     {"content", std::string(60'000, 'a') + std::to_string(i)},
                                     {"special", true},
                                     {"normalized", false}});
  CHECK(load(large).status().message().find("more than 8 MiB") != std::string::npos);
}

TEST_CASE("tokenizer.json: of a folder with both files it is taken, or refused") {
  const TempFolder folder;
  CHECK(find_tokenizer(folder.path).empty());
  const std::string model = folder.write("tokenizer.model", "IQ== 0\n");  // as tiktoken's
  CHECK(find_tokenizer(folder.path) == model);
  const std::string json =
      folder.write("tokenizer.json", train_byte_bpe({"some words"}, 260).take());
  CHECK(find_tokenizer(folder.path) == json);
  folder.write("tokenizer.model", small_model(bpe_model));
  CHECK(find_tokenizer(folder.path) == json);
  folder.write("tokenizer.json", R"({"model": {"type": "WordPiece"}})");
  CHECK(find_tokenizer(folder.path) == json);
  CHECK(Tokenizer::load(json).status().message() ==
        json + ": model WordPiece is not supported, only BPE is; " + model +
            " may give other ids: name that file if it is the one you want");
  if (geteuid() == 0) {  // another user's link is refused, which the user must see
    std::filesystem::rename(json, folder.path + ".json");
    std::filesystem::create_symlink(folder.path + ".json", json);
    REQUIRE(lchown(json.c_str(), 65534, 65534) == 0);
    CHECK(find_tokenizer(folder.path) == json);
    std::filesystem::rename(folder.path + ".json", json);
  }
  std::filesystem::remove(model);
  CHECK(find_tokenizer(folder.path) == json);
}

TEST_CASE("tokenizer.json: parts that are wrong or not supported are named") {
  const auto refused = [](const std::function<void(json&)>& edit, const std::string& why) {
    json document = small();
    edit(document);
    const auto tokenizer = load(document);
    REQUIRE_FALSE(tokenizer.ok());
    CHECK(says(tokenizer.status(), Code::bad_data, why));
    CHECK(tokenizer.status().message().starts_with("x/tokenizer.json: "));
  };
  const auto split = [](const std::string& regex) -> json {
    return {{"type", "Split"},
            {"pattern", {{"Regex", regex}}},
            {"behavior", "Isolated"},
            {"invert", false}};
  };
  refused([](json& d) { d["model"]["type"] = "Unigram"; }, "model Unigram is not supported");
  refused([](json& d) { d["model"]["dropout"] = 0.1; }, "\"dropout\"");
  refused([](json& d) { d["model"]["vocab"]["x1"] = 1u << 30; }, "the id of token \"x1\"");
  refused([](json& d) { d["model"]["vocab"]["x1"] = -1; }, "the id of token \"x1\"");
  refused(
      [](json& d) {
        d["model"]["vocab"]["x1"] = 7;
        d["added_tokens"][0]["id"] = 258;
      },
      "have the same id 7");
  refused([](json& d) { d["model"]["merges"] = {"h o"}; }, "merge \"h o\" has a token without id");
  refused([](json& d) { d["model"]["merges"] = {"ho"}; }, "no pair of tokens");
  refused([](json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix");
  refused([](json& d) { d["model"].erase("vocab"); }, "no \"vocab\"");
  // Of several reasons the one that says most: T5 has another model, too.
  refused(
      [](json& d) {
        d["normalizer"] = {{"type", "Precompiled"}};
        d["model"]["type"] = "Unigram";
      },
      "model Unigram is not supported, only BPE is");
  refused(
      [](json& d) {
        d["normalizer"] = {{"type", "BertNormalizer"}};
      },
      "normalizer BertNormalizer is not supported");
  refused(
      [](json& d) {
        d["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
      },
      "pre_tokenizer BertPreTokenizer is not supported");
  refused(
      [](json& d) {
        d["pre_tokenizer"] = {{"type", "Whitespace"}, {"split", true}};
      },
      "pre_tokenizer Whitespace has");
  refused(
      [](json& d) {
        d["pre_tokenizer"] = {{"type", "Punctuation"}, {"behavior", "Merged"}};
      },
      "pre_tokenizer Punctuation has an unknown \"behavior\"");
  refused([](json& d) { d["decoder"] = {{"type", "WordPiece"}}; }, "decoder WordPiece");
  refused([](json& d) { d["post_processor"] = {{"type", "BertProcessing"}}; }, "BertProcessing");
  const auto puts = [](const std::string& token) -> json {
    return {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  };
  const auto template_of = [](const json& single) -> json {
    return {{"type", "TemplateProcessing"},
            {"single", single},
            {"special_tokens",
             {{"<a>", {{"ids", {97}}}},
              {"<b>", {{"ids", {98}}}},
              {"<two>", {{"ids", {99, 100}}}},
              {"<far>", {{"ids", {300}}}}}}};
  };
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json other = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
  for (const auto& [single, says] : std::vector<std::pair<json, std::string>>{
           {{puts("<a>"), puts("<b>"), text}, "more than one token before a text, \"a\" and \"b\""},
           {{text, puts("<a>"), puts("<b>")}, "more than one token behind a text, \"a\" and \"b\""},
           {{puts("<two>"), text}, "more than one token before a text, \"c\" and \"d\""},
           {{puts("<far>"), text}, "the id 300 for \"<far>\", and no token has that id"},
           {{puts("<c>"), text}, "does not say the ids of \"<c>\""},
           {json::array({puts("<a>")}), "leaves out the text"},
           {{text, puts("<a>"), text}, "than A, or A twice"},
           {json::array({other}), "than A, or A twice"}})
    refused([&](json& d) { d["post_processor"] = template_of(single); }, says);
  // `tokenizers` takes the tokens of the first one for a text.
  refused(
      [&](json& d) {
        d["post_processor"] = {
            {"type", "Sequence"},
            {"processors", {template_of({puts("<a>"), text}), template_of({text, puts("<b>")})}}};
      },
      "TemplateProcessing occurs twice");
  refused([](json& d) { d["version"] = "2.0"; }, "another \"version\" than 1.0");
  refused(
      [](json& d) {
        d["normalizer"] = {
            {"type", "Replace"}, {"pattern", {{"Regex", "[a-z]+"}}}, {"content", ""}};
        d["added_tokens"].push_back({{"id", 258}, {"content", "word"}, {"normalized", true}});
      },
      "leaves nothing of the added token \"word\"");
  refused(
      [](json& d) {
        d["normalizer"] = {{"type", "Prepend"}, {"prepend", "x"}};
        d["pre_tokenizer"] = {{"type", "Metaspace"}, {"prepend_scheme", "first"}};
      },
      "Metaspace with \"prepend_scheme\": \"first\"");
  refused([](json& d) { d["truncating"] = 1; }, "\"truncating\"");
  refused([&](json& d) { d["pre_tokenizer"] = split("\\p{Grek&}"); }, "is wrong");
  refused([](json& d) { d["added_tokens"][0]["id"] = 3'000'000; },
          "<|endoftext|>\" has the id 3000000, but tokenizers and transformers give it 257");
  refused([&](json& d) { d["pre_tokenizer"] = split("(?<=a)b"); }, "the group \"(?<=\"");
  refused([&](json& d) { d["pre_tokenizer"] = split("a*"); }, "matches the empty text");
  refused([&](json& d) { d["pre_tokenizer"] = split("\\bword"); }, "\\b");
  refused([&](json& d) { d["pre_tokenizer"] = split("(a"); }, "is wrong");
  refused([&](json& d) { d["pre_tokenizer"] = split("[a[b]]"); }, "[ inside [...]");
  refused([&](json& d) { d["pre_tokenizer"] = split("[\\W_]"); }, "\\W inside [...]");
  refused([&](json& d) { d["pre_tokenizer"] = split("(?i:x(?:claSs))"); }, "\"Ss\" inside (?i:");
  refused([&](json& d) { d["pre_tokenizer"] = split("\\pL+"); }, "\\p without {");
  refused([&](json& d) { d["pre_tokenizer"] = split("\\d{2,3}a{4}?b"); }, "\"{n}?\"");
  json allowed = small();
  allowed["pre_tokenizer"] = split("(?i:'[st])ss|ss|a{1,2}?\\p{L}?");
  CHECK(load(allowed).ok());
  refused([&](json& d) { d["pre_tokenizer"] = split("\\p{N}{1,3}+"); }, "\"}+\"");
  // No safe place to cut a document is known where a word may hold a space.
  CHECK(load(small())->cuts() == Tokenizer::Cuts::space);
  json document = small();
  document["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {split("[a-z]+( [a-z]+)*"), small()["pre_tokenizer"]}}};
  document["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = false;
  CHECK(load(document)->cuts() == Tokenizer::Cuts::nowhere);
  document = small();
  document["added_tokens"].push_back({{"id", 258}, {"content", "a b"}});
  CHECK(load(document)->cuts() == Tokenizer::Cuts::nowhere);
  CHECK(Tokenizer::from_bytes(std::string(8 << 20, '['), "tokenizer.json").status().code() ==
        Code::bad_data);
  CHECK(Tokenizer::from_bytes("", "tokenizer.json").status().code() == Code::bad_data);
}

TEST_CASE("tokenizer.json: steps that would make a text longer without end are refused") {
  const auto steps = [](size_t count, const json& pattern, const std::string& by) {
    json list = json::array();
    for (size_t i = 0; i < count; ++i)
      list.push_back({{"type", "Replace"}, {"pattern", pattern}, {"content", by}});
    return list;
  };
  const auto says = [](const std::string& part, const json& list) {
    json document = small();
    const std::string name = part == "pre_tokenizer" ? "pretokenizers" : part + "s";
    document[part] = {{"type", "Sequence"}, {name, list}};
    document["added_tokens"].push_back({{"id", 258}, {"content", "<aa>"}, {"normalized", true}});
    const auto tokenizer = load(document);
    if (!tokenizer.ok()) return tokenizer.status().message();
    (void)tokenizer->decode(tokenizer->encode("aaaa"));
    return std::string();
  };
  const json a = {{"String", "a"}}, any = {{"Regex", "[a-z]"}}, space = {{"String", " "}};
  for (const char* part : {"normalizer", "decoder"}) {
    const std::string refused = std::string(part) + " may make a text more than 64 times as long";
    CHECK(says(part, steps(64, a, "aa")).find(refused) != std::string::npos);
    CHECK(says(part, steps(64, any, "aa")).find(refused) != std::string::npos);
    CHECK(says(part, steps(1, a, std::string(65, 'a'))).find(refused) != std::string::npos);
    CHECK(says(part, steps(6, a, "aa")).empty());
    CHECK(says(part, steps(64, {{"String", "aa"}}, "aa")).empty());
  }
  const auto metaspaces = [](size_t count, const std::string& mark, const char* prepend) {
    json list = json::array();
    for (size_t i = 0; i < count; ++i) {
      list.push_back({{"type", "Split"}, {"pattern", {{"Regex", "."}}}, {"behavior", "Isolated"}});
      list.push_back({{"type", "Metaspace"},
                      {"replacement", mark.empty() ? std::string(1, i % 2 ? 'a' : 'b') : mark},
                      {"prepend_scheme", prepend}});
    }
    return list;
  };
  for (const json& list : {metaspaces(30, "  ", "never"), metaspaces(30, "", "always"),
                           metaspaces(1, std::string(65, ' '), "never")})
    CHECK(has(says("pre_tokenizer", list),
              "pre_tokenizer may make a text more than 64 times as long"));
  CHECK(says("pre_tokenizer", metaspaces(3, "\xE2\x96\x81", "always")).empty());
  json used = steps(1, space, "\xE2\x96\x81");
  used.push_back({{"type", "NFKC"}});
  CHECK(says("normalizer", used).empty());
  used.push_back({{"type", "NFKC"}});
  CHECK_FALSE(says("normalizer", used).empty());
  // Each of the texts between added tokens gets them.
  const json prepends(64, {{"type", "Prepend"}, {"prepend", std::string(1'024, 'a')}});
  const json three(3, {{"type", "Prepend"}, {"prepend", "\xE2\x96\x81"}});
  CHECK(says("normalizer", prepends).find("64 times as long") != std::string::npos);
  CHECK(says("normalizer", three).empty());
  json sentencepiece = json(1, {{"type", "NFKC"}});  // of one byte: (11 + 3) times 3
  sentencepiece.push_back(three[0]);
  sentencepiece.push_back(steps(1, space, "\xE2\x96\x81")[0]);
  CHECK(says("normalizer", sentencepiece).empty());
  json spaced = metaspaces(1, std::string(33, ' '), "never");
  CHECK(says("pre_tokenizer", spaced).empty());
  spaced.push_back({{"type", "ByteLevel"}});
  CHECK(says("pre_tokenizer", spaced).find("64 times as long") != std::string::npos);
  json document = small();
  document["added_tokens"].push_back({{"id", 258}, {"content", std::string(100'000, 'a')}});
  CHECK(load(document).status().message().find("64 KiB") != std::string::npos);
}

// With utf8proc alone, 60,000 marks need 40 s.
TEST_CASE("tokenizer.json: normal forms of many marks") {
  const auto many = [](const std::string& text) {
    std::string out;
    for (int i = 0; i < 100'000; ++i) out += text;
    return out;
  };
  const std::string above = "\u0301", below = "\u0323", tibetan = "\u0F73", kana = "\uFF9E";
  CHECK(to_normal_form("a" + many(above) + many(below), NormalForm::nfd) ==
        "a" + many(below) + many(above));
  CHECK(to_normal_form("xa" + many(above + below) + "y", NormalForm::nfc) ==
        "x\u1EA1" + many(below).substr(below.size()) + many(above) + "y");
  CHECK(to_normal_form("a" + many(tibetan), NormalForm::nfd) ==
        "a" + many("\u0F71") + many("\u0F72"));
  CHECK(to_normal_form("\uFF76" + many(above + kana), NormalForm::nfkd) ==
        "\u30AB" + many("\u3099") + many(above));
  CHECK(to_normal_form("\uFF76" + many(above + kana), NormalForm::nfkc) ==
        "\u30AC" + many("\u3099").substr(3) + many(above));
}

TEST_CASE("tokenizer.json: a pattern that needs too much time for a text is an error") {
  const auto tokenizer_of = [](const std::string& regex) {
    json document = small();
    document["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    return must(load(document)).take();
  };
  const auto error_of = [](const Tokenizer& tokenizer, const std::string& text) {
    Status error;
    (void)tokenizer.encode(text, &error);
    return error;
  };
  const Tokenizer exponential = tokenizer_of("(?:a+a+)+b"), quadratic = tokenizer_of("a*b|a");
  const std::string many(60'000, 'a');
  CHECK(error_of(exponential, std::string(200, 'a') + "cb").message() ==
        "its regular expression \"(?:a+a+)+b\" needs too many steps or too much memory for this "
        "text");
  CHECK(error_of(quadratic, many).code() == Code::bad_data);
  CHECK(error_of(quadratic, many.substr(0, 3'000)).ok());
  CHECK(error_of(quadratic, many + "b").ok());  // one match, over the whole text
  CHECK(quadratic.encode("aaba") == std::vector<int32_t>{'a', 'a', 'b', 'a'});
  std::vector<bool> masked;
  Status error;
  (void)quadratic.encode_masked(many, false, {{0, 5}}, masked, &error);
  CHECK_FALSE(error.ok());
  // Known patterns look far, but once: at blanks, and at capitals, which GPT-4o's first alternative
  // takes back one by one.
  const std::string gpt4o =
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
      "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const Tokenizer known = tokenizer_of(gpt4o);
  for (const char c : {' ', '\n', 'A', 'a', '7', '-'})
    CHECK(error_of(known, std::string(1 << 20, c)).ok());
}

TEST_SUITE_END();
