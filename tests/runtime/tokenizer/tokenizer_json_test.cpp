#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/base/utf8.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
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
  const std::string folder = "/tmp/ss-tokenizer-test-" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const auto option = [](const char* flag, const char* name) {
    const char* value = std::getenv(name);
    return value ? std::string(flag) + value : std::string();
  };
  const std::string command = python + " -B " + source_dir() +
                              "/tests/runtime/tokenizer/reference.py " + folder +
                              option(" --bytes=", "SIMPLESCALE_TOKENIZER_BYTES") +
                              option(" --every=", "SIMPLESCALE_TOKENIZER_EVERY") +
                              option(" --seed=", "SIMPLESCALE_TEST_SEED");
  REQUIRE(std::system(command.c_str()) == 0);
  return folder;
}

/// make_reference(), once for all tests. The folder is removed at the end.
const std::string& reference_folder() {
  struct Made {
    std::string folder = make_reference();
    ~Made() {
      if (!std::getenv("SIMPLESCALE_TOKENIZER_REFERENCE")) std::filesystem::remove_all(folder);
    }
  };
  static const Made made;
  return made.folder;
}

const std::vector<std::string> names = {"gpt2",   "llama3",   "qwen2",   "olmo2",   "gpt4o",
                                        "smollm", "deepseek", "llama2",  "mistral", "metaspace",
                                        "odd",    "splits",   "scripts", "bare"};

}  // namespace

TEST_CASE("tokenizer.json: a trained one has the tokens and merges of Hugging Face's trainer") {
  const std::string& folder = reference_folder();
  if (folder.empty()) {
    MESSAGE("SKIPPED: no Python with tokenizers under .deps");
    return;
  }
  std::vector<std::string> texts;
  for (ReferenceFile file(folder + "/train.bin"); !file.empty();) texts.push_back(file.text());
  const auto ours = train_byte_bpe(texts, 2000);
  REQUIRE_MESSAGE(ours.ok(), ours.status().message());
  std::ifstream in(folder + "/trained.json");
  const json mine = json::parse(*ours)["model"], theirs = json::parse(in)["model"];
  CHECK(mine["vocab"] == theirs["vocab"]);
  CHECK(mine["merges"] == theirs["merges"]);

  const auto tokenizer = Tokenizer::from_bytes(*ours, "tokenizer.json");
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
  CHECK(tokenizer->vocab() == 2000);
  CHECK(tokenizer->bos() == 0);
  CHECK(tokenizer->eos() == 0);
  for (const std::string& text : texts)
    if (text.find("<|endoftext|>") == text.npos)
      REQUIRE(tokenizer->decode(tokenizer->encode(text)) == text);

  CHECK(train_byte_bpe({}, 1000).status().code() == Code::bad_data);
  const auto few = train_byte_bpe({"abc abc"}, 1000).status();
  CHECK(few.code() == Code::bad_data);
  CHECK(few.message().find("gives only 260") != std::string::npos);  // and ab, abc, " abc"
}

TEST_CASE("tokenizer.json: random normalizers, splits and added tokens give Hugging Face's ids") {
  const std::string python = deps_dir() + "/python/bin/python";
  if (std::system((python + " -c 'import tokenizers' >/dev/null 2>&1").c_str()) != 0) {
    MESSAGE("SKIPPED: no Python with tokenizers under .deps");
    return;
  }
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
    REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
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
  if (folder.empty()) {
    MESSAGE("SKIPPED: no Python with tokenizers under .deps");
    return;
  }
  const std::vector<std::string> texts = reference_texts(folder);
  for (const std::string& name : names) {
    CAPTURE(name);
    const auto loaded = Tokenizer::load(folder + "/" + name + ".json");
    REQUIRE(loaded.ok());
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
  if (folder.empty()) {
    MESSAGE("SKIPPED: no Python with tokenizers under .deps");
    return;
  }
  const auto loaded = Tokenizer::load(folder + "/qwen2.json");
  REQUIRE(loaded.ok());
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
  if (folder.empty()) {
    MESSAGE("SKIPPED: no Python with tokenizers under .deps");
    return;
  }
  const std::vector<std::string> texts = reference_texts(folder);
  REQUIRE(texts.size() > 1000);
  for (const std::string& name : names) {
    CAPTURE(name);
    const auto loaded = Tokenizer::load(folder + "/" + name + ".json");
    REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
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
  const auto tokenizer = load(document);
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
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
    const auto tokenizer = load(document);
    REQUIRE(tokenizer.ok());
    CHECK(tokenizer->encode(std::string(kSpaces, ' ')) == std::vector<int32_t>(count, 258));
  }
}

TEST_CASE("tokenizer.json: special tokens, any bytes, and many threads at once") {
  const auto tokenizer = load(small());
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
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

TEST_CASE("tokenizer.json: of a folder with both files it is taken, if it can be read") {
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
  CHECK(find_tokenizer(folder.path) == model);
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
  const auto refused = [](const std::function<void(json&)>& edit, const std::string& says) {
    json document = small();
    edit(document);
    const auto tokenizer = load(document);
    REQUIRE_FALSE(tokenizer.ok());
    CHECK(tokenizer.status().code() == Code::bad_data);
    CHECK_MESSAGE(tokenizer.status().message().find(says) != std::string::npos,
                  tokenizer.status().message());
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
  refused([](json& d) { d["model"]["vocab"]["x1"] = 7; }, "have the same id 7");
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
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  for (const json& single :
       {json{puts("<a>"), puts("<b>"), text}, json{text, puts("<a>"), puts("<b>")}})
    refused(
        [&](json& d) {
          d["post_processor"] = {{"type", "TemplateProcessing"}, {"single", single}};
        },
        single[0] == text ? "more than one token behind a text, \"<a>\" and \"<b>\""
                          : "more than one token before a text, \"<a>\" and \"<b>\"");
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
  refused([](json& d) { d["added_tokens"][0]["id"] = 3'000'000; }, "far beyond others");
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
    CHECK(says("pre_tokenizer", list)
              .find("pre_tokenizer may make a text more than 64 times as long") !=
          std::string::npos);
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

TEST_CASE("tokenizer.json: a pattern that needs too much time ends, and the text is kept") {
  json document = small();
  document["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(?:a+a+)+b"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const auto tokenizer = load(document);
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
  const std::string text(200, 'a');
  CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
}

TEST_SUITE_END();
